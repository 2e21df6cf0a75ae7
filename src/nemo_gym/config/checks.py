"""What a configuration is checked for before anything starts. Each check returns its findings; none raises, but for the
capture settings, which other packages check on their own."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.config.component_fields import config_fields
from nemo_gym.config.interpolation import Problem
from nemo_gym.config.masking import MASK, is_secret_key, masked_values
from nemo_gym.config.names import (
    AGENTS,
    IGNORED_KEYS,
    KNOWN_PREFIXES,
    KNOWN_TOP_LEVEL_KEYS,
)
from nemo_gym.config.overrides import Override
from nemo_gym.config.pairing import (
    ALLOWED_AGENTS,
    ALLOWED_MODEL_TYPES,
    PAIRING_ERRORS,
    any_pairing_goes,
    pairing_problem,
)
from nemo_gym.config.roots import INSTALL_ROOT
from nemo_gym.config.servers import (
    ServerBlock,
    almost_instance,
    looks_like_instance,
    parse_server_blocks,
    referenced,
)
from nemo_gym.errors import ConfigError, nearest_name
from nemo_gym.records.keys import MODEL_CALL_CAPTURE_ARCHIVE, MODEL_CALL_CAPTURE_DIR, OBSERVABILITY_ENABLED

_TYPO_CUTOFF = 0.85
_READ_BY_INTERPOLATION = re.compile(r"\$\{(?:oc\.select:)?\s*([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class Findings:
    """`problems` stop a run, `notices` are only said."""

    problems: list[Problem]
    notices: list[str]


def is_known_top_level_key(key: str, extra: Collection[str] = ()) -> bool:
    """Tell whether this package reads a top-level key of that name."""
    return key in KNOWN_TOP_LEVEL_KEYS or key in extra or key.startswith(KNOWN_PREFIXES)


def flag_hint(name: str, flags: Collection[str]) -> str:
    """Return " `--x` is an option ..." where a key has the name of one of the command's flags, else ""."""
    flag = f"--{name.replace('_', '-')}"
    return f" `{flag}` is an option of this command and no key; write it so." if flag in flags else ""


def unknown_keys(
    data: Mapping[Any, Any],
    *,
    raw: Mapping[Any, Any],
    from_command_line: Collection[str],
    known: Collection[str] = (),
    quiet: Collection[str] = (),
    read_beside: Collection[str] = (),
    flags: Collection[str] = (),
) -> Findings:
    """Find top-level keys that nothing reads.

    A key from the command line that nothing reads is a problem. A key of a file is a problem when it is nearly a known
    one, and a notice otherwise: a server of the user's own may read it. `quiet` keys (of `env.yaml`, which serves many
    configurations) get no notice. `raw` is the unresolved data, in which interpolations say what is read;
    `read_beside` keys are read by their own file, whatever has replaced the place. `flags` are the options of the
    command, which a key may have been meant for.
    """
    read = {*interpolated(raw), *read_beside}
    names = KNOWN_TOP_LEVEL_KEYS | set(known)
    problems: list[Problem] = []
    notices: list[str] = []
    for key, value in data.items():
        name = str(key)
        if is_known_top_level_key(name, known) or name in read:
            continue
        if looks_like_instance(value) or almost_instance(name, value) is not None:
            continue
        if name in from_command_line:
            near = [*names, *read, *map(str, data)] if name not in data else [*names, *read]
            hint = flag_hint(name, flags) or nearest_name(name, near)
            problems.append(Problem(f"unknown key `{name}`: nothing reads it.{hint}", about_unknown_key=True))
        elif close := difflib.get_close_matches(name, sorted(names), n=1, cutoff=_TYPO_CUTOFF):
            problems.append(Problem(f"unknown key `{name}`. Did you mean `{close[0]}`?", about_unknown_key=True))
        elif name not in quiet and not isinstance(value, Mapping):
            notices.append(f"key `{name}` is read by nothing that is known here.{flag_hint(name, flags)}")
    return Findings(problems, notices)


def ignored_keys(data: Mapping[Any, Any], raw: Mapping[Any, Any]) -> list[str]:
    """Return one notice for all top-level settings that are accepted without any effect; what is off is none.

    A credential alone asks for nothing. A key that an interpolation of `raw` reads has its effect there.
    """
    read = set(interpolated(raw))
    ignored = [
        f"`{name}`"
        for name, value in data.items()
        if (name in IGNORED_KEYS or str(name).startswith(KNOWN_PREFIXES))
        and value
        and name not in read
        and not is_secret_key(str(name))
    ]
    if not ignored:
        return []
    return [f"nothing that is shipped here acts on {', '.join(ignored)}."]


def interpolated(value: object) -> Iterator[str]:
    """Yield the top-level keys that interpolations in a value read."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from interpolated(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from interpolated(inner)
    elif isinstance(value, str) and "${" in value:
        yield from _READ_BY_INTERPOLATION.findall(value)


def misnamed_servers(
    data: Mapping[Any, Any], overrides: Sequence[Override], *, written: Collection[str], roots: Sequence[Path]
) -> dict[str, Problem]:
    """Find servers that only exist because an override means another one, by the name that is not in `written`.

    An override of one setting makes a server of any name. Meant as a new one it has an `entrypoint`; without it, it is
    a mistake when a name is near or when it could not run.
    """
    problems: dict[str, Problem] = {}
    servers = [str(name) for name in written if looks_like_instance(data.get(name))]
    for override in overrides:
        name = str(override.path[0])
        value = data.get(name)
        if override.operation not in ("add", "force") or len(override.path) == 1 or name in written:
            continue
        if not isinstance(value, Mapping) or not looks_like_instance(value) or _has_entrypoint(value):
            continue
        hint = nearest_name(name, servers)
        if hint or parse_server_blocks({name: value}, roots)[1]:
            listed = ", ".join(f"`{server}`" for server in servers) or "none"
            problems.setdefault(
                name,
                Problem(
                    f"override `{override.token}`: no server is called `{name}`.{hint or f' Configured: {listed}.'} "
                    "To add one, give its `entrypoint` too."
                ),
            )
    return problems


def _has_entrypoint(instance: Mapping[Any, Any]) -> bool:
    return any(
        isinstance(block, Mapping) and "entrypoint" in block
        for inner in instance.values()
        if isinstance(inner, Mapping)
        for block in inner.values()
    )


def block_keys(blocks: Sequence[ServerBlock]) -> Findings:
    """Find settings that components do not read, as far as their source tells.

    Nearly a known name is a problem for a shipped component. For one of the user's own everything is a notice: its
    class may read more than can be seen (A1).
    """
    problems: list[Problem] = []
    notices: list[str] = []
    for block in blocks:
        for key in (OBSERVABILITY_ENABLED, MODEL_CALL_CAPTURE_DIR):
            if key in block.settings:
                notices.append(
                    f"{block.label}: `{key}` has no effect inside a server's block; set it at the top level."
                )
        if block.directory is None:
            continue
        shipped = block.directory.is_relative_to(INSTALL_ROOT)
        fields = config_fields(block.directory / block.entrypoint)
        if fields is None:
            continue
        for name in map(str, block.settings):
            if name in fields or name in (OBSERVABILITY_ENABLED, MODEL_CALL_CAPTURE_DIR):
                continue
            close = difflib.get_close_matches(name, sorted(fields), n=1, cutoff=_TYPO_CUTOFF)
            if shipped and close:
                problems.append(
                    Problem(f"{block.label}: unknown key `{name}`. Did you mean `{close[0]}`?", about_unknown_key=True)
                )
            else:
                notices.append(f"{block.label}: key `{name}` is not read.{nearest_name(name, fields)}")
    return Findings(problems, notices)


def pairing_problems(
    blocks: Sequence[ServerBlock], data: Mapping[Any, Any], environ: Mapping[str, str]
) -> list[Problem]:
    """Find agents and models that a resources server does not list in `allowed_agents` or `allowed_model_types`."""
    if any_pairing_goes(data, environ):
        return []
    by_name = {block.name: block for block in blocks}
    problems: list[Problem] = []
    for agent in blocks:
        resources = by_name.get(referenced(agent, "resources_server") or "") if agent.kind == AGENTS else None
        if resources is None:
            continue
        model = by_name.get(referenced(agent, "model_server") or "")
        for partner, field in ((agent, ALLOWED_AGENTS), (model, ALLOWED_MODEL_TYPES)):
            if partner is not None:
                problem = pairing_problem(
                    resources.name, resources.settings, field=field, implementation=partner.implementation
                )
                problems += [] if problem is None else [Problem(problem, error=PAIRING_ERRORS[field])]
    return problems


def masked_problems(raw: Mapping[Any, Any], origin: Mapping[str, str]) -> list[Problem]:
    """Find secrets given as the `****` that stands in their place wherever a configuration or a command is shown.

    `raw` is the unresolved data: a value that is taken from another key is said once, at that key.
    """
    problems: list[Problem] = []
    for place in masked_values(raw):
        whence = origin.get(place.split("[")[0], "")
        given = f" (given in `{whence}`)" if whence.endswith((".yaml", ".yml")) else ""
        instead = "" if whence.endswith("env.yaml") else ", or leave the key out and set it in env.yaml"
        problems.append(
            Problem(
                f"`{place}`{given} holds `{MASK}`, which only stands for a secret where one is shown. Put the secret "
                f"itself there{instead}."
            )
        )
    return problems


def port_problems(blocks: Sequence[ServerBlock], head: Mapping[Any, Any]) -> list[Problem]:
    """Find two servers that were given the same address."""
    given: dict[tuple[str, int], str] = {}
    problems: list[Problem] = []
    head_port = head.get("port")
    if isinstance(head_port, int):
        given[(str(head.get("host")), head_port)] = "head_server"
    for block in blocks:
        if block.port is None or not block.starts_process:
            continue
        other = given.setdefault((block.host, block.port), block.name)
        if other != block.name:
            problems.append(Problem(f"`{other}` and `{block.name}` both have port {block.port} on `{block.host}`."))
    return problems


def check_capture_settings(settings: Mapping[Any, Any]) -> None:
    """Check the capture keys of the global configuration (A1). Raises `ConfigError`; touches no disk."""
    enabled = settings.get(OBSERVABILITY_ENABLED)
    if enabled not in (None, True, False):
        raise ConfigError(f"`{OBSERVABILITY_ENABLED}` must be `true` or `false`, not `{enabled}`.")
    archive = settings.get(MODEL_CALL_CAPTURE_ARCHIVE)
    if archive is not None and str(archive).lower() not in ("none", "zstd"):
        raise ConfigError(f"`{MODEL_CALL_CAPTURE_ARCHIVE}` must be `none` or `zstd`, not `{archive}`.")
    if not enabled:
        return
    directory = settings.get(MODEL_CALL_CAPTURE_DIR)
    if directory in (None, "", "???"):
        raise ConfigError(
            f"{MODEL_CALL_CAPTURE_DIR} is required when {OBSERVABILITY_ENABLED}=true. "
            f"Give `+{MODEL_CALL_CAPTURE_DIR}=/absolute/path`."
        )
    if not isinstance(directory, str | Path) or not Path(directory).is_absolute():
        absolute = Path(str(directory)).absolute()
        raise ConfigError(
            f"{MODEL_CALL_CAPTURE_DIR} must be an absolute path, not `{directory}`. Give `{absolute}` if that is meant."
        )


def check_capture_directory(settings: Mapping[Any, Any]) -> None:
    """Check that captures could be written into the configured directory. Raises `ConfigError`; creates nothing."""
    check_capture_settings(settings)
    if not settings.get(OBSERVABILITY_ENABLED):
        return
    directory = Path(str(settings[MODEL_CALL_CAPTURE_DIR]))
    place = directory
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise ConfigError(f"{MODEL_CALL_CAPTURE_DIR} `{directory}` cannot be a directory: `{place}` is a file.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"{MODEL_CALL_CAPTURE_DIR} `{directory}` cannot be written: no permission in `{place}`.")

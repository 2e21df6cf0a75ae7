"""Merges every source of settings into one checked configuration.

Later wins: defaults, the files of `config_paths` (an included file before the file that includes it, siblings in
order), `env.yaml`, `initial`, the command line.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.config import checks, names
from nemo_gym.config.command_line import apply_overrides
from nemo_gym.config.composition import compose_agents
from nemo_gym.config.directives import apply_directives
from nemo_gym.config.interpolation import Problem, resolve
from nemo_gym.config.masking import mask_secrets
from nemo_gym.config.overrides import Override, parse_overrides
from nemo_gym.config.ports import find_open_port
from nemo_gym.config.roots import component_search_roots
from nemo_gym.config.servers import ServerBlock, parse_server_blocks, reference_problems
from nemo_gym.config.sources import ENV_FILE, FileReader, Layer, leaf_paths, merge, path_list, read_yaml
from nemo_gym.config.values import dataset_problems, model_url_problems, setting_problems
from nemo_gym.errors import ConfigError

COMMAND_LINE = "command line"
_DEFAULTS = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """One merged and checked configuration.

    `data`: plain resolved content. `provenance`: for each dotted leaf the file, `command line`, `default` or
    `given by the program` that it came from. `notices`: what the person should be told. `model_problems`: why no model
    could be called, only with `allow_missing_model`. `roots`: search order, absolute.
    """

    data: dict[str, Any]
    provenance: Mapping[str, str]
    notices: tuple[str, ...]
    model_problems: tuple[str, ...]
    roots: tuple[Path, ...]

    def server_blocks(self) -> list[ServerBlock]:
        """Return the server instances in order of appearance, blocks that only name a route included."""
        return parse_server_blocks(self.data, self.roots, default_host=default_host(self.data))[0]

    def masked(self) -> dict[str, Any]:
        """Return the content with secrets as `****`."""
        masked = mask_secrets(self.data)
        return masked if isinstance(masked, dict) else {}


def load_config(
    *,
    config_paths: Iterable[str | Path] = (),
    overrides: Sequence[str] = (),
    search_dirs: Iterable[str | Path] = (),
    initial: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    env_file: str | Path | None = ENV_FILE,
    agent: str | None = None,
    compose: bool = False,
    known_keys: Collection[str] = (),
    flags: Collection[str] = (),
    allow_missing_model: bool = False,
    lenient: bool = False,
) -> ResolvedConfig:
    """Merge, resolve and check a configuration.

    `overrides`: tokens of the command line (`overrides.py` has the grammar). `agent`: put this agent in place of the
    composed one. `compose`: give a resources server without an agent `simple_agent`. `known_keys`: further top-level
    keys that the caller reads. `flags`: the options of the command, for hints. `allow_missing_model`: a model that is
    not set becomes `model_problems`. `lenient`: unknown keys are notices. Raises `ConfigError` naming every problem.
    """
    environment = os.environ if environ is None else environ
    roots = component_search_roots(search_dirs, environ=environment, cwd=cwd)
    tokens = parse_overrides(list(overrides))
    sources = _Sources.collect(config_paths, tokens, roots, env_file, initial)
    merged = merge([layer.data for layer in sources.layers])
    if compose or agent is not None:
        merged = compose_agents(merged, agent=agent, roots=roots)
    written = copy.deepcopy(merged)  # overrides change what they are given
    merged = _with_command_line(merged, sources.overrides, known_keys, flags)
    raw = merge([_defaults(merged, Path(cwd) if cwd is not None else Path.cwd()), merged])
    resolution = resolve(raw)
    data = resolution.data
    _flow_into_agents(data)
    findings = _check(
        data,
        raw,
        written=written,
        sources=sources,
        roots=roots,
        known_keys=known_keys,
        flags=flags,
        environ=environment,
    )
    problems = resolution.problems + findings.problems
    notices = [*sources.notices, *findings.notices]
    if lenient:
        notices += [problem.message for problem in problems if problem.about_unknown_key]
        problems = [problem for problem in problems if not problem.about_unknown_key]
    fatal = [problem for problem in problems if not (allow_missing_model and problem.about_model)]
    if fatal:
        errors = {problem.error for problem in fatal}
        error = errors.pop() if len(errors) == 1 else ConfigError
        raise error(_message([problem.message for problem in fatal]))
    return ResolvedConfig(
        data=data,
        provenance=_provenance(sources, data),
        notices=tuple(dict.fromkeys(notices)),
        model_problems=tuple(problem.message for problem in problems),
        roots=tuple(roots),
    )


def assign_ports(config: ResolvedConfig) -> ResolvedConfig:
    """Return `config` with a host and a port in every server block; ports that were given stay."""
    data = _copy(config.data)
    taken = {int(port) for port in data.get(names.DISALLOWED_PORTS) or ()}
    taken |= {block.port for block in config.server_blocks() if block.port is not None}
    taken.add(int(data[names.HEAD_SERVER]["port"]))
    low, high = names.DEFAULT_PORT_RANGE
    port_range = (int(data.get(names.PORT_RANGE_LOW) or low), int(data.get(names.PORT_RANGE_HIGH) or high))
    for block in config.server_blocks():
        settings = data[block.name][block.kind][block.implementation]
        settings = {**(settings or {}), "entrypoint": block.entrypoint, "host": block.host}
        if block.starts_process:
            settings["port"] = block.port or find_open_port(taken, host=block.host, port_range=port_range)
            taken.add(settings["port"])
        data[block.name][block.kind][block.implementation] = settings
    return dataclasses.replace(config, data=data)


def default_host(data: Mapping[str, Any]) -> str:
    """Return the host of servers that name none: `default_host`, the machine's address, or the loopback address."""
    if data.get(names.DEFAULT_HOST):
        return str(data[names.DEFAULT_HOST])
    if data.get("use_absolute_ip"):
        return socket.gethostbyname(socket.gethostname())
    return "127.0.0.1"


@dataclass(frozen=True, slots=True)
class _Sources:
    layers: list[Layer]
    overrides: list[Override]
    env_keys: frozenset[str]
    notices: list[str]

    @classmethod
    def collect(
        cls,
        config_paths: Iterable[str | Path],
        tokens: list[Override],
        roots: Sequence[Path],
        env_file: str | Path | None,
        initial: Mapping[str, Any] | None,
    ) -> _Sources:
        paths = [str(path) for path in config_paths]
        rest = [token for token in tokens if token.path != (names.CONFIG_PATHS,)]
        for token in tokens:
            if token.path == (names.CONFIG_PATHS,):
                paths += path_list(token.value, f"override `{token.token}`")
        first = dict(initial or {})
        paths += path_list(first.pop(names.CONFIG_PATHS, None), f"`{names.CONFIG_PATHS}`")
        env_layers: list[Layer] = []
        file = _find_env_file(env_file, roots)
        if file is not None:
            env = read_yaml(file)
            included = path_list(env.pop(names.CONFIG_PATHS, None), f"`{names.CONFIG_PATHS}` in `{file}`")
            paths = paths or included
            env_layers.append(Layer(str(file), env))
        reader = FileReader(roots)
        layers = [*reader.layers(paths), *env_layers]
        if first:
            layers.append(Layer("given by the program", first))
        env_keys = frozenset(str(key) for layer in env_layers for key in layer.data)
        return cls(layers, rest, env_keys, reader.notices)

    def read_beside(self, written: Mapping[Any, Any]) -> set[str]:
        """Return the keys that the file which has the last word on them reads itself, in any place.

        `written` is the content of all files; what no layer has in it came with an agent's own file.
        """
        read: set[str] = set()
        for layer in self.layers:
            own = set(checks.interpolated(layer.data))
            read = (read - set(map(str, layer.data))) | own.intersection(map(str, layer.data))
        in_layers = {str(key) for layer in self.layers for key in layer.data}
        return read | (set(checks.interpolated(written)) - in_layers)


def _find_env_file(env_file: str | Path | None, roots: Sequence[Path]) -> Path | None:
    if env_file is None:
        return None
    if Path(env_file).is_absolute():
        return Path(env_file) if Path(env_file).is_file() else None
    return next((root / env_file for root in roots if (root / env_file).is_file()), None)


def _with_command_line(
    data: dict[Any, Any], overrides: Sequence[Override], known: Collection[str], flags: Collection[str]
) -> dict[Any, Any]:
    """Apply the overrides, then the directives, then the overrides whose keys only came into being by these."""
    waiting = apply_overrides(data, overrides, known=known, final=False)
    data = apply_directives(data)
    apply_overrides(data, waiting, known=known, flags=flags, final=True)
    return data


def _defaults(data: Mapping[str, Any], here: Path) -> dict[str, Any]:
    host = data.get(names.DEFAULT_HOST)
    return {
        names.HEAD_SERVER: {"host": host if isinstance(host, str) else "127.0.0.1", "port": names.DEFAULT_HEAD_PORT},
        names.SPINUP_TIMEOUT: names.DEFAULT_SPINUP_TIMEOUT_S,
        "results_dir": str((here / "results").absolute()),
        "cache_dir": str((here / "cache").absolute()),
        "dry_run": False,
    }


def _flow_into_agents(data: dict[str, Any]) -> None:
    """`skip_verification` and its reward at the top level hold for every agent that does not say otherwise."""
    shared = {key: data[key] for key in ("skip_verification", "skip_verification_reward") if key in data}
    if not shared:
        return
    for value in data.values():
        inner = value.get(names.AGENTS) if isinstance(value, Mapping) else None
        for block in inner.values() if isinstance(inner, Mapping) else ():
            if isinstance(block, dict):
                block.update({key: setting for key, setting in shared.items() if key not in block})


def _check(
    data: dict[str, Any],
    raw: dict[str, Any],
    *,
    written: dict[str, Any],
    sources: _Sources,
    roots: Sequence[Path],
    known_keys: Collection[str],
    flags: Collection[str],
    environ: Mapping[str, str],
) -> checks.Findings:
    misnamed = checks.misnamed_servers(data, sources.overrides, written=written, roots=roots)
    servers = {name: value for name, value in data.items() if name not in misnamed}
    blocks, block_problems = parse_server_blocks(servers, roots, default_host=default_host(data))
    block_problems = [*misnamed.values(), *block_problems]
    notices: list[str] = []
    if data.get(names.ERROR_ON_ALMOST_SERVERS) is False:
        notices += [problem.message for problem in block_problems]
        block_problems = []
    in_files = {str(key) for layer in sources.layers for key in layer.data}
    given = {str(override.path[0]) for override in sources.overrides if override.operation != "delete"}
    unknown = checks.unknown_keys(
        data,
        raw=raw,
        from_command_line=given - in_files,
        known=known_keys,
        quiet=sources.env_keys,
        read_beside=sources.read_beside(written) - given,
        flags=flags,
    )
    in_blocks = checks.block_keys(blocks)
    problems = [*_head_problems(data.get(names.HEAD_SERVER)), *unknown.problems, *block_problems]
    if not block_problems:
        problems += reference_problems(blocks)
    problems += in_blocks.problems
    problems += checks.pairing_problems(blocks, data, environ)
    head = data.get(names.HEAD_SERVER)
    problems += setting_problems(data) + dataset_problems(blocks) + model_url_problems(blocks)
    problems += checks.masked_problems(raw, _provenance(sources, raw))
    problems += checks.port_problems(blocks, head if isinstance(head, Mapping) else {})
    try:
        checks.check_capture_settings(data)
    except ConfigError as error:
        problems.append(Problem(str(error)))
    if data.get("model_call_capture_dir") and not data.get("observability_enabled"):
        notices.append("`model_call_capture_dir` is set, but nothing is captured without `observability_enabled=true`.")
    return checks.Findings(problems, [*notices, *unknown.notices, *checks.ignored_keys(data, raw), *in_blocks.notices])


def _head_problems(head: object) -> list[Problem]:
    if not isinstance(head, Mapping):
        return [Problem(f"`{names.HEAD_SERVER}` must be a mapping with `host` and `port`, not `{head}`.")]
    port = head.get("port")
    if isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536:
        return []
    return [Problem(f"`{names.HEAD_SERVER}.port` must be a number from 1 to 65535, not `{port}`.")]


def _message(problems: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(problems))
    if len(distinct) == 1:
        return distinct[0]
    return f"{len(distinct)} problems in the configuration:\n" + "\n".join(f"  - {problem}" for problem in distinct)


def _provenance(sources: _Sources, data: Mapping[str, Any]) -> dict[str, str]:
    labels = [(layer.label, set(leaf_paths(layer.data))) for layer in sources.layers]
    given = tuple(override.key for override in sources.overrides if override.operation != "delete")
    origin: dict[str, str] = {}
    for path in leaf_paths(data):
        if any(path == key or path.startswith(f"{key}.") for key in given):
            origin[path] = COMMAND_LINE
            continue
        origin[path] = next((label for label, paths in reversed(labels) if _holds(path, paths)), _DEFAULTS)
    return origin


def _holds(path: str, paths: set[str]) -> bool:
    """Whether a layer set the value: itself, or an outer key whose interpolation brought it in."""
    while path:
        if path in paths:
            return True
        path = path.rpartition(".")[0]
    return False


def _copy(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in data.items()}

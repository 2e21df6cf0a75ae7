"""The server instances of a configuration.

<instance name>: {<kind>: {<implementation>: {entrypoint: app.py, host?, port?, num_workers?, <fields>}}}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.config.interpolation import Problem
from nemo_gym.config.names import DOMAINS, ENVIRONMENTS, LEGACY_AGENT, POLICY_MODEL, RESERVED_KEYS, RESOURCES
from nemo_gym.config.roots import COMPONENT_KINDS, find_component_directory, implementations
from nemo_gym.errors import nearest_name
from nemo_gym.records.keys import SERVER_KINDS

DEFAULT_ENTRYPOINT = "app.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBlock:
    """One server instance.

    `settings` is the implementation's block, resolved. `port` is None until one is assigned. `directory` is the folder
    of the implementation, None when no search root has it. `starts_process` is False for a block that only names a
    route.
    """

    name: str
    kind: str
    implementation: str
    settings: Mapping[str, Any]
    host: str
    port: int | None
    entrypoint: str
    directory: Path | None

    @property
    def starts_process(self) -> bool:
        """Whether this block is a server process of its own."""
        return not (self.kind == ENVIRONMENTS and self.implementation == LEGACY_AGENT)

    @property
    def label(self) -> str:
        """How messages name this instance."""
        return f"`{self.name}` ({self.kind}/{self.implementation})"


def looks_like_instance(value: object) -> bool:
    """Tell whether a top-level value has the form of a server instance: a mapping with a kind of server in it."""
    return isinstance(value, Mapping) and any(kind in value for kind in SERVER_KINDS)


def parse_server_blocks(
    data: Mapping[Any, Any], roots: Sequence[Path], *, default_host: str = "127.0.0.1"
) -> tuple[list[ServerBlock], list[Problem]]:
    """Return the instances of resolved `data` in order of appearance, and what is wrong with those that are none."""
    blocks: list[ServerBlock] = []
    problems: list[Problem] = []
    for name, value in data.items():
        if not isinstance(value, Mapping) or name in RESERVED_KEYS:
            continue
        if not looks_like_instance(value):
            if problem := almost_instance(str(name), value):
                problems.append(problem)
            continue
        found = _parse_block(str(name), value, roots, default_host)
        if isinstance(found, Problem):
            problems.append(found)
        else:
            blocks.append(found)
    return blocks, problems


def almost_instance(name: str, value: object) -> Problem | None:
    """Name the misspelled kind in `name: {resource_servers: {impl: {entrypoint: ...}}}`; None for anything else."""
    for kind, inner in value.items() if isinstance(value, Mapping) else ():
        if not isinstance(inner, Mapping):
            continue
        if any(isinstance(block, Mapping) and "entrypoint" in block for block in inner.values()):
            hint = nearest_name(str(kind), SERVER_KINDS) or f" Kinds are {_listed(SERVER_KINDS)}."
            return Problem(f"`{name}` looks like a server, but `{kind}` is no kind of server.{hint}")
    return None


def _parse_block(name: str, value: Mapping[Any, Any], roots: Sequence[Path], host: str) -> ServerBlock | Problem:
    kinds = [kind for kind in value if kind in SERVER_KINDS]
    if len(value) > 1:
        extra = ", ".join(f"`{key}`" for key in value)
        return Problem(f"server `{name}` must have exactly one kind of server in it; it has {extra}.")
    kind = kinds[0]
    inner = value[kind]
    if not isinstance(inner, Mapping) or len(inner) != 1:
        has = ", ".join(f"`{key}`" for key in inner) if isinstance(inner, Mapping) and inner else "none"
        return Problem(f"server `{name}` must have exactly one implementation under `{kind}`; it has {has}.")
    implementation, settings = next(iter(inner.items()))
    where = f"`{name}.{kind}.{implementation}`"
    if settings is None:
        settings = {}
    if not isinstance(settings, Mapping):
        return Problem(f"{where} must be a mapping of settings, not `{settings}`.")
    port = settings.get("port")
    if port is not None and not _is_port(port):
        return Problem(f"{where}: `port` must be a number from 1 to 65535, not `{port}`.")
    if kind == RESOURCES and (problem := _domain_problem(where, settings.get("domain"))):
        return problem
    entrypoint = str(settings.get("entrypoint") or DEFAULT_ENTRYPOINT)
    block = ServerBlock(
        name=name,
        kind=str(kind),
        implementation=str(implementation),
        settings=settings,
        host=str(settings.get("host") or host),
        port=port,
        entrypoint=entrypoint,
        directory=find_component_directory(str(kind), str(implementation), entrypoint, roots),
    )
    if block.starts_process and block.directory is None:
        return _no_folder(block, roots)
    return block


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65536


def _domain_problem(where: str, domain: object) -> Problem | None:
    if domain is None:
        return Problem(f"{where} needs a `domain`, one of {_listed(DOMAINS)}.")
    if domain not in DOMAINS:
        hint = nearest_name(str(domain), DOMAINS) or f" Domains are {_listed(DOMAINS)}."
        return Problem(f"{where}: `{domain}` is no domain.{hint}")
    return None


def _no_folder(block: ServerBlock, roots: Sequence[Path]) -> Problem:
    known = implementations(block.kind, roots)
    noun = COMPONENT_KINDS[block.kind]
    if block.implementation in known:
        return Problem(
            f"{block.label}: the folder of {noun} `{block.implementation}` has no file `{block.entrypoint}`; "
            "`entrypoint` names the file to run."
        )
    hint = nearest_name(block.implementation, known) or (f" Known: {_listed(known)}." if known else "")
    places = ", ".join(f"`{root / block.kind}`" for root in roots)
    return Problem(
        f"server `{block.name}`: no {noun} is called `{block.implementation}`.{hint} Looked in {places}; "
        "`--search-dir` adds a place."
    )


def references(settings: object, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (path, kind, instance name) of every reference `{type: <kind>, name: <instance>}` inside a block."""
    if isinstance(settings, Mapping):
        kind, name = settings.get("type"), settings.get("name")
        if kind in SERVER_KINDS and isinstance(name, str):
            yield path, str(kind), name
        for key, value in settings.items():
            yield from references(value, f"{path}.{key}" if path else str(key))
    elif isinstance(settings, list):
        for position, value in enumerate(settings):
            yield from references(value, f"{path}.{position}")


def reference_problems(blocks: Sequence[ServerBlock]) -> list[Problem]:
    """Return a problem for each reference to an instance that is not defined, with the nearest name."""
    kinds = {block.name: block.kind for block in blocks}
    problems: list[Problem] = []
    for block in blocks:
        for path, kind, name in references(block.settings):
            if kinds.get(name) == kind or name == "???":
                continue
            known = [other for other, other_kind in kinds.items() if other_kind == kind]
            if name in kinds:
                reason = f"`{name}` is defined under `{kinds[name]}`, not under `{kind}`."
            elif name == POLICY_MODEL:
                reason = f"no `{name}` is defined. Pick a model server with `--model-type NAME`."
            else:
                hint = nearest_name(name, known) or (f" Defined: {_listed(known)}." if known else "")
                reason = f"no {COMPONENT_KINDS[kind]} `{name}` is defined.{hint}"
            about_model = name == POLICY_MODEL and name not in kinds
            problems.append(Problem(f"{block.label}: `{path}`: {reason}", about_model=about_model))
    return list({problem.message: problem for problem in problems}.values())


def referenced(block: ServerBlock, field: str) -> str | None:
    """Return the instance name in a reference field of a block, such as `resources_server`, or None."""
    value = block.settings.get(field)
    name = value.get("name") if isinstance(value, Mapping) else None
    return name if isinstance(name, str) else None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)

"""`gym list` and `gym search`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nemo_gym.cli.output import note, print_json, print_table
from nemo_gym.cli.selection import SearchDirOption
from nemo_gym.config import component_config_files, component_search_roots
from nemo_gym.config.sources import FileReader
from nemo_gym.errors import ConfigError, UsageError, nearest_name
from nemo_gym.records.keys import SERVER_KINDS

TYPES: Mapping[str, str] = {
    "resources-servers": "resources_servers",
    "agents": "responses_api_agents",
    "models": "responses_api_models",
    "environments": "environments",
    "benchmarks": "benchmarks",
}
CATALOG: Mapping[str, str] = {"environments": "environment", "benchmarks": "benchmark"}
_FLAGS: Mapping[str, str] = {
    "resources-servers": "--resources-server",
    "agents": "--agent",
    "models": "--model-type",
    "environments": "--environment",
    "benchmarks": "--benchmark",
}


@dataclass(frozen=True, slots=True)
class Component:
    """One thing that can be named on the command line."""

    type: str
    name: str
    domain: str | None
    description: str | None
    value: str | None
    file: Path
    catalog: Mapping[str, str] | None = None
    """Of an environment or a benchmark: its kind, status and lifecycle."""

    def as_dict(self) -> dict[str, str | None]:
        """Return the entry that `--json` shows."""
        return {
            "type": self.type,
            "name": self.name,
            **(self.catalog or {}),
            "domain": self.domain,
            "description": self.description,
            "value": self.value,
            "path": str(self.file),
        }


def list_command(
    kind: Annotated[str, typer.Argument(metavar="TYPE", help=f"One of {', '.join(TYPES)}.")],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show only this one, with its details.")] = None,
    *,
    search_dir: SearchDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """List what can be started: resources servers, agents, models, environments, benchmarks."""
    found = _components(_type(kind), search_dir or ())
    if name is not None:
        chosen = [component for component in found if component.name == name]
        if not chosen:
            names = [component.name for component in found]
            raise ConfigError(f"`gym list {kind}` has no `{name}`.{nearest_name(name, names)}")
        if not as_json:
            _print_one(chosen[0])
            return 0
        found = chosen
    _print(found, as_json=as_json)
    return 0


def search_command(
    words: Annotated[
        list[str], typer.Argument(metavar="[TYPE] WORDS...", help="What to look for, in names and descriptions.")
    ],
    *,
    search_dir: SearchDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Find resources servers, agents, models, environments and benchmarks by words in their name or description."""
    kinds = [words[0]] if words[0] in TYPES and len(words) > 1 else list(TYPES)
    query = " ".join(words[1:] if len(kinds) == 1 else words).lower()
    found = [
        component for kind in kinds for component in _components(kind, search_dir or ()) if _matches(component, query)
    ]
    _print(found, as_json=as_json, with_type=len(kinds) > 1)
    return 0


def _type(kind: str) -> str:
    if kind not in TYPES:
        hint = nearest_name(kind, TYPES) or f" Types are {', '.join(f'`{name}`' for name in TYPES)}."
        raise UsageError(f"`{kind}` is nothing that can be listed.{hint}")
    return kind


def _components(kind: str, search_dirs: Iterable[str]) -> list[Component]:
    roots = component_search_roots(search_dirs)
    found = []
    for name, file in component_config_files(TYPES[kind], roots).items():
        try:
            layers = list(FileReader(roots).layers([file]))
        except (ConfigError, OSError) as error:
            note(f"Note: {kind} `{name}` cannot be read: {error}")
            continue
        blocks = [b for layer in reversed(layers) for b in _blocks(layer.data, TYPES[kind])]
        # A composition may only change a block of a file that it names; the domain is where the block is whole.
        block = next((b for b in blocks if "domain" in b), blocks[0] if blocks else None)
        if block is None and TYPES[kind] in SERVER_KINDS:
            continue  # a helper file beside the component's own
        told, catalog = block or {}, None
        if kind in CATALOG:
            told, catalog = _from_manifest(file.parent, told, kind)
        domain, description, value = (_text(told.get(key)) for key in ("domain", "description", "value"))
        found.append(Component(kind, name, domain, description, value, file, catalog))
    return found


def _from_manifest(
    folder: Path, told: Mapping[object, object], kind: str
) -> tuple[Mapping[object, object], Mapping[str, str]]:
    """Return what an entry's manifest tells, else its block, and its kind, status and lifecycle."""
    catalog = {"kind": CATALOG[kind], "status": "no-manifest", "lifecycle": "active"}
    if not (folder / "manifest.yaml").is_file():
        return told, catalog
    from nemo_gym.cli.catalog import manifest_of  # the types of servers, only for a manifest

    try:
        manifest = manifest_of(folder)
    except ConfigError as error:
        note(f"Note: {error}")
        return told, {**catalog, "status": "invalid-manifest"}
    assert manifest is not None
    catalog |= {"kind": manifest.kind, "lifecycle": manifest.lifecycle}
    catalog["status"] = "experimental" if manifest.experimental else "stable"
    return {**told, "domain": manifest.domain.value, "description": manifest.description}, catalog


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _blocks(data: Mapping[object, object], kind: str) -> Iterable[Mapping[object, object]]:
    wanted = kind if kind in SERVER_KINDS else "resources_servers"
    for instance in data.values():
        inner = instance.get(wanted) if isinstance(instance, Mapping) else None
        yield from (
            (block for block in inner.values() if isinstance(block, Mapping)) if isinstance(inner, Mapping) else ()
        )


def _matches(component: Component, query: str) -> bool:
    text = " ".join(filter(None, (component.name, component.domain, component.description, component.value))).lower()
    words = text.replace("_", " ").split()
    return all(word in text or difflib.get_close_matches(word, words, n=1, cutoff=0.8) for word in query.split())


def _print(found: list[Component], *, as_json: bool, with_type: bool = False) -> None:
    if as_json:
        print_json([component.as_dict() for component in found])
        return
    if not found:
        note("Nothing found.")
        return
    more = () if with_type or found[0].catalog is None else ("kind", "status", "lifecycle")
    columns = ("type",) * with_type + ("name", *more, "domain", "description")
    rows = [
        (c.type,) * with_type + (c.name, *((c.catalog or {}).get(key) for key in more), c.domain, c.description)
        for c in found
    ]
    print_table(columns, rows, wrapped="description")


def _print_one(component: Component) -> None:
    lines = [
        component.name,
        *[text for text in (component.description, component.value) if text],
        f"Configuration: {component.file}",
        f"Use it with: gym env start {_FLAGS[component.type]} {component.name}",
    ]
    print("\n".join(lines))

"""Where components and named files are searched: the extra roots, the working directory, the shipped components.

The first root that has a thing wins, so a user's component shadows a shipped one of the same name. Nothing here reads
YAML; importing this module costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from nemo_gym.errors import ConfigFileNotFoundError, nearest_name
from nemo_gym.records.keys import EXTRA_ROOTS_ENV

INSTALL_ROOT = Path(__file__).resolve().parent.parent / "builtin"
"""The root of the shipped components."""

COMPONENT_KINDS: Mapping[str, str] = {
    "resources_servers": "resources server",
    "responses_api_models": "model server",
    "responses_api_agents": "agent",
    "environment_servers": "environment server",
    "environments": "environment",
    "benchmarks": "benchmark",
}
"""Folder name of each kind of component, and what a person calls one of them."""

_COMPOSITIONS = ("environments", "benchmarks")
_TOMBSTONE = ".nemo_gym_tombstone"
"""A file that marks an environment or a benchmark as retired: it is listed no more, and still runs by its name."""


def extra_roots(search_dirs: Iterable[str | Path] = (), environ: Mapping[str, str] | None = None) -> list[Path]:
    """Return `search_dirs` and then the entries of `NEMO_GYM_EXTRA_ROOTS`, absolute, in order.

    Raises `ConfigFileNotFoundError` for a search directory that is none; the variable may outlive a folder.
    """
    environment = os.environ if environ is None else environ
    named = [Path(directory) for directory in search_dirs]
    for directory in named:
        if not directory.expanduser().is_dir():
            raise ConfigFileNotFoundError(f"search directory `{directory}` (`--search-dir`) is no folder.")
    named += [Path(part) for part in environment.get(EXTRA_ROOTS_ENV, "").split(os.pathsep) if part]
    return [path.expanduser().absolute() for path in named]


def component_search_roots(
    search_dirs: Iterable[str | Path] = (),
    *,
    environ: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> list[Path]:
    """Return every root in search order: extra roots, working directory, shipped components. No duplicates."""
    here = Path(cwd) if cwd is not None else Path.cwd()
    roots = [*extra_roots(search_dirs, environ), here.absolute(), INSTALL_ROOT]
    return list(dict.fromkeys(roots))


def resolve_under_roots(
    path: str | Path, roots: Sequence[Path], *, validator: Callable[[Path], bool] | None = None
) -> Path:
    """Return the first existing place of a relative path under `roots`; an absolute path is returned unchanged.

    With `validator`, the first place for which it holds. When there is none: the path under the first root, which may
    not exist.
    """
    wanted = Path(path).expanduser()
    if wanted.is_absolute():
        return wanted
    accept = validator or Path.exists
    for root in roots:
        if accept(root / wanted):
            return root / wanted
    return roots[0] / wanted if roots else wanted.absolute()


def find_file(path: str | Path, roots: Sequence[Path], *, what: str = "file") -> Path:
    """Return the existing file that `path` names.

    Raises `ConfigFileNotFoundError` listing every place that was tried.
    """
    found = resolve_under_roots(path, roots, validator=Path.is_file)
    if found.is_file():
        return found
    tried = [found] if Path(path).expanduser().is_absolute() else [root / Path(path).expanduser() for root in roots]
    if folder := next((place for place in tried if place.is_dir()), None):
        raise ConfigFileNotFoundError(f"{what} `{path}` is a folder: `{folder}`. Name a file.")
    places = ", ".join(f"`{place}`" for place in tried)
    raise ConfigFileNotFoundError(f"{what} `{path}` does not exist. Looked at {places}.")


def component_config_files(kind: str, roots: Sequence[Path]) -> dict[str, Path]:
    """Return the configuration files of all components of one kind, by the name that selects each.

    The name is the folder's, or `folder/flavour` for a further file in the folder's `configs`. Earlier roots win.
    """
    found: dict[str, Path] = {}
    for root in roots:
        base = root / kind
        if not base.is_dir():
            continue
        for folder in sorted(path for path in base.iterdir() if path.is_dir()):
            for name, file in _files_of(kind, folder):
                found.setdefault(name, file)
    return dict(sorted(found.items()))


def _files_of(kind: str, folder: Path) -> list[tuple[str, Path]]:
    if kind in _COMPOSITIONS:
        if (folder / _TOMBSTONE).exists():
            return []
        flavours = sorted(folder.glob("config*.yaml"))
        names = {file: folder.name + "/" * bool(flavour := file.stem[7:]) + flavour for file in flavours}
    else:
        flavours = sorted((folder / "configs").glob("*.yaml"))
        names = {file: folder.name if file.stem == folder.name else f"{folder.name}/{file.stem}" for file in flavours}
    return [(names[file], file) for file in flavours]


def find_component(kind: str, name: str, roots: Sequence[Path]) -> Path:
    """Return the configuration file that `NAME` or `NAME/FLAVOUR` selects.

    Raises `ConfigFileNotFoundError` with the nearest known name.
    """
    for root in roots:
        folder, _, flavour = name.partition("/")
        if kind in _COMPOSITIONS:
            file = root / kind / folder / (f"config_{flavour}.yaml" if flavour else "config.yaml")
        else:
            file = root / kind / folder / "configs" / f"{flavour or folder}.yaml"
        if name and file.is_file():
            return file
    known = component_config_files(kind, roots)
    if without := _folder_without_file(kind, name, roots):
        raise ConfigFileNotFoundError(f"{COMPONENT_KINDS[kind]} `{name}`: {without}{_flavours(name, known)}")
    hint = nearest_name(name, known)
    if not hint:
        hint = f" Known: {', '.join(f'`{item}`' for item in known)}." if known else " None is installed."
    places = ", ".join(f"`{root / kind}`" for root in roots)
    raise ConfigFileNotFoundError(f"no {COMPONENT_KINDS[kind]} is called `{name}`.{hint} Looked in {places}.")


def _folder_without_file(kind: str, name: str, roots: Sequence[Path]) -> str | None:
    """Say which file is missing in a folder that is there."""
    if not name or "/" in name or name in (".", ".."):
        return None
    folder = next((root / kind / name for root in roots if (root / kind / name).is_dir()), None)
    if folder is None:
        return None
    file = "config.yaml" if kind in _COMPOSITIONS else f"configs/{name}.yaml"
    return f"its folder `{folder}` has no `{file}`, the YAML file that says what is started."


def _flavours(name: str, known: Iterable[str]) -> str:
    found = [item for item in known if item.partition("/")[0] == name]
    return f" It has {', '.join(f'`{item}`' for item in found)}." if found else ""


def find_component_directory(kind: str, implementation: str, entrypoint: str, roots: Sequence[Path]) -> Path | None:
    """Return the folder that holds a server's entry file, or None."""
    for root in roots:
        directory = root / kind / implementation
        if (directory / entrypoint).is_file():
            return directory
    return None


def implementations(kind: str, roots: Sequence[Path]) -> list[str]:
    """Return the names of the folders of one kind that hold an `app.py`, sorted, without duplicates."""
    found = {path.parent.name for root in roots for path in (root / kind).glob("*/app.py")}
    return sorted(found)

"""Reads the YAML files of a configuration, with what they include, in merge order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_gym.config.names import CONFIG_PATHS
from nemo_gym.config.roots import find_file
from nemo_gym.errors import ConfigError, ConfigFileNotFoundError

ENV_FILE = "env.yaml"


@dataclass(frozen=True, slots=True)
class Layer:
    """One source of settings. `label` is what provenance says; `data` is unresolved."""

    label: str
    data: dict[Any, Any]


@dataclass(slots=True)
class FileReader:
    """Reads files relative to `roots` and remembers which were named twice."""

    roots: Sequence[Path]
    notices: list[str] = field(default_factory=list)
    _seen: set[Path] = field(default_factory=set)

    def layers(self, paths: Iterable[str | Path], *, included_by: tuple[Path, ...] = ()) -> Iterator[Layer]:
        """Yield the layers of `paths`, lowest first: a file's includes come before the file, siblings in order."""
        for path in paths:
            file = self._locate(path, included_by)
            if file in included_by:
                chain = " -> ".join(f"`{step}`" for step in (*included_by, file))
                raise ConfigError(f"`{file}` includes itself: {chain}.")
            if file in self._seen:
                self.notices.append(f"`{file}` is named twice; its settings are merged again at the later place.")
            self._seen.add(file)
            data = read_yaml(file)
            includes = path_list(data.pop(CONFIG_PATHS, None), f"`{CONFIG_PATHS}` in `{file}`")
            yield from self.layers(includes, included_by=(*included_by, file))
            yield Layer(str(file), data)

    def _locate(self, path: str | Path, included_by: tuple[Path, ...]) -> Path:
        # A file may also name its neighbours; the roots come first, as for every other file.
        places = [*self.roots, included_by[-1].parent] if included_by else list(self.roots)
        try:
            return find_file(path, places, what="configuration file").resolve()
        except ConfigFileNotFoundError as error:
            if not included_by:
                raise
            raise ConfigFileNotFoundError(f"{error} It is included by `{included_by[-1]}`.") from error


def path_list(value: object, what: str) -> list[str]:
    """Return a list of paths from a YAML value: null, one text, or a list. Raises `ConfigError` for anything else."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return list(value)
    raise ConfigError(f"{what} must be a list of file paths, not `{value}`.")


def read_yaml(file: Path) -> dict[Any, Any]:
    """Return the mapping in a YAML file; an empty file is an empty mapping.

    Raises `ConfigError` with file, line and column when it is not YAML, not a mapping or not readable.
    """
    try:
        loaded = OmegaConf.load(file)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"`{file}`{where}: not YAML: {error.problem or error.context}.") from error
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ConfigError(f"`{file}`: not YAML: {_first_line(error)}.") from error
    except OSError as error:
        raise ConfigError(f"`{file}` cannot be read: {error.strerror or error}.") from error
    if not isinstance(loaded, DictConfig) and len(loaded) == 0:
        return {}
    if not isinstance(loaded, DictConfig) or _is_text(file, loaded):
        raise ConfigError(f"`{file}` holds no mapping of keys to values at its top; a line is `key: value`.")
    return plain(loaded)


def _is_text(file: Path, loaded: DictConfig) -> bool:
    """Return whether a file is a text without a key, such as `key=value`, which the library takes for a key of null."""
    if len(loaded) != 1 or plain(loaded) != dict.fromkeys(plain(loaded)):
        return False
    return isinstance(yaml.compose(file.read_bytes(), Loader=yaml.SafeLoader), yaml.ScalarNode)


def plain(config: DictConfig) -> dict[Any, Any]:
    """Return the unresolved content of a config as dicts and lists."""
    content = OmegaConf.to_container(config, resolve=False)
    return content if isinstance(content, dict) else {}


def merge(layers: Iterable[Mapping[Any, Any]]) -> dict[Any, Any]:
    """Merge unresolved mappings, later wins: mappings are merged key by key, everything else is replaced."""
    given = [dict(layer) for layer in layers]
    if clash := _clash(given):
        raise ConfigError(f"`{clash}` is a list at one place and a mapping at another; they cannot be merged.")
    try:
        merged = OmegaConf.merge({}, *[OmegaConf.create(layer) for layer in given])
    except OmegaConfBaseException as error:
        raise ConfigError(f"the configuration does not fit together: {_first_line(error)}.") from error
    return plain(merged) if isinstance(merged, DictConfig) else {}


def leaf_paths(data: object, prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every value that is no non-empty mapping."""
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from leaf_paths(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix


def _clash(layers: Sequence[Mapping[Any, Any]]) -> str | None:
    """Return the path of a list that meets a mapping, which cannot be merged, or None."""
    kinds: dict[str, type] = {}
    for layer in layers:
        for path, kind in _containers(layer, ""):
            if kinds.setdefault(path, kind) is not kind:
                return path
    return None


def _containers(node: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, type]]:
    for key, value in node.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            yield path, dict
            yield from _containers(value, path)
        elif isinstance(value, list):
            yield path, list


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".")

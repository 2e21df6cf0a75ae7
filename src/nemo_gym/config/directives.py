"""Blocks made from other blocks: `_inherit_from`, `_copy`, `_delete_key`, and their interpolation spellings.

    my_agent: {_inherit_from: base_agent, ...}     move `base_agent` here, then merge the local keys over it
    my_agent: {_copy: base_agent, ...}             the same; `base_agent` stays
    my_agent: ${inherit_from:base_agent}           the same as a block with nothing but the directive
    _delete_key: a,b                               drop keys: of what was inherited, else of the block itself

Works on unresolved plain data, so interpolations inside a moved block are resolved at its new place.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from nemo_gym.config.names import COPY, DELETE_KEY, INHERIT_FROM
from nemo_gym.config.sources import leaf_paths, merge
from nemo_gym.errors import ConfigError, nearest_name

_SPELLED_AS_INTERPOLATION = re.compile(r"\$\{\s*(inherit_from|copy)\s*:\s*([^{}]+?)\s*\}\Z")


def apply_directives(data: dict[Any, Any]) -> dict[Any, Any]:
    """Return `data` with every directive carried out. Raises `ConfigError` for a source that does not exist."""
    work = _Directives(copy.deepcopy(data))
    return work.run()


class _Directives:
    def __init__(self, data: dict[Any, Any]) -> None:
        self.data = data
        self.moved: list[str] = []
        self.open: list[str] = []

    def run(self) -> dict[Any, Any]:
        expanded = {key: self.expand(value, str(key)) for key, value in self.data.items()}
        for path in self.moved:
            _remove(expanded, path)
        return expanded

    def expand(self, value: Any, path: str) -> Any:
        if isinstance(value, str) and (spelled := _SPELLED_AS_INTERPOLATION.match(value)):
            value = {INHERIT_FROM if spelled[1] == "inherit_from" else COPY: spelled[2]}
        if isinstance(value, list):
            return [self.expand(item, f"{path}.{position}") for position, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        local = {key: inner for key, inner in value.items() if key not in (INHERIT_FROM, COPY, DELETE_KEY)}
        drop = _names(value.get(DELETE_KEY))
        sources = [(kind, name) for kind in (INHERIT_FROM, COPY) for name in _names(value.get(kind))]
        if sources:
            inherited = merge([self.source(name, kind, path) for kind, name in sources])
            for name in drop:
                _remove(inherited, name)
            local = merge([inherited, local])
        else:
            for name in drop:
                _remove(local, name)
        return {key: self.expand(inner, f"{path}.{key}") for key, inner in local.items()}

    def source(self, name: str, kind: str, path: str) -> dict[Any, Any]:
        if name in self.open:
            raise ConfigError(f"`{path}` takes its content from `{name}`, which leads back to itself.")
        found = _get(self.data, name)
        if not isinstance(found, dict):
            known = {known.rsplit(".", depth)[0] for known in leaf_paths(self.data) for depth in range(4)}
            problem = "is no block" if found is not None else "does not exist"
            raise ConfigError(f"`{path}` has `{kind}: {name}`, but `{name}` {problem}.{nearest_name(name, known)}")
        if kind == INHERIT_FROM:
            self.moved.append(name)
        self.open.append(name)
        try:
            expanded = self.expand(found, name)
        finally:
            self.open.pop()
        return expanded if isinstance(expanded, dict) else {}


def _names(value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, list):
        return [str(part) for part in value]
    raise ConfigError(f"a directive needs the name of a block or key, not `{value}`.")


def _get(data: Mapping[Any, Any], path: str) -> Any:
    node: Any = data
    for part in path.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return None
        node = node[part]
    return node


def _remove(data: dict[Any, Any], path: str) -> None:
    *parents, last = path.split(".")
    node: Any = data
    for part in parents:
        node = node.get(part) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node.pop(last, None)

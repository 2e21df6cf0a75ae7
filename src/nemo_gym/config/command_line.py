"""Applies the overrides of a command line to unresolved plain data."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from nemo_gym.config.checks import flag_hint, is_known_top_level_key
from nemo_gym.config.names import KNOWN_TOP_LEVEL_KEYS
from nemo_gym.config.overrides import Override
from nemo_gym.config.sources import leaf_paths
from nemo_gym.errors import ConfigError, nearest_name

_ABSENT = object()


def apply_overrides(
    data: dict[Any, Any],
    overrides: Sequence[Override],
    *,
    known: Collection[str] = (),
    flags: Collection[str] = (),
    final: bool,
) -> list[Override]:
    """Carry `overrides` out in order, changing `data`.

    Returns those that need a key that does not exist: it may come into being when blocks are inherited. When `final`,
    they raise `ConfigError` with the nearest name instead. A `+` that repeats another `+` raises too.
    """
    added: list[Override] = []
    waiting: list[Override] = []
    for override in overrides:
        exists = _get(data, override.path) is not _ABSENT
        if override.operation == "add":
            _refuse_second_add(override, added)
            added.append(override)
        elif override.operation == "delete" and not exists:
            if final:
                raise ConfigError(
                    f"override `{override.token}`: there is no key `{override.key}`.{_near(override, data)}"
                )
            waiting.append(override)
            continue
        elif override.operation == "set" and not (exists or is_known_top_level_key(str(override.path[0]), known)):
            if final:
                hint = flag_hint(override.key, flags)
                raise ConfigError(
                    f"override `{override.token}`: there is no key `{override.key}`."
                    + (hint or f"{_near(override, data, known)} To add a key, write `+{override.token}`.")
                )
            waiting.append(override)
            continue
        if override.operation == "delete":
            _delete(data, override)
        else:
            _set(data, override)
    return waiting


def _refuse_second_add(override: Override, added: Sequence[Override]) -> None:
    for earlier in added:
        shorter = min(len(earlier.path), len(override.path))
        if earlier.path[:shorter] != override.path[:shorter]:
            continue
        if len(earlier.path) == len(override.path):
            overlap = not (isinstance(earlier.value, dict) and isinstance(override.value, dict))
        else:
            outer, inner = sorted((earlier, override), key=lambda item: len(item.path))
            rest = inner.path[len(outer.path) :]
            overlap = not isinstance(outer.value, dict) or _get(outer.value, rest) is not _ABSENT
        if overlap:
            raise ConfigError(
                f"override `{override.token}`: `{override.key}` was already given by `{earlier.token}`. "
                f"Write `++{override.token.lstrip('+')}` to replace it."
            )


def _near(override: Override, data: dict[Any, Any], known: Collection[str] = ()) -> str:
    paths = {path.rsplit(".", depth)[0] for path in leaf_paths(data) for depth in range(4)}
    return nearest_name(override.key, [*paths, *known, *KNOWN_TOP_LEVEL_KEYS])


def _get(node: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        if isinstance(node, dict):
            node = node.get(_key(node, part), _ABSENT)
        elif isinstance(node, list) and _position(node, part) is not None:
            node = node[int(part)]
        else:
            return _ABSENT
    return node


def _key(node: dict[Any, Any], part: str | int) -> Any:
    """YAML keys may be numbers, the command line writes text."""
    if part in node or not isinstance(part, str) or not part.removeprefix("-").isdecimal():
        return part
    return int(part) if int(part) in node else part


def _position(node: list[Any], part: str | int) -> int | None:
    position = int(part) if isinstance(part, int) or part.isdecimal() else -1
    return position if 0 <= position < len(node) else None


def _delete(data: dict[Any, Any], override: Override) -> None:
    parent = _get(data, override.path[:-1])
    if isinstance(parent, dict):
        del parent[_key(parent, override.path[-1])]
    else:
        del parent[int(override.path[-1])]


def _set(data: dict[Any, Any], override: Override) -> None:
    node: Any = data
    for depth, part in enumerate(override.path):
        last = depth == len(override.path) - 1
        if isinstance(node, list):
            position = _position(node, part)
            if position is None:
                raise ConfigError(
                    f"override `{override.token}`: the list has {len(node)} entries; there is no `{part}`."
                )
            if last:
                node[position] = override.value
            node = node[position]
            continue
        key = _key(node, part)
        if last:
            node[key] = _merged(node.get(key), override.value)
            return
        if node.get(key) is None:
            node[key] = {}
        node = node[key]
        if isinstance(node, str) and node.startswith("${"):
            raise ConfigError(f"override `{override.token}`: `{part}` is taken from `{node}`; set the value there.")
        if not isinstance(node, (dict, list)):
            raise ConfigError(f"override `{override.token}`: `{part}` is `{node}`, which has no keys inside.")


def _merged(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}

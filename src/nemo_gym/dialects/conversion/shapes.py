"""Reading JSON whose shape nobody has checked: a value of another kind counts as absent."""

from __future__ import annotations

from typing import Any

from nemo_gym.records.codec import JsonObject


def as_object(value: Any) -> JsonObject:
    """Return `value` when it is an object, else {}."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return `value` when it is a list, else []."""
    return value if isinstance(value, list) else []


def objects(value: Any) -> list[JsonObject]:
    """Return the objects in `value` when it is a list, else []."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_text(value: Any) -> str:
    """Return `value` when it is a string, else ""."""
    return value if isinstance(value, str) else ""


def as_number(value: Any) -> int:
    """Return `value` when it is an integer, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0

"""Usage of a whole conversation: the sum over the model responses that finished (A22)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

_COUNTS = ("input_tokens", "output_tokens", "total_tokens")
_DETAILS = (("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens"))


class UsageSum:
    """Adds up usages. A failed call adds nothing; one finished response without usage makes the whole sum unknown."""

    def __init__(self) -> None:
        self._counts: dict[str, int] | None = dict.fromkeys(_COUNTS, 0)
        self._details: dict[tuple[str, str], int | None] = dict.fromkeys(_DETAILS, 0)

    def add(self, usage: Any) -> None:
        """Add the usage of one finished response."""
        if self._counts is None:
            return
        if not isinstance(usage, Mapping) or not all(_is_count(usage.get(key)) for key in _COUNTS[:2]):
            self._counts = None
            return
        total = usage.get("total_tokens")
        if not _is_count(total):
            total = usage["input_tokens"] + usage["output_tokens"]
        for key, value in zip(_COUNTS, (usage["input_tokens"], usage["output_tokens"], total), strict=True):
            self._counts[key] += value
        for group, key in _DETAILS:
            known = (usage.get(group) or {}).get(key) if isinstance(usage.get(group), Mapping) else None
            before = self._details[group, key]
            self._details[group, key] = before + known if before is not None and _is_count(known) else None

    def total(self) -> dict[str, Any] | None:
        """Return the sum in the Responses shape; None when it is unknown; zeros when no response finished."""
        if self._counts is None:
            return None
        return {**self._counts, **{group: {key: self._details[group, key]} for group, key in _DETAILS}}


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

"""Ids and times for objects whose source has none: the one thing in a conversion that its input does not decide.

A Messages answer has no creation time and a Response must have one, so that a conversion takes a `Mint`; a caller that
needs the same result twice passes its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _random_hex() -> str:
    return uuid.uuid4().hex


def _unix_now() -> float:
    return datetime.now(UTC).timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mint:
    """Where new ids and the creation time come from; `now` returns UTC Unix seconds."""

    random_hex: Callable[[], str] = _random_hex
    now: Callable[[], float] = _unix_now

    def new_id(self, prefix: str) -> str:
        """Return `<prefix>_<hex>`."""
        return f"{prefix}_{self.random_hex()}"


SYSTEM_MINT = Mint()

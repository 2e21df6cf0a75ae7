"""How messages name the rows that they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MOST_LISTED = 10


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Rows by their line in `file`, counted from 1; without a file by their position in a list, counted from 0."""

    file: str | Path | None = None

    def one(self, place: int) -> str:
        """Name one row."""
        return f"row {place}" if self.file is None else f"`{self.file}` line {place}"

    def both(self, first: int, second: int) -> str:
        """Name two rows."""
        return f"rows {first} and {second}" if self.file is None else f"`{self.file}` lines {first} and {second}"

    def many(self, places: Sequence[int]) -> str:
        """Name up to ten rows, and say how many more there are."""
        more = len(places) - _MOST_LISTED
        listed = ", ".join(map(str, places[:_MOST_LISTED])) + (f" and {more} more" if more > 0 else "")
        return f"rows {listed}" if self.file is None else f"`{self.file}` lines {listed}"


POSITIONS: Final = RowPlaces()

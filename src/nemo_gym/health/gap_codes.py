"""Which gap codes a record carries, and in how many records each one stands. Pure.

Codes come from agents: any text may be one. Those of the registry are few and all kept; of the others so many, and so
much of each, that a run of any records can be counted in little memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from nemo_gym.records import evidence, keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.gaps import GAP_REGISTRY

UNKNOWN_KEPT = 100
"""So many distinct codes that are not registered are kept, of a record and of a run."""
LONGEST_CODE = 100
"""Characters of a code that are kept."""
OTHER = "other"
"""Stands for every further code."""

_SOURCES = (keys.TRAJECTORY, keys.MODEL_CALL_CAPTURE, keys.AGENT_OBSERVATIONS)


def codes_of(record: JsonObject, trajectory: evidence.TrajectoryRecord | None) -> tuple[str, ...]:
    """Return the distinct gap codes of a record, in the order in which they stand.

    They are the trajectory's, which has those of its sources. Without a usable one they are what can be read of the
    trajectory, the capture and the observations; what is no gap with a code is passed over, for nobody checked it.
    """
    if trajectory is not None:
        return _kept([gap.code for gap in trajectory.gaps]) if trajectory.gaps else ()
    return _kept(_legible(record))


def _legible(record: JsonObject) -> Iterator[str]:
    for key in _SOURCES:
        part = record.get(key)
        gaps = part.get("gaps") if isinstance(part, dict) else None
        for gap in gaps if isinstance(gaps, list) else ():
            code = gap.get("code") if isinstance(gap, dict) else None
            if isinstance(code, str):
                yield code


def _kept(codes: Iterable[str]) -> tuple[str, ...]:
    kept: dict[str, None] = {}
    unknown = 0
    for given in codes:
        code = given if len(given) <= LONGEST_CODE else f"{given[: LONGEST_CODE - 3]}..."
        if not code or code in kept:
            continue
        if code not in GAP_REGISTRY and code != OTHER:
            unknown += 1
            if unknown > UNKNOWN_KEPT:
                kept[OTHER] = None
                continue
        kept[code] = None
    return tuple(kept)


class GapCounts:
    """In how many records each code stands.

    The first unknown codes, in the order of the input, are counted by name; a record with any further one counts once
    as `other`, which is also where a code of this very name is counted.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._unknown = 0

    def add(self, codes: tuple[str, ...]) -> None:
        """Count one record's distinct codes."""
        others = False
        for code in codes:
            if code == OTHER:
                others = True
            elif code in GAP_REGISTRY or code in self._counts:
                self._counts[code] += 1
            elif self._unknown < UNKNOWN_KEPT:
                self._unknown += 1
                self._counts[code] = 1
            else:
                others = True
        if others:
            self._counts[OTHER] += 1

    def by_code(self) -> dict[str, int]:
        """Return the number of records by code, sorted by code."""
        return dict(sorted(self._counts.items()))


__all__ = ["LONGEST_CODE", "OTHER", "UNKNOWN_KEPT", "GapCounts", "codes_of"]

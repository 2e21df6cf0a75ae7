"""Lists of gaps: adding, and dropping the ones that a new join will find again."""

from __future__ import annotations

from collections.abc import Iterable

from nemo_gym.records.evidence import ObservationGap
from nemo_gym.records.gaps import GAP_REGISTRY, OWNERSHIP_UNAVAILABLE, REFERENCE_CODES, GapSpec

CAPTURE_PLACE = "capture:"
"""Begins the detail of an unowned call's gap."""

COMPACTION_PLACE = "model_calls:"
"""Begins the detail of a gap about the calls spent on a compaction."""


def without_repeats(gaps: Iterable[ObservationGap]) -> list[ObservationGap]:
    """Return the gaps in order, each (code, invocation, detail) once."""
    return list(dict.fromkeys(gaps))


def producer_gaps(gaps: Iterable[ObservationGap]) -> list[ObservationGap]:
    """Return the gaps that no join wrote: those of a former join are found again if they still hold."""
    return [gap for gap in gaps if not _written_by_join(gap)]


def _written_by_join(gap: ObservationGap) -> bool:
    if gap.code in REFERENCE_CODES:
        return True
    if gap.code != OWNERSHIP_UNAVAILABLE or gap.detail is None:
        return False
    return gap.detail.startswith(CAPTURE_PLACE if gap.invocation_id is None else COMPACTION_PLACE)


__all__ = ["CAPTURE_PLACE", "COMPACTION_PLACE", "GAP_REGISTRY", "GapSpec", "producer_gaps", "without_repeats"]

"""How long rollouts take, and whether enough time is left to start another."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Sequence

_SAMPLES_FOR_MARGIN = 5
_MARGIN_QUANTILE = 0.75
_TOLERATED_GROWTH = 0.02


class DispatchLatencyTracker:
    """Durations of the rollouts that finished, in seconds, and how many were refused for lack of time."""

    def __init__(self) -> None:
        self._seconds = array("d")
        self._ordered: list[float] = []
        self._drained = 0

    def record(self, seconds: float) -> None:
        """Remember a duration; zero and negative ones are ignored."""
        if seconds > 0:
            self._seconds.append(seconds)

    def record_drained(self) -> None:
        """Count a rollout that was not started."""
        self._drained += 1

    @property
    def drained(self) -> int:
        """How many rollouts were not started."""
        return self._drained

    def quantile(self, q: float) -> float | None:
        """Return the linearly interpolated quantile in seconds, None without observations."""
        return _quantile(sorted(self._seconds), q)

    def drain_margin(self, configured: float | None) -> float | None:
        """Return the margin in seconds: the configured one, else p75 once five rollouts finished, else None."""
        if configured is not None:
            return configured
        count = len(self._seconds)
        if count < _SAMPLES_FOR_MARGIN:
            return None
        # Asked before each rollout: sorting all durations each time would make a long run slower and slower.
        if count - len(self._ordered) > len(self._ordered) * _TOLERATED_GROWTH:
            self._ordered = sorted(self._seconds)
        return _quantile(self._ordered, _MARGIN_QUANTILE)

    def summary(self) -> str:
        """Return median, p90, p99 and maximum, their sum, and how many were not started."""
        if not self._seconds:
            return f"no rollout finished; {self._drained} not started"
        parts = [
            f"{name} {_duration(self.quantile(q) or 0.0)}"
            for name, q in (("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
        ]
        drained = f"; {self._drained} not started for lack of time" if self._drained else ""
        return f"rollout time {', '.join(parts)}; {_duration(sum(self._seconds))} summed over rollouts{drained}"


def _quantile(ordered: Sequence[float], q: float) -> float | None:
    if not ordered:
        return None
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


class DispatchBudget:
    """Says whether a rollout may still start; the clock runs from construction. `seconds=None` never refuses."""

    def __init__(
        self,
        seconds: float | None,
        *,
        margin: float | None,
        latencies: DispatchLatencyTracker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deadline = None if seconds is None else clock() + seconds
        self._margin = margin
        self._latencies = latencies
        self._clock = clock

    def refusal(self) -> str | None:
        """Return why a rollout must not start any more, or None when it may."""
        if self._deadline is None:
            return None
        remaining = self._deadline - self._clock()
        margin = self._latencies.drain_margin(self._margin) or 0.0
        if remaining > 0 and remaining >= margin:
            return None
        return f"not started: {max(remaining, 0.0):.1f} s of the dispatch budget remain, the margin is {margin:.1f} s"

"""One timer for the deadlines of many things that nearly always end before theirs."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol


class Expiring(Protocol):
    """Something with a deadline."""

    settled: bool
    """Whether it has ended: its deadline means nothing any more."""

    def expire(self) -> None:
        """Called at the deadline, or later, or once it is settled: then there is nothing to do."""


class SharedTimer:
    """The deadlines of one event loop, `after_s` seconds each; a timer for each would be started and stopped for it."""

    __slots__ = ("_after_s", "_expiring", "_timer", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, after_s: float) -> None:
        self.loop, self._after_s = loop, after_s
        self._expiring: deque[tuple[float, Expiring]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, item: Expiring) -> None:
        """Have `item` expire unless it is settled before its deadline."""
        expiring = self._expiring
        while expiring and expiring[0][1].settled:
            expiring.popleft()
        expiring.append((self.loop.time() + self._after_s, item))
        if self._timer is None:
            self._timer = self.loop.call_later(self._after_s, self._ring)

    @property
    def waiting(self) -> int:
        """How many deadlines it keeps."""
        return len(self._expiring)

    def _ring(self) -> None:
        expiring, now = self._expiring, self.loop.time()
        while expiring and (expiring[0][1].settled or expiring[0][0] <= now):
            expiring.popleft()[1].expire()
        self._timer = self.loop.call_at(expiring[0][0], self._ring) if expiring else None

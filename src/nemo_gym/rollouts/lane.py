"""Blocking work of many rollouts: short work at once, other work in one thread at a time.

Handing work to a thread and sharing the interpreter with it costs more than short work itself, so that is done where
it is asked for, unless it has turned out slow: then the file system may be a remote one, and for a while all of it goes
to the thread, in batches. While a batch is being done the next one gathers, so the cost of handing over is shared.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_MOST_AT_ONCE = 32
SLOW_S = 0.02
SLOW_RUNS = 3
THREAD_AFTER_SLOW_S = 2.0
"""How long everything goes to the thread after so many slow runs in a row."""


@dataclass(slots=True, eq=False)
class _Job:
    work: Callable[[], Any]
    done: asyncio.Future[Any]
    begun: bool = False


class Lane:
    """Runs blocking work in order of arrival. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[_Job] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._slow = 0
        self._at_once_from = 0.0

    async def run(self, work: Callable[[], Any], *, short: bool = False) -> Any:
        """Return what `work` returns, or raise what it raises. `short` work may be done at once.

        Cancelled work that has not begun is left out; work that has begun is waited for, so that none goes on behind
        the back of a caller who was told that everything has ended.
        """
        if short and self.free:
            return self.now(work)
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future())
        self._waiting.append(job)
        if self._worker is None:
            self._worker = loop.create_task(self._drain(), name="gym-lane")
        try:
            return await asyncio.shield(job.done)
        except asyncio.CancelledError:
            if job.begun:
                await asyncio.wait({job.done})
            if not job.done.cancel() and not job.done.cancelled():
                job.done.exception()  # nobody is left to see it
            raise

    @property
    def free(self) -> bool:
        """Whether short work may be done at once: nothing came before it, and such work has not been slow."""
        return self._worker is None and time.monotonic() >= self._at_once_from

    def now(self, work: Callable[[], Any]) -> Any:
        """Do short work here, while `free`."""
        begun = time.monotonic()
        try:
            return work()
        finally:
            ended = time.monotonic()
            self._slow = self._slow + 1 if ended - begun > SLOW_S else 0
            if self._slow == SLOW_RUNS:
                self._slow, self._at_once_from = 0, ended + THREAD_AFTER_SLOW_S

    async def _drain(self) -> None:
        batch: list[_Job] = []
        try:
            while self._waiting:
                batch = []
                while self._waiting and len(batch) < _MOST_AT_ONCE:
                    job = self._waiting.popleft()
                    if not job.done.done():
                        job.begun = True
                        batch.append(job)
                for job, (value, error) in zip(batch, await asyncio.to_thread(_do, batch), strict=True):
                    if job.done.done():
                        continue
                    if error is None:
                        job.done.set_result(value)
                    else:
                        job.done.set_exception(error)
        finally:
            self._worker = None
            for job in (*batch, *self._waiting):  # some are left only when the loop itself ends
                job.done.cancel()


def _do(batch: list[_Job]) -> list[tuple[Any, BaseException | None]]:
    outcomes: list[tuple[Any, BaseException | None]] = []
    for job in batch:
        try:
            outcomes.append((job.work(), None))
        except Exception as error:  # noqa: BLE001 - it is raised again where the work was asked for
            outcomes.append((None, error))
    return outcomes

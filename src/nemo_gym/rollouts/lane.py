"""Blocking work of many rollouts, done in one thread at a time and handed over in batches.

One hand-over to a thread for each rollout costs more than the work itself, and several busy threads only take turns.
While a batch is being done the next one gathers, so under load the cost of handing over is shared.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_MOST_AT_ONCE = 32


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

    async def run(self, work: Callable[[], Any]) -> Any:
        """Return what `work` returns, or raise what it raises.

        Cancelled work that has not begun is left out; work that has begun is waited for, so that none goes on behind
        the back of a caller who was told that everything has ended.
        """
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

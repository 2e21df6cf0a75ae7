"""Everything that is queued for one capture file, on its way to disk together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from nemo_gym.capture import files
from nemo_gym.capture.exchange import Exchange
from nemo_gym.capture.open_calls import OpenCallLedger, Slot

Waiter = tuple[asyncio.AbstractEventLoop, Callable[[bool], None]]


class Job:
    """One finished exchange; `waiter` is told on its loop whether it became durable."""

    __slots__ = ("error", "exchange", "line", "size", "slot", "void", "waiter")

    def __init__(self, exchange: Exchange, slot: Slot | None, waiter: Waiter | None) -> None:
        self.exchange, self.slot, self.waiter = exchange, slot, waiter
        self.size = exchange.held_bytes
        self.line: bytes | None = None
        self.error: Exception | None = None
        self.void = False
        """The rollout was cleared while the call was served: there is nothing to record."""


class CaptureFile:
    """What is queued for one rollout. It waits in a queue or is with one thread, never both."""

    __slots__ = ("jobs", "markers", "path", "rollout_id")

    def __init__(self, rollout_id: str, path: str) -> None:
        self.rollout_id, self.path = rollout_id, path
        self.jobs: list[Job] = []
        self.markers: list[tuple[str, str]] = []


class Batch:
    """The jobs of one file that are written and synced together, by one thread at a time."""

    __slots__ = ("_written", "file", "jobs", "markers", "sync_s")

    def __init__(self, file: CaptureFile) -> None:
        self.file = file
        self.jobs, file.jobs = file.jobs, []
        self.markers, file.markers = file.markers, []
        self._written: files.Written | None = None
        self.sync_s: float | None = None

    @property
    def size(self) -> int:
        """About how many bytes it will write."""
        return sum(job.size for job in self.jobs)

    def write(self, ledger: OpenCallLedger, *, wait: bool) -> None:
        """Put the lines into the file, once. Raises BlockingIOError when it is locked and `wait` is False."""
        if self._written is not None:
            return
        for job in self.jobs:
            if job.line is None and job.error is None:
                _build(job)
        good = [job for job in self.jobs if job.line is not None]
        if not good:
            return
        try:
            self._written = files.append(self.file.path, lambda: _wanted(good, ledger), wait=wait)
        except BlockingIOError:
            raise
        except OSError as error:
            self._write_one_by_one(good, ledger, error)
        for job in self.jobs:
            job.line = None  # a large line must not wait in memory for the disk

    def sync(self) -> None:
        """Make the written lines durable."""
        if self._written is None:
            return
        started = time.perf_counter()
        try:
            self._written.make_durable()
        except OSError as error:  # the lines are in the file, but nobody can say for how long
            for job in self.jobs:
                job.error = job.error or error
        self._written = None
        self.sync_s = time.perf_counter() - started

    def _write_one_by_one(self, jobs: list[Job], ledger: OpenCallLedger, error: OSError) -> None:
        """One line that does not fit must not take the others with it."""
        for job in jobs:
            if len(jobs) == 1:
                job.error = error
                return
            try:
                files.append_durably(self.file.path, lambda job=job: _wanted([job], ledger))  # type: ignore[misc]
            except OSError as single:
                job.error = single


def _build(job: Job) -> None:
    try:
        job.line = job.exchange.line()
    except Exception as error:  # noqa: BLE001 - the capture boundary: nothing in a body may end the writer
        job.error = error


def _wanted(jobs: list[Job], ledger: OpenCallLedger) -> bytes:
    """The lines, but for calls of an attempt that was cleared while they were served. Asked under the file's lock."""
    lines: list[bytes] = []
    for job in jobs:
        job.void = ledger.is_void(job.slot, job.exchange.model_call_id)
        if not job.void and job.line is not None:
            lines.append(job.line)
    return lines[0] if len(lines) == 1 else b"".join(lines)

"""Everything that is queued for one capture file, on its way to disk together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nemo_gym.capture import files
from nemo_gym.capture.exchange import Exchange
from nemo_gym.capture.markers import Marker
from nemo_gym.capture.open_calls import OpenCallLedger, Slot
from nemo_gym.capture.spill import Spill, Spilled

Waiter = tuple[asyncio.AbstractEventLoop, Callable[[bool], None]]
BATCH_BYTES = 16 << 20
"""About how much is joined into one write: more than that would exist in memory twice."""


class Job:
    """One finished exchange; `waiter` is told on its loop whether it became durable."""

    __slots__ = ("error", "exchange", "line", "size", "slot", "spilled", "void", "waiter")

    def __init__(self, exchange: Exchange, slot: Slot | None, waiter: Waiter | None) -> None:
        self.exchange, self.slot, self.waiter = exchange, slot, waiter
        self.size = exchange.held_bytes
        self.line: bytes | None = None
        self.spilled: tuple[Spill, Spilled] | None = None
        self.error: Exception | None = None
        self.void = False
        """The rollout was cleared while the call was served: there is nothing to record."""

    def build(self) -> None:
        """Make the line, once."""
        if self.line is not None or self.spilled is not None or self.error is not None:
            return
        try:
            self.line = self.exchange.line()
        except Exception as error:  # noqa: BLE001 - the capture boundary: nothing in a body may end the writer
            self.error = error

    def spill(self, spill: Spill) -> None:
        """Let the line wait in a temporary file instead of memory; raises OSError when there is no room there."""
        self.build()
        if self.line is not None:
            self.spilled, self.line, self.size = (spill, spill.put(self.line)), None, 0

    def load(self) -> None:
        """Have the line in memory again."""
        if self.spilled is None:
            return
        spill, place = self.spilled
        self.spilled = None
        try:
            self.line = spill.take(place)
        except OSError as error:
            self.error = error


class CaptureFile:
    """What is queued for one rollout. It waits in a queue or is on its way to disk, never both."""

    __slots__ = ("jobs", "markers", "path", "rollout_id")

    def __init__(self, rollout_id: str, path: str) -> None:
        self.rollout_id, self.path = rollout_id, path
        self.jobs: list[Job] = []
        self.markers: list[Marker] = []


class Batch:
    """The jobs of one file that are written and synced together, by one thread at a time."""

    __slots__ = ("file", "jobs", "markers", "size", "written")

    def __init__(self, file: CaptureFile) -> None:
        self.file = file
        self.size = count = 0
        """About how many bytes it will write."""
        for job in file.jobs:
            count += 1
            self.size += job.size or (job.spilled[1].length if job.spilled else 0)
            if self.size > BATCH_BYTES:
                break
        self.jobs, file.jobs = file.jobs[:count], file.jobs[count:]
        self.markers, file.markers = file.markers, []
        self.written: files.Written | None = None

    def write_at_once(self, ledger: OpenCallLedger, open_files: files.OpenFiles) -> int | None:
        """Put the lines into the file; returns the descriptor to sync, None when nothing was put there.

        Raises OSError and leaves the lines to `write`, which can wait, make the file, and save what there is room for.
        """
        good = self._good()
        if not good:
            return None
        fd = open_files.append(self.file.path, lambda: _wanted(good, ledger))
        self._let_go()
        return fd

    def write(self, ledger: OpenCallLedger) -> None:
        """Put the lines into the file, once, waiting for whoever has it."""
        good = self._good()
        if not good:
            return
        try:
            self.written = files.append(self.file.path, lambda: _wanted(good, ledger))
        except OSError as error:
            self._write_one_by_one(good, ledger, error)
        self._let_go()

    def _good(self) -> list[Job]:
        good = []
        for job in self.jobs:
            if job.line is None:
                job.build()
                job.load()
            if job.line is not None:
                good.append(job)
        return good

    def _let_go(self) -> None:
        for job in self.jobs:
            job.line = None  # a large line must not wait in memory for the disk

    def sync(self) -> None:
        """Make the written lines durable."""
        written, self.written = self.written, None
        if written is not None:
            try:
                written.make_durable()
            except OSError as error:
                self.not_durable(error)

    def not_durable(self, error: OSError) -> None:
        """The lines are in the file, but nobody can say for how long."""
        for job in self.jobs:
            job.error = job.error or error

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


def _wanted(jobs: list[Job], ledger: OpenCallLedger) -> bytes:
    """The lines, but for calls of an attempt that was cleared while they were served. Asked under the file's lock."""
    if len(jobs) == 1 and jobs[0].line is not None and not ledger.has_void_calls():
        return jobs[0].line
    lines: list[bytes] = []
    for job in jobs:
        job.void = ledger.is_void(job.slot, job.exchange.model_call_id)
        if not job.void and job.line is not None:
            lines.append(job.line)
    return b"".join(lines)

"""The writer: makes finished exchanges durable, detached from the requests that produced them.

`submit` never blocks for long and never raises, so it works in a cancelled request. What finishes in one turn of the
event loop is written together at its end, each file's lines in one write; the kernel syncs the files meanwhile and
then all waiters are told at once. While a file is being synced, what more comes for it is collected for the next write.
Everything that could make the loop wait is done on threads instead: a file that somebody else has locked, a file that
must be made, large records, and all of it for a while when a write was slow.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path

from nemo_gym.capture import files, process
from nemo_gym.capture.batch import Batch, CaptureFile, Job, Waiter
from nemo_gym.capture.exchange import Exchange
from nemo_gym.capture.lanes import Lane
from nemo_gym.capture.markers import Marker, MarkerBook
from nemo_gym.capture.open_calls import OpenCallLedger, Slot
from nemo_gym.capture.spill import Spill
from nemo_gym.capture.store import CaptureStore
from nemo_gym.store.kernel_sync import KernelSync

_LOG = logging.getLogger(__name__)
THREADS = 16
DIRECT_BYTES = 128 << 10
"""A batch above this is built and written on a thread: the loop has other calls to serve."""
SLOW_WRITE_S = 0.05
SLOW_WRITES = 3
THREADS_AFTER_SLOW_S = 2.0
"""How long the loop writes nothing itself after so many slow writes in a row: the file system may be a remote one."""
SOFT_LIMIT_BYTES = 256 << 20
"""Above this much queued, new calls wait (up to the hold deadline) before they start."""
HARD_LIMIT_BYTES = 1 << 30
"""Above this much queued, what finishes waits in a temporary file."""
CLOSE_TIMEOUT_S = 10.0
_REAP_S = 0.02


class CaptureCounters:
    """What has happened since the process started, for the health route. `queued` is a level, not a count."""

    __slots__ = ("calls", "failed", "last_error", "late", "queued", "refused", "void", "written")

    def __init__(self) -> None:
        self.calls = self.written = self.failed = self.late = self.refused = self.void = self.queued = 0
        self.last_error: str | None = None

    def count(self, jobs: list[Job]) -> int:
        """Take finished jobs from the queue into the counts; returns how many bytes they took there."""
        size = good = 0
        for job in jobs:
            size += job.size
            if job.error is not None:
                self.failed += 1
                self.last_error = f"{type(job.error).__name__}: {job.error}"
            elif job.void:
                self.void += 1
            else:
                good += 1
        self.queued -= len(jobs)
        self.written += good
        return size

    def as_dict(self) -> dict[str, int | str | None]:
        """Return the counters: calls, written, queued, failed, late, refused, void, last_error."""
        names = ("calls", "written", "queued", "failed", "late", "refused", "void", "last_error")
        return {name: getattr(self, name) for name in names}


class CaptureWriter:
    """Writes exchanges into a `CaptureStore`. Thread-safe; survives a fork."""

    def __init__(self, store: CaptureStore) -> None:
        self.store = store
        self.ledger = OpenCallLedger(store.root)
        self.counters = CaptureCounters()
        self._open_files = files.OpenFiles()
        self._path_of = lru_cache(4096)(lambda rollout_id: str(store.path_for(rollout_id)))
        self._reset()
        atexit.register(_close_at_exit, weakref.ref(self))

    def _reset(self) -> None:
        self._pid = process.pid
        self._open_files.close()  # a forked child shares the locks of its parent's descriptors
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._files: dict[str, CaptureFile] = {}
        self._fresh: list[CaptureFile] = []
        self._due: asyncio.AbstractEventLoop | None = None
        self._threads = Lane("capture", THREADS)
        self._spill = Spill()
        self._queued_bytes = 0
        self._markers = MarkerBook(self.store, self.ledger)
        self._direct_from = 0.0
        self._slow = 0
        self._kernel = KernelSync.open()
        self._syncing: dict[int, Batch] = {}
        self._numbers = 0
        self._loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
        self._last_loop: asyncio.AbstractEventLoop | None = None

    def submit(self, exchange: Exchange, slot: Slot | None, waiter: Waiter | None = None) -> bool:
        """Queue a finished exchange; returns False when there was room for it neither in memory nor on disk."""
        if self._pid != process.pid:
            self._reset()
        job = Job(exchange, slot, waiter)
        problem: OSError | None = None
        if self._queued_bytes and self._queued_bytes + job.size > HARD_LIMIT_BYTES:
            try:
                job.spill(self._spill)
            except OSError as error:
                problem = error
        with self._lock:
            file = self._file(exchange.rollout_id)
            if problem is None:
                self._queued_bytes += job.size
                self.counters.queued += 1
                file.jobs.append(job)
            else:
                self.counters.failed += 1
                self.counters.last_error = f"the capture queue is full, and nothing can be set aside: {problem}"
                file.markers.append(Marker(exchange.model_call_id, "the capture queue was full", slot))
        if self._fresh:
            self._wake()
        return problem is None

    def mark_incomplete(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        """Queue a line for the rollout's incomplete marker."""
        with self._lock:
            self._file(rollout_id).markers.append(Marker(model_call_id, reason))
        self._wake()

    @property
    def crowded(self) -> bool:
        """Whether new calls should wait before they add to the queue."""
        return self._queued_bytes > SOFT_LIMIT_BYTES

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Block until everything queued is durable, or the time is up; returns whether it is."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._commit(self._take_fresh(), None)
            with self._lock:
                settled = not self._files
                left = deadline - time.monotonic()
                if not settled and left <= 0:
                    return False
                if not settled and not self._syncing:
                    self._idle.wait(min(left, _REAP_S))
            if settled:
                self._markers.pay()
                return True
            # The loop that would hear of ended syncs may be the one that waits here, or gone.
            self._reap(min(left, _REAP_S) if self._syncing else 0.0)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush, then end the threads. A later `submit` starts new ones."""
        if self._pid != process.pid:
            return
        if not self.flush(timeout_s):
            _LOG.error("capture: %d calls were not written to `%s` in time", self.counters.queued, self.store.root)
            return
        self._threads.close()
        self._open_files.close()
        self.ledger.close()

    # Handing over

    def _file(self, rollout_id: str) -> CaptureFile:
        """The queue of a rollout, fresh when it is new. The lock is held."""
        file = self._files.get(rollout_id)
        if file is None:
            file = self._files[rollout_id] = CaptureFile(rollout_id, self._path_of(rollout_id))
            self._fresh.append(file)
        return file

    def _take_fresh(self) -> list[CaptureFile]:
        with self._lock:
            fresh, self._fresh = self._fresh, []
        return fresh

    def _wake(self) -> None:
        """Write once the running loop has finished its turn: what else ends in it comes along."""
        loop = _running_loop()
        if loop is None:
            self._commit(self._take_fresh(), None)
        elif self._due is not loop:
            self._due = loop
            loop.call_soon(self._turn, loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = None
        self._commit(self._take_fresh(), loop)

    def _commit(self, ready: Sequence[CaptureFile], loop: asyncio.AbstractEventLoop | None) -> None:
        """Write what is queued for some files, here when `loop` is running and nothing has to be waited for."""
        while ready:
            with self._lock:
                batches = [Batch(file) for file in ready]
            began = time.monotonic()
            direct = loop is not None and began >= self._direct_from
            written: list[tuple[Batch, int | None]] = []
            for batch in batches:
                if not (direct and self._write_at_once(batch, written)):
                    self._threads.run(partial(self._alone, batch))
            ready = ()
            if written and loop is not None:
                self._slow = self._slow + 1 if time.monotonic() - began > SLOW_WRITE_S else 0
                if self._slow == SLOW_WRITES:
                    self._slow, self._direct_from = 0, began + THREADS_AFTER_SLOW_S
                ready = self._start_syncs(written, loop)

    def _write_at_once(self, batch: Batch, written: list[tuple[Batch, int | None]]) -> bool:
        if batch.markers or batch.size > DIRECT_BYTES:
            return False
        try:
            fd = batch.write_at_once(self.ledger, self._open_files)
        except OSError:
            return False
        written.append((batch, fd))
        return True

    def _start_syncs(
        self, written: list[tuple[Batch, int | None]], loop: asyncio.AbstractEventLoop
    ) -> list[CaptureFile]:
        """Have batches synced; returns the files of those that need none and have more."""
        wanted, empty = [], []
        number = self._numbers
        for batch, fd in written:
            if fd is None:
                empty.append(batch)
                continue
            number += 1
            wanted.append((fd, number))
            self._syncing[number] = batch
        self._numbers = number
        started = 0
        if self._kernel is not None and wanted:
            if loop is not self._last_loop and loop not in self._loops:
                loop.add_reader(self._kernel.eventfd, self._reap)
                self._loops.add(loop)
            self._last_loop = loop
            started = self._kernel.start(wanted)
        for fd, number in wanted[started:]:
            batch = self._syncing.pop(number)
            batch.written = files.Written(os.dup(fd), batch.file.path, born=False)
            self._threads.run(partial(self._synced, batch))
        return self._finish(empty) if empty else []

    def _reap(self, wait_s: float = 0.0) -> None:
        """Finish the batches whose syncs have ended."""
        if self._kernel is None:
            return
        ended = []
        for number, error in self._kernel.finished(wait_s):
            batch = self._syncing.pop(number)
            if error is not None:
                batch.not_durable(error)
            ended.append(batch)
        if ended:
            self._commit(self._finish(ended), _running_loop())

    # On the threads

    def _alone(self, batch: Batch) -> None:
        """Write, sync and finish one batch that the loop must not wait for."""
        batch.write(self.ledger)
        self._synced(batch)

    def _synced(self, batch: Batch) -> None:
        batch.sync()
        more = self._finish([batch])
        if not more:
            return
        loop = next((job.waiter[0] for job in batch.jobs if job.waiter is not None), None)
        with self._lock:
            self._fresh += more
        try:
            if loop is None:
                self._commit(self._take_fresh(), None)
            else:
                loop.call_soon_threadsafe(self._turn, loop)
        except RuntimeError:  # the loop is closed
            self._commit(self._take_fresh(), None)

    def _finish(self, batches: list[Batch]) -> list[CaptureFile]:
        """Report what became of the batches and take them out of the books; returns the files that have more."""
        told: dict[asyncio.AbstractEventLoop, list[tuple[Callable[[bool], None], bool]]] = {}
        for batch in batches:
            for job in batch.jobs:
                error = job.error
                if error is None and not job.void:
                    self.ledger.recycle(job.slot)
                else:
                    self._not_written(batch, job)
                if job.waiter is not None:
                    loop, callback = job.waiter
                    told.setdefault(loop, []).append((callback, error is None))
            if batch.markers:
                self._markers.write(batch.file.rollout_id, batch.markers)
            elif batch.jobs and self._markers.owes:
                self._threads.run(self._markers.pay)
        more = []
        with self._lock:
            for batch in batches:
                self._queued_bytes -= self.counters.count(batch.jobs)
                if batch.file.jobs or batch.file.markers:
                    more.append(batch.file)
                else:
                    del self._files[batch.file.rollout_id]
            if not self._files:
                self._idle.notify_all()
        running = _running_loop() if told else None
        for loop, callbacks in told.items():
            if loop is running:
                _call_back(callbacks)
                continue
            try:
                loop.call_soon_threadsafe(_call_back, callbacks)
            except RuntimeError:  # the loop is closed: nobody waits any more
                continue
        return more

    def _not_written(self, batch: Batch, job: Job) -> None:
        if job.error is not None:
            call_id = job.exchange.model_call_id
            _LOG.warning(
                "capture: model call `%s` of rollout `%s` was not recorded: %s",
                call_id,
                batch.file.rollout_id,
                job.error,
            )
            batch.markers.append(Marker(call_id, f"not written: {job.error}", job.slot))
        else:
            self.ledger.end(job.slot)


def _call_back(callbacks: list[tuple[Callable[[bool], None], bool]]) -> None:
    for callback, durable in callbacks:
        callback(durable)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _close_at_exit(reference: weakref.ref[CaptureWriter]) -> None:
    writer = reference()
    if writer is not None:
        writer.close()


def root_is_writable(root: Path) -> OSError | None:
    """Return why files cannot be made in `root`, or None when they can."""
    probe = root / f".probe-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.FILE_MODE))
        probe.unlink()
    except OSError as error:
        return error
    return None

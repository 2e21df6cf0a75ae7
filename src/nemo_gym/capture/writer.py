"""The writer: makes finished exchanges durable, detached from the requests that produced them.

`submit` never blocks and never raises, so it works in a cancelled request. What finishes in one turn of the event loop
is handed over together: a committer thread writes each file's lines in one write, syncs the files at the same time,
then tells all waiters at once. A file that somebody else has locked, and large records, are finished on threads of
their own, so that no rollout waits for another's.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from nemo_gym.capture import files
from nemo_gym.capture.batch import Batch, CaptureFile, Job, Waiter
from nemo_gym.capture.exchange import Exchange
from nemo_gym.capture.lanes import Lane, share
from nemo_gym.capture.open_calls import OpenCallLedger, Slot
from nemo_gym.capture.store import CaptureStore

_LOG = logging.getLogger(__name__)
SYNC_THREADS = 8
STRAGGLER_THREADS = 8
LARGE_BYTES = 1 << 20
SOFT_LIMIT_BYTES = 256 << 20
"""Above this much queued, new calls wait (up to the hold deadline) before they start."""
HARD_LIMIT_BYTES = 1 << 30
"""Above this much queued, a finished call is counted as failed and marked instead of kept."""
CLOSE_TIMEOUT_S = 10.0


class CaptureCounters:
    """What has happened since the process started, for the health route. `queued` is a level, not a count."""

    __slots__ = ("calls", "failed", "last_error", "late", "queued", "refused", "void", "written")

    def __init__(self) -> None:
        self.calls = self.written = self.failed = self.late = self.refused = self.void = self.queued = 0
        self.last_error: str | None = None

    def count(self, jobs: list[Job]) -> None:
        """Take finished jobs from the queue into the counts."""
        self.queued -= len(jobs)
        for job in jobs:
            if job.error is not None:
                self.failed += 1
                self.last_error = f"{type(job.error).__name__}: {job.error}"
            elif job.void:
                self.void += 1
            else:
                self.written += 1

    def as_dict(self) -> dict[str, int | str | None]:
        """Return the counters: calls, written, queued, failed, late, refused, void, last_error."""
        names = ("calls", "written", "queued", "failed", "late", "refused", "void", "last_error")
        return {name: getattr(self, name) for name in names}


class CaptureWriter:
    """Writes exchanges into a `CaptureStore` from its own threads. Thread-safe; survives a fork."""

    def __init__(self, store: CaptureStore) -> None:
        self.store = store
        self.ledger = OpenCallLedger(store.root)
        self.counters = CaptureCounters()
        self._reset()
        atexit.register(_close_at_exit, weakref.ref(self))

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._files: dict[str, CaptureFile] = {}
        self._fresh: list[CaptureFile] = []
        self._kick_due: asyncio.AbstractEventLoop | None = None
        self._kicked: SimpleQueue[list[CaptureFile] | None] = SimpleQueue()
        self._committer: threading.Thread | None = None
        self._syncers = Lane("capture-sync", SYNC_THREADS - 1)
        self._stragglers = Lane("capture-straggler", STRAGGLER_THREADS)
        self._queued_bytes = 0

    def submit(self, exchange: Exchange, slot: Slot | None, waiter: Waiter | None = None) -> bool:
        """Queue a finished exchange; returns False when the queue is at its hard limit and it was let go."""
        if self._pid != os.getpid():
            self._reset()
        job = Job(exchange, slot, waiter)
        with self._lock:
            if self._queued_bytes + job.size > HARD_LIMIT_BYTES and self._queued_bytes:
                self.counters.failed += 1
                self.counters.last_error = "the capture queue is full: the disk does not keep up"
                self._file(exchange.rollout_id).markers.append((exchange.model_call_id, "the capture queue was full"))
                accepted = False
            else:
                self._queued_bytes += job.size
                self.counters.queued += 1
                self._file(exchange.rollout_id).jobs.append(job)
                accepted = True
        self._kick_soon()
        if not accepted:
            self.ledger.end(slot)
        return accepted

    def mark_incomplete(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        """Queue a line for the rollout's incomplete marker."""
        with self._lock:
            self._file(rollout_id).markers.append((model_call_id, reason))
        self._kick()

    @property
    def crowded(self) -> bool:
        """Whether new calls should wait before they add to the queue."""
        return self._queued_bytes > SOFT_LIMIT_BYTES

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Block until everything queued is durable, or the time is up; returns whether it is."""
        deadline = time.monotonic() + timeout_s
        self._kick()
        with self._lock:
            while self._files:
                left = deadline - time.monotonic()
                if left <= 0 or not self._idle.wait(left):
                    return not self._files
        return True

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush, then end the threads. A later `submit` starts new ones."""
        if self._pid != os.getpid():
            return
        if not self.flush(timeout_s):
            _LOG.error("capture: %d calls were not written to `%s` in time", self.counters.queued, self.store.root)
            return
        with self._lock:
            if self._committer is not None:
                self._kicked.put(None)
                self._committer = None
        self._syncers.close()
        self._stragglers.close()
        self.ledger.close()

    # Handing over

    def _file(self, rollout_id: str) -> CaptureFile:
        """The queue of a rollout, fresh when it is new. The lock is held."""
        file = self._files.get(rollout_id)
        if file is None:
            file = self._files[rollout_id] = CaptureFile(rollout_id, str(self.store.path_for(rollout_id)))
            self._fresh.append(file)
        return file

    def _kick_soon(self) -> None:
        """Wake the committer once the running loop has finished its turn: what else ends in it comes along."""
        if not self._fresh:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._kick()
            return
        if self._kick_due is not loop:
            self._kick_due = loop
            loop.call_soon(self._kick)

    def _kick(self) -> None:
        self._kick_due = None
        with self._lock:
            if not self._fresh:
                return
            fresh, self._fresh = self._fresh, []
            if self._committer is None:
                self._committer = threading.Thread(
                    target=self._commit, args=(self._kicked,), name="capture-committer", daemon=True
                )
                self._committer.start()
            self._kicked.put(fresh)

    # On the threads

    def _commit(self, fresh: SimpleQueue[list[CaptureFile] | None]) -> None:
        while (ready := fresh.get()) is not None:
            while ready:
                ready = self._round(ready)

    def _round(self, ready: list[CaptureFile]) -> list[CaptureFile]:
        """Write, sync and report what is queued for some files; returns those that have more."""
        with self._lock:
            batches = [Batch(file) for file in ready]
        written: list[Batch] = []
        for batch in batches:
            if batch.markers or batch.size > LARGE_BYTES:
                self._stragglers.run(partial(self._alone, batch))
                continue
            try:
                batch.write(self.ledger, wait=False)
            except BlockingIOError:
                self._stragglers.run(partial(self._alone, batch))
            else:
                written.append(batch)
        # Syncs under way at the same time share journal commits: faster and cheaper than one after the other.
        share([batch.sync for batch in written], self._syncers, SYNC_THREADS)
        return self._finish(written)

    def _alone(self, batch: Batch) -> None:
        """Finish one batch that others must not wait for."""
        batch.write(self.ledger, wait=True)
        batch.sync()
        more = self._finish([batch])
        if more:
            with self._lock:
                self._fresh += more
            self._kick()

    def _finish(self, batches: list[Batch]) -> list[CaptureFile]:
        """Report what became of the batches and take them out of the books; returns the files that have more."""
        told: dict[asyncio.AbstractEventLoop, list[tuple[Callable[[bool], None], bool]]] = {}
        for batch in batches:
            for job in batch.jobs:
                self._finish_job(batch, job)
                if job.waiter is not None:
                    loop, callback = job.waiter
                    told.setdefault(loop, []).append((callback, job.error is None))
            if batch.markers:
                self._write_markers(batch.file.rollout_id, batch.markers)
        more = []
        with self._lock:
            for batch in batches:
                self.counters.count(batch.jobs)
                self._queued_bytes -= batch.size
                if batch.file.jobs or batch.file.markers:
                    more.append(batch.file)
                else:
                    del self._files[batch.file.rollout_id]
            if not self._files:
                self._idle.notify_all()
        for loop, callbacks in told.items():
            try:
                loop.call_soon_threadsafe(_call_back, callbacks)
            except RuntimeError:  # the loop is closed: nobody waits any more
                continue
        return more

    def _finish_job(self, batch: Batch, job: Job) -> None:
        if job.error is None and not job.void:
            self.ledger.recycle(job.slot)
            return
        if job.error is not None:
            call_id = job.exchange.model_call_id
            _LOG.warning(
                "capture: model call `%s` of rollout `%s` was not recorded: %s",
                call_id,
                batch.file.rollout_id,
                job.error,
            )
            batch.markers.append((call_id, f"not written: {job.error}"))
        self.ledger.end(job.slot)

    def _write_markers(self, rollout_id: str, markers: list[tuple[str, str]]) -> None:
        for model_call_id, reason in markers:
            try:
                self.store.mark_incomplete(rollout_id, model_call_id=model_call_id, reason=reason)
            except OSError as error:
                _LOG.error("capture: rollout `%s` misses a call and cannot be marked: %s", rollout_id, error)


def _call_back(callbacks: list[tuple[Callable[[bool], None], bool]]) -> None:
    for callback, durable in callbacks:
        callback(durable)


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

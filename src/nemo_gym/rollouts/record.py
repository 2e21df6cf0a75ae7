"""Writing outcomes: one line per success, one sidecar line per failure, counted and made durable in batches."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, MutableSet
from typing import Any

from nemo_gym.errors import RecordingError
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject, encode_line
from nemo_gym.records.failures import count_label, is_attempt
from nemo_gym.records.identity import attempt_of
from nemo_gym.records.rows import RolloutKey, rollout_key
from nemo_gym.rollouts.batch_status import RunStatusTracker
from nemo_gym.store.jsonl import LineAppender
from nemo_gym.store.loop_sync import LoopSync
from nemo_gym.store.run_files import RunFiles

SYNC_ROWS = 100
SYNC_INTERVAL_S = 1.0


class RunRecorder:
    """The one writer of a run's rollouts file and sidecar.

    Each line is with the operating system when a method returns; `durable` returns once it would survive a power
    cut, and `housekeeping` sees to that at least every second and every 100 rows. A write that fails raises
    RecordingError and leaves the file whole. The first success of a rollout wins: a later one is not written.
    """

    def __init__(
        self,
        files: RunFiles,
        *,
        run_id: str,
        tracker: RunStatusTracker,
        done: MutableSet[RolloutKey],
        max_attempts: int,
        truncate: bool,
    ) -> None:
        self.files = files
        self.run_id = run_id
        self.tracker = tracker
        self._done = done
        self._max_attempts = max_attempts
        self._results = LineAppender(files.rollouts, truncate=truncate)
        self._failures = LineAppender(files.failures, truncate=truncate)
        self._syncs = LoopSync()
        self._sync_lock = asyncio.Lock()
        self._sync_now = asyncio.Event()
        self._last_sync = time.monotonic()
        self.written = 0
        self.duplicates = 0

    def success(self, record: JsonObject, *, label: str) -> bool:
        """Append a success; return False, writing nothing, when the rollout already has one."""
        key = rollout_key(record)
        if key is not None and key in self._done:
            self.duplicates += 1
            self.tracker.omitted(was_started=True)
            return False
        self._append(self._results, record)
        if key is not None:
            self._done.add(key)
        self.tracker.succeeded(label, reward=reward_of(record), masked=bool(record.get(keys.MASK_SAMPLE)))
        return True

    def failure(self, row: JsonObject, *, label: str) -> None:
        """Append a failed try to the sidecar."""
        self._append(self._failures, row)
        self.tracker.failed(label, count_label(row), final=self._is_final(row))

    def failure_to_repeat(self, row: JsonObject) -> bool:
        """Append a failed try that another one follows at once; return False, writing nothing, when none may follow.

        The rollout is pending again: no failure of it is counted.
        """
        if self._is_final(row):
            return False
        self._append(self._failures, row)
        self.tracker.put_back()
        return True

    def _is_final(self, row: JsonObject) -> bool:
        """Return whether a failed try is its rollout's last one."""
        exhausted = is_attempt(row) and attempt_of(row) + 1 >= self._max_attempts
        return bool(row.get(keys.FAILURE_TERMINAL)) or exhausted

    def unrouted(self, row: JsonObject, *, label: str) -> None:
        """Append the error that ends the run; it counts as no attempt."""
        row[keys.UNROUTED_RUN_ERROR] = True
        self._append(self._failures, row)
        self.tracker.failed(label, count_label(row), final=False)

    def interrupted(self, row: JsonObject | None, *, was_started: bool) -> None:
        """Count a try that the end of the run cut off: it is pending again, unless its row says that it is omitted."""
        if row is not None:
            self.omitted(row, was_started=was_started)
        elif was_started:
            self.tracker.put_back()

    def omitted(self, row: JsonObject | None, *, was_started: bool) -> None:
        """Count a try without an outcome, and append its row when there is one."""
        if row is not None:
            self._append(self._failures, row)
        self.tracker.omitted(was_started=was_started)

    async def durable(self) -> None:
        """Return when every line so far is durable; concurrent callers share one sync."""
        async with self._sync_lock:
            for appender in (self._results, self._failures):
                if appender.unsynced:
                    try:
                        await appender.sync_by(self._syncs)
                    except OSError as error:
                        raise _recording_error(appender, error) from error
            self._last_sync = time.monotonic()

    async def housekeeping(self) -> None:
        """Sync and save progress until cancelled."""
        while True:
            try:
                async with asyncio.timeout(SYNC_INTERVAL_S):
                    await self._sync_now.wait()
            except TimeoutError:
                pass
            self._sync_now.clear()
            await self.durable()
            self.tracker.save_if_due()

    async def aclose(self) -> None:
        """Sync and close both files; idempotent. Raises RecordingError."""
        async with self._sync_lock:
            try:
                await asyncio.to_thread(self.close)
            finally:
                # Last: it waits, and the loop with it, for a sync that was given up and has not ended.
                self._syncs.close()

    def close(self) -> None:
        """Do the same without a loop, when nothing else uses the recorder."""
        for appender in (self._results, self._failures):
            try:
                appender.close()
            except OSError as error:
                raise _recording_error(appender, error) from error

    def _append(self, appender: LineAppender, record: Mapping[str, Any]) -> None:
        try:
            appender.append(encode_line(record))
        except OSError as error:
            raise _recording_error(appender, error) from error
        self.written += 1
        if self._results.unsynced + self._failures.unsynced >= SYNC_ROWS:
            self._sync_now.set()


def reward_of(record: Mapping[str, Any]) -> float | None:
    """Return the reward of a result, None when it has none that is a finite number."""
    value = record.get(keys.REWARD)
    if not isinstance(value, (int, float)):
        return None
    try:
        reward = float(value)
    except OverflowError:
        return None
    return reward if math.isfinite(reward) else None


def _recording_error(appender: LineAppender, error: OSError) -> RecordingError:
    if isinstance(error, FileNotFoundError):
        return RecordingError(
            f"`{appender.path}` cannot be written: {error.strerror or error}. Its lines are gone with it; run again."
        )
    return RecordingError(
        f"`{appender.path}` cannot be written: {error.strerror or error}. What it holds is whole; "
        "free the disk and run the same command with `--resume`."
    )

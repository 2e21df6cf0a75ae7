"""One recording, opened and closed: lock, files, recorder, connections. Shards and evaluation runs share it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_gym.errors import RecordingError
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject, encode_line
from nemo_gym.records.manifest import (
    Configuration,
    Materialized,
    RunManifest,
    Source,
    encode_manifest,
)
from nemo_gym.records.rows import RolloutKey, rollout_key
from nemo_gym.rollouts.batch_status import RunStatusTracker
from nemo_gym.rollouts.execute import RolloutExecutor
from nemo_gym.rollouts.record import RunRecorder
from nemo_gym.rollouts.rollout_ids import prefixed_rollout_id
from nemo_gym.rollouts.run_client import RunClient
from nemo_gym.store.atomic import staged, write_atomic
from nemo_gym.store.key_set import RolloutKeySet
from nemo_gym.store.lock import RunLock
from nemo_gym.store.rollout_store import read_manifest
from nemo_gym.store.run_files import RunFiles


def new_run_id() -> str:
    """Return 32 hex characters, never the same."""
    return uuid.uuid4().hex


class PlainRun:
    """A dispatch that writes nothing."""

    def __init__(self, client: RunClient, executor: RolloutExecutor) -> None:
        self._client = client
        self._executor = executor

    async def open(self) -> None:
        """Open the connections."""
        await self._client.__aenter__()

    async def background(self) -> None:
        """Do nothing."""

    async def run(self, row: JsonObject) -> Any:
        """Run one row."""
        return await self._executor.run(row)

    async def close(self, error: BaseException | None, remaining: Iterator[JsonObject]) -> None:
        """Close the connections."""
        await self._client.__aexit__(None, None, None)

    def is_fatal(self, error: BaseException) -> bool:
        """Only a row's own awaitable sees its error."""
        return False


class ShardRun:
    """A recorded shard (A14-A16). Opening replaces what an earlier opening left, whole.

    `executor_for` makes the executor once the recorder exists. Rows are copied with their prefixed rollout id; the
    copies are what is dispatched, written and returned.
    """

    def __init__(
        self,
        files: RunFiles,
        *,
        shard: str,
        rows: Sequence[JsonObject],
        labels: Mapping[str, int],
        configuration: Configuration,
        client: RunClient,
        executor_for: Callable[[RunRecorder, str], RolloutExecutor],
        max_attempts: int,
        gym_version: str | None,
    ) -> None:
        self.files = files
        self.run_id = new_run_id()
        self._shard = shard
        self._rows = rows
        self._labels = labels
        self._configuration = configuration
        self._client = client
        self._executor_for = executor_for
        self._max_attempts = max_attempts
        self._gym_version = gym_version
        self._lock = RunLock(files.lock, make_folder=True)
        self._tracker: RunStatusTracker | None = None
        self._recorder: RunRecorder | None = None
        self._executor: RolloutExecutor | None = None

    def dispatched_rows(self) -> Iterator[JsonObject]:
        """Yield the rows as they are dispatched: copies under ids of this opening (A15)."""
        for row in self._rows:
            yield {**row, keys.ROLLOUT_ID: prefixed_rollout_id(row, self.run_id)}

    async def open(self) -> None:
        """Take the lock, replace the shard's files, open the connections."""
        with self._unwritable():
            await asyncio.to_thread(self._prepare)
            self._start()
        await self._client.__aenter__()

    def record_empty(self) -> None:
        """Write the complete shard of no rows."""
        with self._unwritable():
            self._prepare()
            self._start()
        assert self._recorder is not None
        self._recorder.close()
        self._recorder.tracker.close()
        self._lock.release()

    async def background(self) -> None:
        """Sync and save progress."""
        assert self._recorder is not None
        await self._recorder.housekeeping()

    async def run(self, row: JsonObject) -> Any:
        """Run and record one row."""
        assert self._executor is not None
        return await self._executor.run(row)

    async def close(self, error: BaseException | None, remaining: Iterator[JsonObject]) -> None:
        """Account for the rows left behind, make everything durable, say how it ended, give the lock back."""
        try:
            await self._client.__aexit__(None, None, None)
            if self._recorder is not None and self._executor is not None:
                await finish_recording(self._recorder, self._executor, error, remaining)
        finally:
            self._lock.release()

    def is_fatal(self, error: BaseException) -> bool:
        """A record that cannot be written ends the shard."""
        return isinstance(error, RecordingError)

    @contextlib.contextmanager
    def _unwritable(self) -> Iterator[None]:
        """Raise RecordingError for an OSError: the shard cannot be written where it is to be."""
        try:
            yield
        except OSError as error:
            raise RecordingError(
                f"`{error.filename or self.files.rollouts}` cannot be written: {error.strerror or error}. Nothing was "
                "sent; make room there, or record into another folder (`record_output_dir`)."
            ) from error

    def _prepare(self) -> None:
        files = self.files
        self._lock.acquire()
        try:
            files.drop_staged()
            parents = _earlier_runs(files)
            for path in reversed((*files.derived(), *files.reports())):
                path.unlink(missing_ok=True)
            tracker = self._tracker = self._new_tracker()
            tracker.enter("preparing")
            materialized = write_materialized(files.materialized, self.dispatched_rows())
            manifest = RunManifest(
                run_id=self.run_id,
                kind="record",
                created_at=time.time(),
                gym_version=self._gym_version,
                output=files.rollouts.name,
                shard=self._shard,
                source=Source(path=None, sha256=materialized.sha256),
                materialized=materialized,
                configuration=self._configuration,
                max_rollout_attempts=self._max_attempts,
                parents=parents,
            )
            write_atomic(files.manifest, encode_manifest(manifest))
        except BaseException as error:
            if self._tracker is not None:
                self._tracker.close("failed", reason=_reason(error))
            self._lock.release()
            raise

    def _new_tracker(self) -> RunStatusTracker:
        tracker = RunStatusTracker(
            self.files.status,
            run_id=self.run_id,
            output=self.files.rollouts.name,
            shard=self._shard,
            gym_version=self._gym_version,
        )
        for label, rollouts in self._labels.items():
            tracker.expect(label, rollouts)
        return tracker

    def _start(self) -> None:
        assert self._tracker is not None
        self._recorder = RunRecorder(
            self.files,
            run_id=self.run_id,
            tracker=self._tracker,
            done=RolloutKeySet(),
            max_attempts=self._max_attempts,
            truncate=True,
        )
        self._executor = self._executor_for(self._recorder, self.run_id)
        self._tracker.enter("running")


async def finish_recording(
    recorder: RunRecorder, executor: RolloutExecutor, error: BaseException | None, remaining: Iterator[JsonObject]
) -> None:
    """Close a recording: omitted rows, durable files, final status."""
    try:
        # Without rows for them, rows that were never started simply stay pending.
        if error is not None and executor.records_omitted and not isinstance(error, RecordingError):
            for row in remaining:
                executor.never_started(row)
        await recorder.aclose()
    except RecordingError as failed:
        recorder.tracker.close("failed", reason=_reason(failed))
        if error is None:
            raise
        return
    if error is None:
        recorder.tracker.close()
    elif isinstance(error, asyncio.CancelledError):
        recorder.tracker.close("interrupted", reason="cancelled")
    else:
        recorder.tracker.close("failed", reason=_reason(error))


def write_materialized(path: Path, rows: Iterable[JsonObject]) -> Materialized:
    """Write rows as a materialized file, atomically and durably; return its digest and counts."""
    digest = hashlib.sha256()
    tasks = RolloutKeySet()
    count = 0
    with staged(path) as file:
        for row in rows:
            line = encode_line(row if keys.ATTEMPT_INDEX not in row else _first_try(row))
            digest.update(line)
            file.write(line)
            key = rollout_key(row)
            if key is not None:
                tasks.add(RolloutKey(key.task, 0))
            count += 1
    return Materialized(sha256=digest.hexdigest(), rows=count, tasks=len(tasks))


def _first_try(row: JsonObject) -> JsonObject:
    return {key: value for key, value in row.items() if key != keys.ATTEMPT_INDEX}


def _earlier_runs(files: RunFiles) -> list[str]:
    try:
        earlier = read_manifest(files)
    except ValueError:
        return []
    return [] if earlier is None else [*earlier.parents, earlier.run_id]


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}"


__all__ = ["PlainRun", "ShardRun", "finish_recording", "new_run_id", "prefixed_rollout_id"]

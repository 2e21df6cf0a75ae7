"""One rollout from row to outcome: slot, clear, send, attach evidence, record, hand over."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any, TypeAlias, TypeVar

from nemo_gym.errors import RunFailedError
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.failure_kinds import AGENT_RUN_ERROR, CANCELLED, KILL_SHAPED
from nemo_gym.records.failures import (
    ENVIRONMENT_SERVER_FAILED,
    RolloutFailureRecord,
    RunFailure,
    count_label,
    cut_middle,
    environment_failure_record,
    failure_record,
    prior_failure,
    sidecar_fields,
)
from nemo_gym.records.identity import attempt_of, base_rollout_id
from nemo_gym.records.rows import (
    RolloutKey,
    drop_foreign_keys,
    result_of_reply,
    rollout_key,
    row_summary,
    run_body,
    stamp_identity,
)
from nemo_gym.rollouts.budget import DispatchBudget, DispatchLatencyTracker
from nemo_gym.rollouts.evidence import EvidencePolicy
from nemo_gym.rollouts.record import RunRecorder
from nemo_gym.rollouts.retries import Retries
from nemo_gym.rollouts.rollout_outcomes import RolloutRequestError
from nemo_gym.rollouts.route import Router, Target
from nemo_gym.rollouts.run_client import FailedRunError, RunClient
from nemo_gym.servers.failure_kind_check import validate_failure_kind

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
Outcome: TypeAlias = JsonObject | RolloutFailureRecord
_FINISH_ON_CANCEL_S = 5.0
_LOGGED_MESSAGE = 400


class RolloutExecutor:
    """Runs rows. Without a recorder nothing is written, and a plain result is what `/run` returned.

    `rollout_retries` says how often a recorded rollout whose `/run` had no outcome is tried again.
    """

    def __init__(
        self,
        *,
        client: RunClient,
        router: Router,
        run_id: str,
        evidence: EvidencePolicy,
        route_failures: bool,
        typed_failures: bool,
        recorder: RunRecorder | None = None,
        record_omitted: bool = False,
        semaphore: asyncio.Semaphore | None = None,
        budget: DispatchBudget | None = None,
        latencies: DispatchLatencyTracker | None = None,
        prior_failures: dict[RolloutKey, list[JsonObject]] | None = None,
        stop_after_unsent: int | None = None,
        rollout_retries: int = 0,
    ) -> None:
        self._client = client
        self._router = router
        self._run_id = run_id
        self._evidence = evidence
        self._route_failures = route_failures
        self._typed_failures = typed_failures
        self._recorder = recorder
        self._record_omitted = record_omitted
        self._semaphore = semaphore
        self._latencies = latencies or DispatchLatencyTracker()
        self._budget = budget or DispatchBudget(None, margin=None, latencies=self._latencies)
        self._prior_failures = {} if prior_failures is None else prior_failures
        self._rollout_retries = rollout_retries
        self._unrecorded: set[int] = set()
        self._stop_after_unsent = stop_after_unsent
        self._unsent: Counter[str] = Counter()

    @property
    def records_omitted(self) -> bool:
        """Whether a try without an outcome leaves a row."""
        return self._record_omitted

    async def run(self, row: JsonObject) -> Outcome:
        """Run one row and return its outcome.

        Raises RolloutRequestError for a failed `/run` when failures are not routed, RecordingError when the outcome
        could not be written, RunFailedError when `stop_after_unsent` rollouts in a row could not be sent to one place.
        Cancelling leaves an omitted row when those are asked for.
        """
        target = self._router.target(row)
        if self._semaphore is not None:
            try:
                await self._semaphore.acquire()
            except asyncio.CancelledError:
                self.never_started(row)
                raise
        try:
            return await self._tries(row, target)
        finally:
            if self._semaphore is not None:
                self._semaphore.release()

    async def _tries(self, row: JsonObject, target: Target) -> Outcome:
        """Run the row, and again as often as retries allow."""
        retries = Retries(self._rollout_retries)
        while True:
            outcome = await self._run(row, target, retries)
            if outcome is not None:
                return outcome
            row = {**row, keys.ATTEMPT_INDEX: attempt_of(row) + 1}
            try:
                await asyncio.sleep(retries.take())
            except asyncio.CancelledError:
                self.never_started(row)
                raise

    async def _run(self, row: JsonObject, target: Target, retries: Retries) -> Outcome | None:
        refusal = self._budget.refusal()
        if refusal is not None:
            return self._drained(row, target, refusal)
        if self._recorder is not None:
            self._recorder.tracker.started()
            self._unrecorded.add(id(row))
        started = time.monotonic()
        try:
            return await self._attempt(row, target, retries)
        except asyncio.CancelledError:
            self._interrupted(row, target, time.monotonic() - started)
            raise

    def never_started(self, row: JsonObject) -> None:
        """Account for a row that the end of the run left behind."""
        if self._recorder is not None:
            omitted = self._omitted_row(row, _never_started("not started: the run was interrupted"))
            self._recorder.interrupted(omitted, was_started=False)

    async def _attempt(self, row: JsonObject, target: Target, retries: Retries) -> Outcome | None:
        """Return the outcome, or None when the rollout is to be tried again."""
        if self._evidence.captures:
            await self._evidence.clear_before(row)
        started = time.perf_counter()
        failure: RunFailure | None = None
        result: JsonObject = {}
        try:
            result = self._accept(row, await self._client.post_run(target.url, run_body(row)))
        except FailedRunError as error:
            failure, cause = error.failure, error.__cause__
        except ValueError as error:
            failure, cause = _invalid_result(target, error), error
        seconds = time.perf_counter() - started
        self._latencies.record(seconds)
        if failure is not None:
            outcome = await self._fail(row, target, failure, seconds, cause, retries=retries)
            self._check_reachable(target, failure)
            return outcome
        self._unsent.pop(target.url, None)
        if not self._evidence.concerns(result) and not self._evidence.delete_captures:
            return self._complete(row, target, result)
        self._stamp(row, target, result)
        attached = not self._evidence.concerns(result) or self._evidence.attach_now(
            row, result, latency_ms=seconds * 1000
        )
        if attached and not self._evidence.tidies:
            return self._complete(row, target, result)
        return await _finish(self._complete_with_evidence(row, target, result, None if attached else seconds))

    def _accept(self, row: JsonObject, reply: JsonObject) -> JsonObject:
        result = result_of_reply(row, reply)
        if self._recorder is not None or self._evidence.attach:
            drop_foreign_keys(row, result)
        if result is not reply:
            expected = {"rollout_id": base_rollout_id(row), "attempt": attempt_of(row)}
            named = reply.get("episode_id")
            if isinstance(named, Mapping) and (
                named.get("rollout_id") != expected["rollout_id"] or (named.get("attempt") or 0) != expected["attempt"]
            ):
                raise ValueError(f"the reply belongs to another rollout: {dict(named)} instead of {expected}")
        return result

    async def _complete_with_evidence(
        self, row: JsonObject, target: Target, result: JsonObject, seconds: float | None
    ) -> Outcome:
        """Attach what took `seconds`, unless that is done (None); complete; tidy the capture."""
        if seconds is not None:
            await self._evidence.attach_to(row, result, latency_ms=seconds * 1000)
        outcome = self._complete(row, target, result)
        # A withdrawn result is in no file, and a typed failure does not carry the calls.
        kept = not result.get(keys.NO_PERSIST) if self._recorder is not None else outcome is result
        if kept and self._evidence.may_delete(result):
            if self._recorder is not None:
                await self._recorder.durable()
            await self._evidence.delete_after(row)
        elif self._evidence.seal_captures:
            await self._evidence.seal_after(row)
        return outcome

    def _complete(self, row: JsonObject, target: Target, result: JsonObject) -> Outcome:
        if self._recorder is None and not self._evidence.attach:
            return result
        self._stamp(row, target, result)
        failure: RolloutFailureRecord | None = None
        if result.get(keys.FAILURE_CLASS) == ENVIRONMENT_SERVER_FAILED:
            failure = environment_failure_record(row, result, run_id=self._run_id)
            result[keys.ROLLOUT_FAILURE] = failure.model_dump(mode="json")
        if self._recorder is not None:
            self._record(self._recorder, row, target, result)
        return failure if failure is not None and self._typed_failures else result

    def _record(self, recorder: RunRecorder, row: JsonObject, target: Target, result: JsonObject) -> None:
        """Write a reply where its own marks send it: nowhere, into the sidecar, or among the results."""
        self._unrecorded.discard(id(row))
        if result.get(keys.NO_PERSIST):
            reason = str(result.get(keys.ERROR_MESSAGE) or "the agent withdrew the result")
            recorder.omitted(self._omitted_row(row, {keys.ERROR_MESSAGE: reason}), was_started=True)
        elif result.get(keys.FAILURE_CLASS) is not None:
            result.setdefault(keys.FAILED_AT, time.time())
            kind = result.get(keys.FAILURE_KIND)
            if isinstance(kind, str):
                validate_failure_kind(kind)
            recorder.failure(result, label=target.label)
            self._log_failure(row, result)
        else:
            key = rollout_key(row) if self._prior_failures else None
            if key is not None and key in self._prior_failures:
                result[keys.PRIOR_FAILURES] = self._prior_failures[key]
            if not recorder.success(result, label=target.label):
                logger.warning("%s has a success already; the second one was not written", row_summary(row))

    async def _fail(
        self,
        row: JsonObject,
        target: Target,
        failure: RunFailure,
        seconds: float,
        cause: BaseException | None,
        *,
        retries: Retries,
    ) -> Outcome | None:
        record = failure_record(row, failure, run_id=self._run_id)
        sidecar = sidecar_fields(failure)
        self._stamp(row, target, sidecar)
        if self._recorder is not None or self._evidence.attach:
            sidecar[keys.ROLLOUT_FAILURE] = record.model_dump(mode="json")
            sidecar[keys.RUN_ID] = self._run_id
            sidecar[keys.FAILED_AT] = time.time()
            sidecar[keys.ELAPSED_SECONDS] = seconds
            sidecar = {**failure.rollout, **sidecar}
            # The calls made before it broke are where a reader of the failure looks first; what was not sent made none.
            if failure.delivery != "not_sent" and self._evidence.concerns(sidecar):
                await _finish(self._evidence.attach_to(row, sidecar, latency_ms=seconds * 1000))
        self._unrecorded.discard(id(row))
        self._log_failure(row, sidecar)
        if self._recorder is not None and retries.allow(failure) and self._recorder.failure_to_repeat(sidecar):
            self._remember(row, sidecar)
            return None
        if not self._route_failures:
            if self._recorder is not None:
                self._recorder.unrouted(sidecar, label=target.label)
            raise RolloutRequestError(failure, record, server=target.label) from cause
        if self._recorder is not None:
            self._recorder.failure(sidecar, label=target.label)
        return record if self._typed_failures else sidecar

    def _remember(self, row: JsonObject, sidecar: Mapping[str, Any]) -> None:
        """Keep what a later success is to say of the try before it."""
        key = rollout_key(row)
        if key is not None:
            self._prior_failures.setdefault(key, []).append(prior_failure(sidecar, attempt_of(row)))

    def _check_reachable(self, target: Target, failure: RunFailure) -> None:
        """End the run when a place cannot be reached: every further row would fail the same way, only slower."""
        if failure.delivery != "not_sent":
            self._unsent.pop(target.url, None)
            return
        self._unsent[target.url] += 1
        if self._stop_after_unsent is not None and self._unsent[target.url] >= self._stop_after_unsent:
            raise RunFailedError(
                f"`{target.label}` at `{target.url}` cannot be reached: {self._unsent[target.url]} rollouts in a row "
                "could not be sent. What is done is saved, and `--resume` runs the rest. "
                f"The last error: {failure.message}"
            )

    def _drained(self, row: JsonObject, target: Target, reason: str) -> JsonObject:
        self._latencies.record_drained()
        result = _never_started(reason)
        if self._recorder is not None:
            self._recorder.omitted(self._omitted_row(row, result), was_started=False)
        if self._recorder is not None or self._evidence.attach:
            self._stamp(row, target, result)
        return result

    def _interrupted(self, row: JsonObject, target: Target, seconds: float) -> None:
        if self._recorder is None or id(row) not in self._unrecorded:
            return
        self._unrecorded.discard(id(row))
        interrupted = {keys.ERROR_MESSAGE: "interrupted while running", keys.ELAPSED_SECONDS: seconds}
        omitted = self._omitted_row(row, interrupted)
        if omitted is not None:
            omitted[keys.ENVIRONMENT_SERVER] = target.environment_server
        self._recorder.interrupted(omitted, was_started=True)

    def _omitted_row(self, row: JsonObject, result: JsonObject) -> JsonObject | None:
        return omitted_rollout_record(row, result, run_id=self._run_id) if self._record_omitted else None

    def _stamp(self, row: JsonObject, target: Target, result: JsonObject) -> None:
        stamp_identity(row, result, environment_server=target.environment_server, result_type=target.result_type)
        if self._recorder is not None:
            result[keys.RUN_ID] = self._run_id

    def _log_failure(self, row: JsonObject, sidecar: Mapping[str, Any]) -> None:
        said = str(sidecar.get(keys.FAILURE_MESSAGE) or sidecar.get(keys.FAILURE_REASON) or "")
        said = cut_middle(" ".join(said.split()), _LOGGED_MESSAGE)
        logger.warning("%s failed: %s: %s", row_summary(row), count_label(sidecar), said)


def omitted_rollout_record(
    row: Mapping[str, Any], result: Mapping[str, Any], *, run_id: str | None = None
) -> JsonObject:
    """Return the sidecar row of a try without an outcome; it is neither a failure nor an attempt.

    `result` is what there is instead of one: `error_message`, `elapsed_seconds` where it was measured, and
    `_ng_dispatch_drained` when the try never started.
    """
    never_started = bool(result.get(keys.DISPATCH_DRAINED))
    record: JsonObject = {
        keys.OMITTED_ROLLOUT: True,
        keys.FAILURE_CLASS: CANCELLED if never_started else KILL_SHAPED,
        keys.NO_PERSIST: True,
        keys.ERROR_MESSAGE: result.get(keys.ERROR_MESSAGE) or ("not started" if never_started else "interrupted"),
        keys.FAILED_AT: time.time(),
    }
    if never_started:
        record[keys.DISPATCH_DRAINED] = True
    elif result.get(keys.ELAPSED_SECONDS) is not None:
        record[keys.ELAPSED_SECONDS] = result[keys.ELAPSED_SECONDS]
    if run_id is not None:
        record[keys.RUN_ID] = run_id
    stamp_identity(row, record, environment_server=None, result_type=None)
    return record


def _never_started(reason: str) -> JsonObject:
    return {
        keys.FAILURE_CLASS: CANCELLED,
        keys.NO_PERSIST: True,
        keys.DISPATCH_DRAINED: True,
        keys.ERROR_MESSAGE: reason,
    }


async def _finish(work: Coroutine[Any, Any, _T]) -> _T:
    """Await `work` so that a cancellation lets it end first, for at most five seconds: the rollout itself is over."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=_FINISH_ON_CANCEL_S)
        if not task.done():
            task.cancel()
        elif not task.cancelled() and (error := task.exception()) is not None:
            raise error from None
        raise


def _invalid_result(target: Target, error: ValueError) -> RunFailure:
    stale = "belongs to another rollout" in str(error)
    return RunFailure(
        failure_class=AGENT_RUN_ERROR,
        kind=AGENT_RUN_ERROR,
        delivery="delivered",
        message=f"`POST {target.url}`: {error}",
        exception_type="StaleRolloutResult" if stale else "InvalidRolloutResult",
        status=200,
    )

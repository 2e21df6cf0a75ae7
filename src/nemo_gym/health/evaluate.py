"""From the bytes of one line to everything that health keeps of it. Pure; never raises for any bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

import msgspec

from nemo_gym.health import registry
from nemo_gym.health.checks import ROLLOUT_CHECKS, Found, ended_on_failed_call
from nemo_gym.health.facts import NO_COUNT, RolloutFacts
from nemo_gym.health.lines import Problem, RecordFacts, read_line
from nemo_gym.records.call_outcome import answered
from nemo_gym.records.evidence import TrajectoryModelCall

CHECK_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What a check that has a defect, or meets a value nobody thought of, can raise."""

_NEEDS_A_RECORD = (registry.CHECK_EXECUTION_ERROR, registry.DUPLICATE_IDENTITY, *ROLLOUT_CHECKS)


class Outcome(msgspec.Struct, kw_only=True):
    """One line, evaluated; None among the identity values means that the line does not say.

    `line` and `ordinal` count inside the range that was read, from 0; `readable` is False for a line that is no
    record.
    """

    line: int = 0
    ordinal: int = 0
    readable: bool = True
    task_index: int | str | None = None
    rollout_index: int | str | None = None
    stage_index: int | str | None = None
    rollout_id: str | None = None
    trajectory_rollout_id: str | None = None
    run_id: str | None = None
    findings: list[Found] = []
    unobserved: list[str] = []
    capture_observed: bool = False
    policy_calls_observed: bool = False
    model_calls: int = 0
    successful_model_calls: int = 0
    errors_by_status: dict[str, int] = {}
    ended_on_error: bool = False
    duplicated_calls: int = 0
    transcript_prompt_tokens: int | None = None
    transcript_completion_tokens: int | None = None
    capture_prompt_tokens: int | None = None
    capture_completion_tokens: int | None = None
    gap_codes: tuple[str, ...] = ()


def evaluate_line(line: bytes | None, ignored: Container[str] = ()) -> Outcome:
    """Return the outcome of one line; None stands for a line too long to read."""
    if line is None:
        return _unreadable(Problem(reason="longer than a record can be", error="OverflowError"), ignored)
    record = read_line(line)
    return _unreadable(record, ignored) if isinstance(record, Problem) else evaluate_record(record, ignored)


def _unreadable(problem: Problem, ignored: Container[str]) -> Outcome:
    detail = {"reason": problem.reason, "error": problem.error}
    findings = [] if registry.RECORD_UNREADABLE in ignored else [Found(registry.RECORD_UNREADABLE, None, detail)]
    unobserved = [check for check in _NEEDS_A_RECORD if check not in ignored]
    return Outcome(readable=False, findings=findings, unobserved=unobserved)


def evaluate_record(record: RecordFacts, ignored: Container[str] = ()) -> Outcome:
    """Run every check that is not ignored over one readable record."""
    facts = RolloutFacts(record)
    outcome = Outcome(
        task_index=record.task_index,
        rollout_index=record.rollout_index,
        stage_index=record.stage_index,
        rollout_id=record.rollout_id,
        trajectory_rollout_id=None if record.trajectory is None else record.trajectory.rollout_id,
        run_id=record.run_id,
        gap_codes=record.gap_codes,
    )
    if registry.RECORD_UNREADABLE not in ignored:
        outcome.findings += [
            Found(registry.RECORD_UNREADABLE, None, {"reason": problem.reason, "error": problem.error})
            for problem in record.problems
        ]
    for check, function in ROLLOUT_CHECKS.items():
        if check in ignored:
            continue
        try:
            found = function(facts)
        except CHECK_ERRORS as error:
            found = None
            if registry.CHECK_EXECUTION_ERROR not in ignored:
                detail = {"reason": "the check raised", "failed_check": check, "error": type(error).__name__}
                outcome.findings.insert(0, Found(registry.CHECK_EXECUTION_ERROR, None, detail))
        if found is None:
            outcome.unobserved.append(check)
        else:
            outcome.findings += found
    _count(outcome, facts)
    return outcome


def _count(outcome: Outcome, facts: RolloutFacts) -> None:
    """Fill in what the summary and the task checks add up."""
    calls, failures = facts.calls, facts.failures
    outcome.capture_observed = facts.calls_observed
    outcome.policy_calls_observed = facts.scope_complete and facts.turn_view.complete
    outcome.model_calls = len(calls)
    outcome.transcript_prompt_tokens, outcome.transcript_completion_tokens = facts.usage_counts
    if not calls:
        return
    matched = facts.turn_view.matched
    outcome.successful_model_calls = sum([answered(calls[at]) for at in matched if not failures[at]])
    if True in failures:
        failed = [call for call, failure in zip(calls, failures, strict=True) if failure]
        statuses = [call.response_metadata.status_code for call in failed]
        by_status = Counter("unknown" if status is None else str(status) for status in statuses)
        outcome.errors_by_status = dict(sorted(by_status.items()))
        outcome.ended_on_error = bool(ended_on_failed_call(facts))
    tokens = [call.token_stats for call in calls]
    outcome.capture_prompt_tokens = _sum([counts.prompt_tokens for counts in tokens])
    outcome.capture_completion_tokens = _sum([counts.completion_tokens for counts in tokens])
    # The ids of a valid trajectory are unique: only calls without one can be the same call twice.
    known = [name for call in calls if not call.model_call_id and (name := _replay_identity(call)) is not None]
    outcome.duplicated_calls = len(known) - len(set(known))


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None and value < NO_COUNT]
    return sum(known) if known else None


def _replay_identity(call: TrajectoryModelCall) -> object:
    response_id, server = call.response_metadata.response_id, call.response_metadata.model_ref
    return None if not response_id or server is None else (server.type, server.name, response_id)

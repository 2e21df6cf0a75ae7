"""The checks by id, in evaluation order (A8, A26)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from nemo_gym.errors import ConfigError, nearest_name
from nemo_gym.health.meanings import CHECK_MEANINGS
from nemo_gym.health.types import CheckInput, CheckScope, CheckSpec, CheckSubject
from nemo_gym.records.gaps import BlockedInput

CHECK_EXECUTION_ERROR = "check_execution_error"
RECORD_UNREADABLE = "record_unreadable"
DUPLICATE_IDENTITY = "rollout_duplicate_identity"
MISSING_AGENT_TURNS = "rollout_missing_agent_turns"
ENDED_ON_FAILED_CALL = "rollout_ended_on_failed_model_call"
TURN_HOLLOW = "agent_turn_hollow"
ZERO_COMPLETION_TOKENS = "model_call_zero_completion_tokens"
MISSING_TOKEN_COUNTS = "model_call_missing_token_counts"
CAPTURE_MISMATCH = "trajectory_capture_mismatch"
CALL_FAILED = "model_call_failed"
TOKEN_COUNT_MISMATCH = "rollout_token_count_mismatch"
RUNAWAY_GENERATION = "model_call_runaway_generation"
CONSISTENTLY_UNHEALTHY = "task_consistently_unhealthy"
NO_SUCCESSFUL_CALLS = "task_no_successful_model_calls"

_ROLLOUT, _TASK = CheckScope.ROLLOUT, CheckScope.TASK
_NO_TURNS: frozenset[BlockedInput] = frozenset({"trajectory", "turns"})
_NO_CALLS: frozenset[BlockedInput] = frozenset({"trajectory", "model_calls"})
_NO_SCOPE: frozenset[BlockedInput] = frozenset({"trajectory", "model_call_scope"})


def _spec(
    check: str,
    subject: CheckSubject,
    *reads: CheckInput,
    scope: CheckScope = _ROLLOUT,
    blocked_by: frozenset[BlockedInput] = frozenset(),
    in_verdict: bool = True,
) -> CheckSpec:
    return CheckSpec(
        id=check,
        evaluation_scope=scope,
        subject=subject,
        reads=frozenset(reads),
        blocked_by=blocked_by,
        in_verdict=in_verdict,
        meaning=CHECK_MEANINGS[check],
    )


_SPECS = (
    _spec(CHECK_EXECUTION_ERROR, CheckSubject.CHECK_EXECUTION, CheckInput.RECORD),
    _spec(RECORD_UNREADABLE, CheckSubject.RECORD, CheckInput.RECORD),
    _spec(DUPLICATE_IDENTITY, CheckSubject.ROLLOUT, CheckInput.RECORD),
    _spec(MISSING_AGENT_TURNS, CheckSubject.ROLLOUT, CheckInput.AGENT_TURNS, blocked_by=_NO_TURNS),
    _spec(ENDED_ON_FAILED_CALL, CheckSubject.ROLLOUT, CheckInput.OBSERVED_MODEL_CALLS, blocked_by=_NO_CALLS),
    _spec(TURN_HOLLOW, CheckSubject.AGENT_TURN, CheckInput.AGENT_TURNS, blocked_by=_NO_TURNS),
    _spec(ZERO_COMPLETION_TOKENS, CheckSubject.MODEL_CALL, CheckInput.OWNED_MODEL_CALLS, blocked_by=_NO_CALLS),
    _spec(MISSING_TOKEN_COUNTS, CheckSubject.MODEL_CALL, CheckInput.OWNED_MODEL_CALLS, blocked_by=_NO_CALLS),
    _spec(
        CAPTURE_MISMATCH,
        CheckSubject.TRAJECTORY_CAPTURE,
        CheckInput.TRAJECTORY,
        CheckInput.OWNED_MODEL_CALLS,
        blocked_by=_NO_CALLS,
    ),
    # A call that failed and was retried is no defect of the evidence: it is counted in `run.stats`.
    _spec(CALL_FAILED, CheckSubject.MODEL_CALL, CheckInput.OWNED_MODEL_CALLS, in_verdict=False),
    _spec(
        TOKEN_COUNT_MISMATCH,
        CheckSubject.ROLLOUT,
        CheckInput.RECORD,
        CheckInput.OWNED_MODEL_CALLS,
        blocked_by=_NO_SCOPE,
    ),
    _spec(RUNAWAY_GENERATION, CheckSubject.MODEL_CALL, CheckInput.OWNED_MODEL_CALLS, blocked_by=_NO_CALLS),
    _spec(CONSISTENTLY_UNHEALTHY, CheckSubject.TASK, CheckInput.REPEAT_VERDICTS, scope=_TASK),
    _spec(
        NO_SUCCESSFUL_CALLS,
        CheckSubject.TASK,
        CheckInput.BOUND_CALLS,
        CheckInput.REPEAT_DIGESTS,
        scope=_TASK,
        blocked_by=_NO_SCOPE,
    ),
)

CHECK_REGISTRY: Mapping[str, CheckSpec] = MappingProxyType({spec.id: spec for spec in _SPECS})
"""Every check id ever accepted, in evaluation order."""


def normalize_ignored_checks(ignored: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return the ids of a list or a comma text: stripped, without empties, each once, in the order given.

    Raises ConfigError (a ValueError) naming the first id that no check has.
    """
    if ignored is None:
        return ()
    parts = ignored.split(",") if isinstance(ignored, str) else [part for item in ignored for part in item.split(",")]
    ids = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    for check in ids:
        if check not in CHECK_REGISTRY:
            raise ConfigError(f"there is no health check `{check}`.{nearest_name(check, CHECK_REGISTRY)}")
    return ids

"""The checks by id, in evaluation order (A8, A26)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from nemo_gym.errors import ConfigError, nearest_name
from nemo_gym.health.types import CheckInput, CheckScope, CheckSpec, CheckSubject

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


_NO_OWNED_CALL = "the model calls were not observed, or no reference finds one"

_MEANINGS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        CHECK_EXECUTION_ERROR: (
            "Another check raised. That check is then unobserved, and the others go on.",
            "the line cannot be read",
        ),
        RECORD_UNREADABLE: (
            (
                "The line is no JSON object, or a part of it that is there cannot be used: an invalid trajectory, an "
                "identity of a wrong type, a key that stands twice."
            ),
            "never",
        ),
        DUPLICATE_IDENTITY: (
            "Several records of one run share task, rollout and stage. Every copy has the finding.",
            "the line cannot be read",
        ),
        MISSING_AGENT_TURNS: (
            "The agent stated its turns, and none has content, a tool call or a model call.",
            "the agent stated no turns",
        ),
        ENDED_ON_FAILED_CALL: (
            (
                "The last call to a model server failed. Last is by start; when outcomes are mixed and a start is "
                "unknown nothing is said."
            ),
            "the model calls were not observed, or there is none",
        ),
        TURN_HOLLOW: (
            "A turn has neither answer nor reasoning, and calls no tool.",
            "the agent stated no turns",
        ),
        ZERO_COMPLETION_TOKENS: ("A call that was answered is said to have produced no token.", _NO_OWNED_CALL),
        MISSING_TOKEN_COUNTS: (
            (
                "A call that was answered has no prompt or no completion count. A failed attempt and a refused context "
                "owe none."
            ),
            _NO_OWNED_CALL,
        ),
        CAPTURE_MISMATCH: (
            (
                "A reference and the capture contradict each other: no call fits it, several do, or another invocation "
                "owns it."
            ),
            "the model calls were not observed, or there is neither a reference nor a contradiction",
        ),
        CALL_FAILED: (
            (
                "Never: a call that failed and was retried is no defect of the evidence. The summary counts it. The id "
                "is accepted where checks are ignored."
            ),
            "never",
        ),
        TOKEN_COUNT_MISMATCH: (
            "The usage that the agent reports is not the sum over the calls it owns. Failed attempts add nothing.",
            "a reference does not find exactly one call, a count is unknown, or the agent reports no usage",
        ),
        RUNAWAY_GENERATION: (
            "A call ran into its token limit and shows nothing for it.",
            _NO_OWNED_CALL + ", or the response of a call that ran into its limit was not saved",
        ),
        CONSISTENTLY_UNHEALTHY: (
            "Every repeat of the task that has a verdict is unhealthy.",
            "fewer than two repeats have a verdict",
        ),
        NO_SUCCESSFUL_CALLS: (
            "No turn of any repeat names a call that succeeded.",
            "a repeat does not know the calls of its turns completely",
        ),
    }
)
"""Check id -> what it finds, and when it is unobserved: the sentences that people read."""


def _spec(
    check: str, scope: CheckScope, subject: CheckSubject, *reads: CheckInput, in_verdict: bool = True
) -> CheckSpec:
    finds, unobserved = _MEANINGS[check]
    return CheckSpec(
        id=check,
        evaluation_scope=scope,
        subject=subject,
        reads=frozenset(reads),
        in_verdict=in_verdict,
        finds=finds,
        unobserved=unobserved,
    )


_ROLLOUT, _TASK = CheckScope.ROLLOUT, CheckScope.TASK
_SPECS = (
    _spec(CHECK_EXECUTION_ERROR, _ROLLOUT, CheckSubject.CHECK_EXECUTION, CheckInput.RECORD),
    _spec(RECORD_UNREADABLE, _ROLLOUT, CheckSubject.RECORD, CheckInput.RECORD),
    _spec(DUPLICATE_IDENTITY, _ROLLOUT, CheckSubject.ROLLOUT, CheckInput.RECORD),
    _spec(MISSING_AGENT_TURNS, _ROLLOUT, CheckSubject.ROLLOUT, CheckInput.AGENT_TURNS),
    _spec(ENDED_ON_FAILED_CALL, _ROLLOUT, CheckSubject.ROLLOUT, CheckInput.OBSERVED_MODEL_CALLS),
    _spec(TURN_HOLLOW, _ROLLOUT, CheckSubject.AGENT_TURN, CheckInput.AGENT_TURNS),
    _spec(ZERO_COMPLETION_TOKENS, _ROLLOUT, CheckSubject.MODEL_CALL, CheckInput.OWNED_MODEL_CALLS),
    _spec(MISSING_TOKEN_COUNTS, _ROLLOUT, CheckSubject.MODEL_CALL, CheckInput.OWNED_MODEL_CALLS),
    _spec(
        CAPTURE_MISMATCH, _ROLLOUT, CheckSubject.TRAJECTORY_CAPTURE, CheckInput.TRAJECTORY, CheckInput.OWNED_MODEL_CALLS
    ),
    # A call that failed and was retried is no defect of the evidence: it is counted in `run.stats`.
    _spec(CALL_FAILED, _ROLLOUT, CheckSubject.MODEL_CALL, CheckInput.OWNED_MODEL_CALLS, in_verdict=False),
    _spec(TOKEN_COUNT_MISMATCH, _ROLLOUT, CheckSubject.ROLLOUT, CheckInput.RECORD, CheckInput.OWNED_MODEL_CALLS),
    _spec(RUNAWAY_GENERATION, _ROLLOUT, CheckSubject.MODEL_CALL, CheckInput.OWNED_MODEL_CALLS),
    _spec(CONSISTENTLY_UNHEALTHY, _TASK, CheckSubject.TASK, CheckInput.REPEAT_VERDICTS),
    _spec(NO_SUCCESSFUL_CALLS, _TASK, CheckSubject.TASK, CheckInput.BOUND_CALLS, CheckInput.REPEAT_DIGESTS),
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

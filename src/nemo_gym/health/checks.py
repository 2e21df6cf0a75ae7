"""The checks of one rollout: facts in, findings out, None when what a check needs was not observed.

Each is a pure function; which ids they have, and their order, is in `registry`. The task checks are in `tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from nemo_gym.health import registry
from nemo_gym.health.facts import NO_COUNT, RolloutFacts, call_id, failed_attempt, tokens_unowed
from nemo_gym.health.payloads import has_content, has_tool_call, response_has_content
from nemo_gym.health.registry import CHECK_REGISTRY, normalize_ignored_checks
from nemo_gym.records.call_outcome import successful
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.evidence import TrajectoryModelCall, TrajectoryTurn

LENGTH_STOPS = frozenset({"length", "max_output_tokens", "max_tokens"})
CONTRADICTIONS = MappingProxyType(
    {
        "model_call_reference_unmatched": "missing_captured_call",
        "model_call_reference_ambiguous": "duplicated_captured_call",
        "model_call_reference_conflict": "conflicting_call_ownership",
    }
)
"""Gap that contradicts the trajectory -> kind of the finding."""


class Found(NamedTuple):
    """A finding before it is known whose it is."""

    check: str
    locator: JsonObject | None
    detail: JsonObject


Check: TypeAlias = Callable[[RolloutFacts], list[Found] | None]


def missing_agent_turns(facts: RolloutFacts) -> list[Found] | None:
    """No turn shows content, a tool call or a reference to a call."""
    if not facts.turns_observed or facts.trajectory is None:
        return None
    for turn in facts.trajectory.turns:
        if turn.model_calls or _shows_something(turn):
            return []
    reason = "no turn has content, a tool call or a model call"
    return [Found(registry.MISSING_AGENT_TURNS, None, {"reason": reason})]


def ended_on_failed_call(facts: RolloutFacts) -> list[Found] | None:
    """Per model server, the last call failed. Reads all calls, owned or not.

    Order is that of `started_at`, then position. A server whose calls all failed needs no order; one with mixed
    outcomes and an unknown start gives nothing, since which call was last is then not known.
    """
    if not facts.calls_observed or not facts.calls:
        return None
    failures = facts.failures
    if True not in failures:
        return []
    chains: dict[str | None, list[int]] = {}
    for position, call in enumerate(facts.calls):
        server = call.response_metadata.model_ref
        chains.setdefault(None if server is None else f"{server.type}/{server.name}", []).append(position)
    found = []
    for server_name, positions in chains.items():
        last = _last_of(facts.calls, positions, all_failed=all(failures[position] for position in positions))
        if last is None or not failures[last]:
            continue
        call = facts.calls[last]
        detail = {
            "model_ref": server_name,
            "status": call.response_metadata.status_code,
            "error_category": call.response_metadata.error_category,
            "observed_calls": len(positions),
            "successful_calls": sum(successful(facts.calls[position]) for position in positions),
        }
        found.append(Found(registry.ENDED_ON_FAILED_CALL, {"call_id": call_id(call, last)}, detail))
    return found


def _last_of(calls: list[TrajectoryModelCall], positions: list[int], *, all_failed: bool) -> int | None:
    starts = [(calls[position].started_at, position) for position in positions]
    known = [(start, position) for start, position in starts if start is not None]
    if len(known) == len(starts):
        return max(known)[1]
    return positions[-1] if all_failed else None


def hollow_turn(facts: RolloutFacts) -> list[Found] | None:
    """A turn has neither answer nor reasoning, and calls no tool."""
    if not facts.turns_observed or facts.trajectory is None:
        return None
    return [
        Found(
            registry.TURN_HOLLOW, {"turn": turn.turn_no}, {"reason": "the turn has no answer, reasoning or tool call"}
        )
        for turn in facts.trajectory.turns
        if not _shows_something(turn)
    ]


def _shows_something(turn: TrajectoryTurn) -> bool:
    return has_tool_call(turn.answer) or has_content(turn.answer) or has_content(turn.reasoning_content)


def zero_completion_tokens(facts: RolloutFacts) -> list[Found] | None:
    """A call is said to have produced no token, though it was answered."""
    if not facts.calls_observed or not facts.owned_calls:
        return None
    return [
        Found(registry.ZERO_COMPLETION_TOKENS, {"call_id": call_id(call, position)}, {"completion_tokens": 0})
        for position, call in facts.owned_calls
        if call.token_stats.completion_tokens == 0 and not tokens_unowed(call)
    ]


def missing_token_counts(facts: RolloutFacts) -> list[Found] | None:
    """A call that was answered has no prompt or no completion count."""
    if not facts.calls_observed or not facts.owned_calls:
        return None
    found = []
    for position, call in facts.owned_calls:
        counts = call.token_stats
        if counts.prompt_tokens is not None and counts.completion_tokens is not None:
            continue
        if tokens_unowed(call):
            continue
        missing = [
            name
            for name, value in (
                ("prompt_tokens", counts.prompt_tokens),
                ("completion_tokens", counts.completion_tokens),
            )
            if value is None
        ]
        locator: JsonObject = {"call_id": call_id(call, position)}
        found.append(Found(registry.MISSING_TOKEN_COUNTS, locator, {"missing": missing}))
    return found


def capture_mismatch(facts: RolloutFacts) -> list[Found] | None:
    """A reference and the capture contradict each other: nothing fits it, several calls do, or another owns the call.

    Contradictions come from matching again, and from the gaps that the join left; one per kind and id.
    """
    if not facts.calls_observed or facts.trajectory is None:
        return None
    gaps = [gap for gap in facts.trajectory.gaps if gap.code in CONTRADICTIONS]
    if not facts.owned_view.any_reference and not gaps:
        return None
    found, reported = [], set()
    for reference, count in facts.owned_view.unmatched.items():
        name = _bare(reference.model_call_id or reference.response_id)
        detail: JsonObject = {"kind": "missing_captured_call"}
        if count:
            detail = {"kind": "duplicated_captured_call", "count": count}
        reported.add((detail["kind"], name))
        found.append(Found(registry.CAPTURE_MISMATCH, {"call_id": name}, detail))
    for gap in gaps:
        kind, name = CONTRADICTIONS[gap.code], _bare(gap.detail)
        if (kind, name) in reported:
            continue
        reported.add((kind, name))
        detail = {"kind": kind, "observation_gap": gap.code, "invocation_id": gap.invocation_id}
        found.append(Found(registry.CAPTURE_MISMATCH, {"call_id": name}, detail))
    return found


def _bare(text: str | None) -> str:
    return (text or "").rsplit(":", 1)[-1] or "unknown"


def token_count_mismatch(facts: RolloutFacts) -> list[Found] | None:
    """The agent's usage is not the sum over the owned calls; failed attempts add nothing (A22)."""
    if not facts.scope_complete or not facts.owned_view.complete or not facts.owned_calls:
        return None
    prompt, completion = facts.usage_counts
    if prompt is None or completion is None:
        return None
    captured_prompt = captured_completion = 0
    failures = facts.failures
    for position, call in facts.owned_calls:
        if failures[position] and failed_attempt(call):
            continue
        counts = call.token_stats
        of_prompt, of_completion = counts.prompt_tokens, counts.completion_tokens
        if of_prompt is None or of_completion is None or of_prompt >= NO_COUNT or of_completion >= NO_COUNT:
            return None
        captured_prompt += of_prompt
        captured_completion += of_completion
    if (prompt, completion) == (captured_prompt, captured_completion):
        return []
    detail = {
        "transcript_prompt": prompt,
        "transcript_completion": completion,
        "capture_prompt": captured_prompt,
        "capture_completion": captured_completion,
    }
    return [Found(registry.TOKEN_COUNT_MISMATCH, None, detail)]


def runaway_generation(facts: RolloutFacts) -> list[Found] | None:
    """A call ran into its token limit and shows nothing for it."""
    if not facts.calls_observed or not facts.owned_calls:
        return None
    stopped = [item for item in facts.owned_calls if item[1].response_metadata.finish_reason in LENGTH_STOPS]
    if any(call.response is None for _, call in stopped):
        return None
    return [
        Found(
            registry.RUNAWAY_GENERATION,
            {"call_id": call_id(call, position)},
            {"finish_reason": call.response_metadata.finish_reason},
        )
        for position, call in stopped
        if not response_has_content(call.response)
    ]


ROLLOUT_CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        registry.MISSING_AGENT_TURNS: missing_agent_turns,
        registry.ENDED_ON_FAILED_CALL: ended_on_failed_call,
        registry.TURN_HOLLOW: hollow_turn,
        registry.ZERO_COMPLETION_TOKENS: zero_completion_tokens,
        registry.MISSING_TOKEN_COUNTS: missing_token_counts,
        registry.CAPTURE_MISMATCH: capture_mismatch,
        registry.TOKEN_COUNT_MISMATCH: token_count_mismatch,
        registry.RUNAWAY_GENERATION: runaway_generation,
    }
)
"""The checks that look at a record's evidence, by id, in evaluation order."""

__all__ = [
    "CHECK_REGISTRY",
    "CONTRADICTIONS",
    "LENGTH_STOPS",
    "ROLLOUT_CHECKS",
    "Check",
    "Found",
    "ended_on_failed_call",
    "normalize_ignored_checks",
]

"""What the checks may know about one record, derived from its trajectory by the rules of A6-A8.

A fact is None, or False, when the evidence for it is missing; `gaps` decide what was observed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from nemo_gym.health.lines import RecordFacts
from nemo_gym.records.call_outcome import failed
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.evidence import ModelCallRef, ModelServerRef, TrajectoryModelCall, TrajectoryRecord
from nemo_gym.records.gaps import blocked_inputs
from nemo_gym.records.matching import CallIdentity, CallIndex

FINISHED_STATUSES = frozenset({"completed", "incomplete"})
CONTEXT_REFUSED = "context_length_exceeded"
NO_COUNT = 1 << 63
"""So many of anything nobody can have counted."""


class Bindings:
    """References matched to calls: each distinct reference once, each matched call once.

    `matched` are positions in trajectory order. `unmatched` are the references that mean no single call, each once and
    in order, with the number of calls that fit. `complete`: there is a reference, and every one means one call.
    """

    __slots__ = ("any_reference", "complete", "matched", "unmatched")

    def __init__(self, matched: set[int], unmatched: Mapping[ModelCallRef, int]) -> None:
        self.matched = sorted(matched)
        self.unmatched = unmatched
        self.any_reference = bool(matched or unmatched)
        self.complete = self.any_reference and not unmatched


class RolloutFacts:
    """The derived facts of one readable record.

    `failures` says of each call whether it failed. `turn_view` binds the references of turns, `owned_view` those of
    turns and invocations; `owned_calls` are the calls of the latter with their positions, in trajectory order.
    `usage_counts` are the prompt and completion tokens that the agent reported for its whole response.
    """

    __slots__ = (
        "calls",
        "calls_observed",
        "failures",
        "owned_calls",
        "owned_view",
        "scope_complete",
        "trajectory",
        "turn_view",
        "turns_observed",
        "usage_counts",
    )

    def __init__(self, record: RecordFacts) -> None:
        usage = record.usage or {}
        self.usage_counts: tuple[int | None, int | None] = (
            _count(usage, "input_tokens", "prompt_tokens"),
            _count(usage, "output_tokens", "completion_tokens"),
        )
        trajectory = record.trajectory
        blocked = blocked_inputs(() if trajectory is None else [gap.code for gap in trajectory.gaps])
        self.trajectory: TrajectoryRecord | None = None if "trajectory" in blocked else trajectory
        observed = self.trajectory is not None
        self.turns_observed = observed and "turns" not in blocked
        self.calls_observed = observed and "model_calls" not in blocked
        self.scope_complete = observed and "model_call_scope" not in blocked
        self.calls: list[TrajectoryModelCall] = [] if self.trajectory is None else self.trajectory.model_calls
        self.failures = list(map(failed, self.calls))
        self.turn_view, self.owned_view = self._views()
        self.owned_calls = [(position, self.calls[position]) for position in self.owned_view.matched]

    def _views(self) -> tuple[Bindings, Bindings]:
        if self.trajectory is None:
            return Bindings(set(), {}), Bindings(set(), {})
        binder = _Binder(self.calls)
        binder.bind(chain.from_iterable([turn.model_calls for turn in self.trajectory.turns]))
        of_turns = len(binder.matched), len(binder.unmatched)
        turn_view = Bindings(binder.matched, dict(binder.unmatched))
        binder.bind(chain.from_iterable([invocation.model_calls for invocation in self.trajectory.invocations]))
        if of_turns == (len(binder.matched), len(binder.unmatched)):
            return turn_view, turn_view  # turns name all that their invocations name
        return turn_view, Bindings(binder.matched, binder.unmatched)


class _Binder:
    """Binds references to calls by the one rule of `records.matching`.

    The ids of a valid trajectory's calls are unique, so that nearly every reference is settled by one look; whatever
    is not goes through the index.
    """

    __slots__ = ("_by_id", "_calls", "_index", "matched", "unmatched")

    def __init__(self, calls: list[TrajectoryModelCall]) -> None:
        self._calls = calls
        self._by_id: dict[str | None, tuple[int, ModelServerRef | None, str | None]] = {
            name: (position, call.response_metadata.model_ref, call.response_metadata.response_id)
            for position, call in enumerate(calls)
            if (name := call.model_call_id)
        }
        self._index: CallIndex | None = None
        self.matched: set[int] = set()
        self.unmatched: dict[ModelCallRef, int] = {}

    def bind(self, references: Iterable[ModelCallRef]) -> None:
        by_id, matched = self._by_id, self.matched
        for reference in references:
            named = by_id.get(reference.model_call_id)
            if named is not None:
                position, its_server, its_response = named
                server, response_id = reference.model_ref, reference.response_id
                if (server is None or server == its_server) and (not response_id or response_id == its_response):
                    matched.add(position)
                    continue
            if self._index is None:
                self._index = CallIndex(map(_identity_of_call, self._calls))
            found = self._index.match(reference)
            if len(found) == 1:
                matched.add(found[0])
            else:
                self.unmatched[reference] = len(found)


def call_id(call: TrajectoryModelCall, position: int) -> str:
    """Return what a locator calls a call: its id, else its response's id, else its position."""
    return call.model_call_id or call.response_metadata.response_id or str(position)


def failed_attempt(call: TrajectoryModelCall) -> bool:
    """Return whether a call failed without a finished response: neither a completed body nor any usage (A22)."""
    if not failed(call):
        return False
    facts, counts = call.response_metadata, call.token_stats
    if facts.response_status in FINISHED_STATUSES:
        return False
    if counts.prompt_tokens is not None or counts.completion_tokens is not None or counts.total_tokens is not None:
        return False
    body = call.response
    return not (isinstance(body, dict) and (body.get("status") in FINISHED_STATUSES or bool(body.get("usage"))))


def context_refused(call: TrajectoryModelCall) -> bool:
    """Return whether the upstream refused the prompt as too long."""
    facts = call.response_metadata
    return (
        facts.upstream_attempted is True
        and facts.upstream_status_code == 400
        and CONTEXT_REFUSED in (facts.local_response_reason, facts.error_category)
    )


def tokens_unowed(call: TrajectoryModelCall) -> bool:
    """Return whether nobody can expect token counts of a call."""
    return failed_attempt(call) or context_refused(call)


def _identity_of_call(call: TrajectoryModelCall) -> CallIdentity:
    facts = call.response_metadata
    server = facts.model_ref
    return CallIdentity(
        call.model_call_id or None,
        None if server is None else (server.type, server.name),
        facts.response_id or None,
    )


def _count(usage: JsonObject, *names: str) -> int | None:
    for name in names:
        value = usage.get(name)
        if value is not None:
            return known_count(value) if type(value) is int else None
    return None


def known_count(value: int | None) -> int | None:
    """Return a count; None for one that nothing can have counted."""
    return value if value is not None and value < NO_COUNT else None

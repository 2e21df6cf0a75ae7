"""The projection: joined evidence of one rollout as one `ng_trajectory` (A5, A9, A10, A23).

Producer records come first and are completed, never replaced, by what was observed and captured. Turns are the
producer's or none: nothing here makes a turn out of a call or of a conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.evidence import (
    AgentInvocation,
    AgentObservationBundle,
    ModelCallRef,
    ObservationGap,
    ToolCallObservation,
    TrajectoryModelCall,
    TrajectoryRecord,
    TrajectoryTurn,
    ValidationError,
    dump,
    dump_to_write,
    read,
    with_model_calls,
)
from nemo_gym.records.gaps import (
    CAPTURE_GAP_INVALID,
    CONVERSATION_UNAVAILABLE,
    MODEL_CALLS_UNAVAILABLE,
    OBSERVATIONS_INVALID,
    PRODUCER_IDENTITY_MISMATCH,
    PRODUCER_INVALID,
    PROJECTION_FAILED,
    TRAJECTORY_IDENTITY_INVALID,
    TURNS_UNAVAILABLE,
)
from nemo_gym.records.identity import TrajectoryIdentity
from nemo_gym.records.matching import CallIndex
from nemo_gym.records.model_calls import ModelCallRecord
from nemo_gym.trajectory.calls import merge_calls, renamed_references
from nemo_gym.trajectory.gaps import without_repeats
from nemo_gym.trajectory.payloads import drop_captured_payloads
from nemo_gym.trajectory.tools import merge_tools, tool_outputs

PROJECTION_ERRORS = (ValidationError, ValueError, TypeError, RecursionError)
"""What malformed evidence can raise: schema errors, and those of values that are not even JSON."""


class Projection(NamedTuple):
    """A trajectory, and its model calls by their identifiers."""

    trajectory: TrajectoryRecord
    calls: CallIndex


class Captured(NamedTuple):
    """The records that a capture attachment was made from, and their index: they spare reading it again."""

    records: Sequence[ModelCallRecord]
    calls: CallIndex


def project_record(
    result: JsonObject,
    *,
    identity: TrajectoryIdentity,
    joined: AgentObservationBundle | None = None,
    include_payloads: bool = True,
    keep_captured_payloads: bool = False,
) -> TrajectoryRecord | None:
    """Put `ng_trajectory` on `result`, made from its evidence keys; returns it, or None when there is no evidence.

    On success the bodies leave `ng_model_call_capture` unless `keep_captured_payloads`. On failure there is no
    trajectory, the bodies stay, and the gap `trajectory_projection_failed` is added where it can be; the rollout
    itself never fails. `joined` spares reading `ng_agent_observations` again.
    """
    projection = project_onto(
        result,
        identity=identity,
        joined=joined,
        include_payloads=include_payloads,
        keep_captured_payloads=keep_captured_payloads,
    )
    return None if projection is None else projection.trajectory


def project_onto(
    result: JsonObject,
    *,
    identity: TrajectoryIdentity,
    joined: AgentObservationBundle | None = None,
    captured: Captured | None = None,
    include_payloads: bool = True,
    keep_captured_payloads: bool = False,
    only_written: bool = False,
) -> Projection | None:
    """Do what `project_record` does; `captured` is what `ng_model_call_capture` of the result was made from.

    `only_written` is for a result that nobody is going to read before it is written: see `dump_to_write`.
    """
    if all(result.get(key) is None for key in keys.EVIDENCE_KEYS):
        return None
    try:
        projection = project(
            identity=identity,
            capture=result.get(keys.MODEL_CALL_CAPTURE),
            observations=result.get(keys.AGENT_OBSERVATIONS) if joined is None else joined,
            producer=result.get(keys.TRAJECTORY),
            captured=captured,
            include_payloads=include_payloads,
        )
    except PROJECTION_ERRORS as error:
        _record_failure(result, identity, type(error).__name__)
        return None
    result[keys.TRAJECTORY] = (dump_to_write if only_written else dump)(projection.trajectory)
    if not keep_captured_payloads:
        drop_captured_payloads(result.get(keys.MODEL_CALL_CAPTURE))
    return projection


def project_trajectory(
    *,
    identity: TrajectoryIdentity,
    capture: object = None,
    observations: object = None,
    producer: object = None,
    include_payloads: bool = True,
) -> TrajectoryRecord:
    """Return the trajectory of one rollout; raises one of `PROJECTION_ERRORS` when `capture` has another shape.

    `capture` is `ng_model_call_capture`, `observations` the joined bundle, `producer` the agent's own trajectory; each
    may be None. An invalid bundle or producer trajectory is left out with a gap.
    """
    return project(
        identity=identity,
        capture=capture,
        observations=observations,
        producer=producer,
        include_payloads=include_payloads,
    ).trajectory


def project(
    *,
    identity: TrajectoryIdentity,
    capture: object,
    observations: object,
    producer: object,
    captured: Captured | None = None,
    include_payloads: bool = True,
) -> Projection:
    """Do what `project_trajectory` does, and return the index of the calls too."""
    gaps: list[ObservationGap] = []
    if identity.override_invalid:
        gaps.append(ObservationGap(code=TRAJECTORY_IDENTITY_INVALID))
    stated = _read_producer(producer, identity, gaps)
    bundle = _read_bundle(observations, gaps)
    calls, capture_gaps = _read_capture(capture)
    index = CallIndex(calls) if captured is None else captured.calls
    gaps += capture_gaps

    produced_calls = stated.model_calls if stated else []
    if not include_payloads:
        produced_calls = [msgspec.structs.replace(call, request=None, response=None) for call in produced_calls]
    merged = merge_calls(produced_calls, calls, index, () if captured is None else captured.records)
    gaps += merged.gaps
    invocations = _merge_invocations(stated.invocations if stated else [], bundle, index)
    tools = merge_tools(
        stated.tool_calls if stated else [],
        [record for record in bundle.records if type(record) is ToolCallObservation] if bundle else [],
        tool_outputs(invocations),
        gaps,
    )
    turns = _stamped_turns(stated.turns if stated else [], identity)
    if merged.renamed:
        invocations = [_renamed(invocation, merged.renamed) for invocation in invocations]
        turns = [_renamed(turn, merged.renamed) for turn in turns]
    gaps += _missing(merged.calls, stated, invocations)
    trajectory = TrajectoryRecord(
        task_id=identity.task_id,
        rollout_id=identity.rollout_id,
        invocations=invocations,
        turns=turns,
        model_calls=merged.calls,
        tool_calls=tools,
        gaps=without_repeats(gaps),
    )
    same = captured is not None and merged.identities == index.identities
    return Projection(trajectory, index if same else CallIndex(merged.identities))


def _read_producer(
    producer: object, identity: TrajectoryIdentity, gaps: list[ObservationGap]
) -> TrajectoryRecord | None:
    if producer is None:
        return None
    try:
        stated = read(TrajectoryRecord, producer)
    except PROJECTION_ERRORS as error:
        gaps.append(ObservationGap(code=PRODUCER_INVALID, detail=type(error).__name__))
        return None
    different = [name for name in ("task_id", "rollout_id") if getattr(stated, name) != getattr(identity, name)]
    if different:
        gaps.append(ObservationGap(code=PRODUCER_IDENTITY_MISMATCH, detail=",".join(different)))
    gaps += stated.gaps
    return stated


def _read_bundle(observations: object, gaps: list[ObservationGap]) -> AgentObservationBundle | None:
    if observations is None:
        return None
    try:
        bundle = (
            observations
            if isinstance(observations, AgentObservationBundle)
            else read(AgentObservationBundle, observations)
        )
    except PROJECTION_ERRORS as error:
        gaps.append(ObservationGap(code=OBSERVATIONS_INVALID, detail=type(error).__name__))
        return None
    gaps += bundle.gaps
    return bundle


def _read_capture(capture: object) -> tuple[Sequence[Mapping[str, Any]], list[ObservationGap]]:
    if capture is None:
        return [], []
    attachment = capture if type(capture) is dict else msgspec.convert(capture, dict[str, Any])
    calls = attachment.get("calls") or []
    if type(calls) is not list or any(type(call) is not dict for call in calls):  # converting copies every call
        calls = msgspec.convert(calls, list[dict[str, Any]])
    gaps = []
    for entry in msgspec.convert(attachment.get("gaps") or [], list[Any]):
        try:
            gaps.append(read(ObservationGap, entry))
        except PROJECTION_ERRORS:
            gaps.append(ObservationGap(code=CAPTURE_GAP_INVALID))
    return calls, gaps


def _merge_invocations(
    stated: Sequence[AgentInvocation], bundle: AgentObservationBundle | None, index: CallIndex
) -> list[AgentInvocation]:
    """Return the producer's invocations, then the bundle's others; the producer's get the joined references."""
    observed = (
        {record.invocation_id: record for record in bundle.records if type(record) is AgentInvocation} if bundle else {}
    )
    merged = []
    for invocation in stated:
        twin = observed.pop(invocation.invocation_id, None)
        merged.append(invocation if twin is None else _with_joined_references(invocation, twin, index))
    return [*merged, *observed.values()]


def _with_joined_references(invocation: AgentInvocation, twin: AgentInvocation, index: CallIndex) -> AgentInvocation:
    joined: dict[int, ModelCallRef] = {}
    for ref in twin.model_calls:
        matches = index.match(ref)
        if len(matches) == 1:
            joined.setdefault(matches[0], ref)
    refs = []
    for ref in invocation.model_calls:
        matches = index.match(ref)
        refs.append(joined.get(matches[0], ref) if len(matches) == 1 else ref)
    return with_model_calls(invocation, refs)


def _stamped_turns(turns: Sequence[TrajectoryTurn], identity: TrajectoryIdentity) -> list[TrajectoryTurn]:
    stamped = [
        turn
        if (turn.task_id, turn.rollout_id) == identity[:2]
        else msgspec.structs.replace(turn, task_id=identity.task_id, rollout_id=identity.rollout_id)
        for turn in turns
    ]
    return sorted(stamped, key=lambda turn: (turn.timestamp, turn.invocation_id, turn.turn_no))


def _renamed(record: Any, renamed: Mapping[Any, Any]) -> Any:
    return with_model_calls(record, renamed_references(record.model_calls, renamed))


def _missing(
    calls: Sequence[TrajectoryModelCall], stated: TrajectoryRecord | None, invocations: Sequence[AgentInvocation]
) -> list[ObservationGap]:
    missing = []
    if not calls:
        missing.append(ObservationGap(code=MODEL_CALLS_UNAVAILABLE))
    if stated is None:  # a valid producer trajectory without turns is a statement: no turn completed
        missing.append(ObservationGap(code=TURNS_UNAVAILABLE))
    if not any(invocation.conversation for invocation in invocations):
        missing.append(ObservationGap(code=CONVERSATION_UNAVAILABLE))
    return missing


def _record_failure(result: JsonObject, identity: TrajectoryIdentity, error: str) -> None:
    result.pop(keys.TRAJECTORY, None)
    gap = ObservationGap(code=PROJECTION_FAILED, detail=error)
    for key in (keys.MODEL_CALL_CAPTURE, keys.AGENT_OBSERVATIONS):
        attachment = result.get(key)
        if isinstance(attachment, dict):
            add_gap(attachment, gap)
            return
    result[keys.TRAJECTORY] = dump(
        TrajectoryRecord(task_id=identity.task_id, rollout_id=identity.rollout_id, gaps=[gap])
    )


def add_gap(attachment: JsonObject, gap: ObservationGap) -> None:
    """Append `gap` to an attachment's `gaps`, making the list when there is none."""
    gaps = attachment.get("gaps")
    attachment["gaps"] = [*(gaps if isinstance(gaps, list) else ()), dump(gap)]

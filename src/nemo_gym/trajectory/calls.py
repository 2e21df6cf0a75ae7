"""Model calls of a trajectory: what was captured, merged into what the producer stated.

A value that its field cannot hold, or an id that another call has, costs that one value and leaves a gap; the call
itself stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from nemo_gym.records.evidence import (
    Evidence,
    ModelCallRef,
    ObservationGap,
    TrajectoryModelCall,
    TrajectoryResponseMetadata,
    TrajectoryTokenStats,
    ValidationError,
    read,
)
from nemo_gym.records.gaps import CALL_FIELD_INVALID, IDENTITY_DUPLICATE
from nemo_gym.records.matching import CallIdentity, CallIndex, identity_of
from nemo_gym.records.model_calls import ModelCallRecord

_TOKEN_FIELDS = {
    "prompt_tokens": "tokens_in",
    "completion_tokens": "tokens_out",
    "reasoning_tokens": "tokens_reasoning",
    "total_tokens": "tokens_total",
    "cached_tokens": "cached_tokens",
}
_RESPONSE_SOURCES = (None, "upstream", "local")
_METADATA_FIELDS = TrajectoryResponseMetadata.__struct_fields__
_OWN_FIELDS = {
    "model_call_id": "model_call_id",
    "started_at": "started_at",
    "completed_at": "completed_at",
    "duration_ms": "latency_total_ms",
}
_MERGED_FIELDS = ("started_at", "completed_at", "duration_ms", "request", "response")


@dataclass(slots=True)
class MergedCalls:
    """The calls of a trajectory, the gaps met on the way, and the references that need another form.

    `identities` are those of `calls`, in the same order. `renamed` maps the full identity of a call that lost its
    id to the reference that still names it.
    """

    calls: list[TrajectoryModelCall] = field(default_factory=list)
    identities: list[CallIdentity] = field(default_factory=list)
    gaps: list[ObservationGap] = field(default_factory=list)
    renamed: dict[CallIdentity, ModelCallRef] = field(default_factory=dict)


def merge_calls(
    produced: Sequence[TrajectoryModelCall],
    captured: Sequence[Mapping[str, Any]],
    captured_index: CallIndex,
    records: Sequence[ModelCallRecord] = (),
) -> MergedCalls:
    """Return the producer's calls, each completed by the captured call of the same id, then the other captured calls.

    Captured values win, field by field; what only the producer knows survives. `captured_index` indexes `captured`;
    `records`, when given, are what `captured` was made from, and spare reading it again.
    """
    merged = MergedCalls(calls=list(produced), identities=[identity_of(call) for call in produced])
    open_positions = {call.model_call_id: at for at, call in enumerate(produced) if call.model_call_id}
    taken = set(open_positions)
    for position, (raw, identity) in enumerate(zip(captured, captured_index.identities, strict=True)):
        call = _call_of_record(records[position], raw) if records else None
        found = identity
        if call is None:
            call = _captured_call(raw, position, merged.gaps)
            found = identity_of(call)
        call_id = call.model_call_id
        at = open_positions.pop(call_id, None) if call_id else None
        if at is not None:
            merged.calls[at] = _overlay_call(merged.calls[at], call)
            merged.identities[at] = identity_of(merged.calls[at])
            continue
        if call_id and call_id in taken:
            merged.gaps.append(ObservationGap(code=IDENTITY_DUPLICATE, detail=call_id))
            call = msgspec.structs.replace(call, model_call_id=None)
            found = found._replace(model_call_id=None)
            _rename(identity, captured_index, merged.renamed)
        elif call_id:
            taken.add(call_id)
        merged.calls.append(call)
        merged.identities.append(found)
    return merged


def renamed_references(refs: list[ModelCallRef], renamed: Mapping[CallIdentity, ModelCallRef]) -> list[ModelCallRef]:
    """Return `refs` with those of `renamed` in the form that still names their call; the same list when none is."""
    if not renamed:
        return refs
    return [renamed.get(identity_of(ref), ref) for ref in refs]


def _rename(identity: CallIdentity, index: CallIndex, renamed: dict[CallIdentity, ModelCallRef]) -> None:
    """A reference that gave all three identifiers still means its call without the id, if the pair is exact."""
    call_id, server, response_id = identity
    if server is None or response_id is None or len(index.match(CallIdentity(None, server, response_id))) != 1:
        return
    pair = {"model_ref": {"type": server[0], "name": server[1]}, "response_id": response_id}
    renamed[CallIdentity(call_id, server, response_id)] = read(ModelCallRef, pair)


def _call_of_record(record: ModelCallRecord, raw: Mapping[str, Any]) -> TrajectoryModelCall | None:
    """Return the call of a record, whose values have their types, with the bodies that `raw` has.

    None when a value is out of the range of its field: then each one has to be looked at.
    """
    duration, ttft = record.latency_total_ms, record.latency_ttft_ms
    in_range = (duration is None or duration >= 0) and (ttft is None or ttft >= 0)
    if not in_range or record.response_source not in _RESPONSE_SOURCES:
        return None
    request, response = raw.get("request"), raw.get("response")
    return TrajectoryModelCall(
        model_call_id=record.model_call_id,
        started_at=record.started_at,
        completed_at=record.completed_at,
        duration_ms=duration,
        request=raw.get("request_raw") if request is None else request,
        response=raw.get("response_raw") if response is None else response,
        response_metadata=TrajectoryResponseMetadata(
            response_id=record.response_id,
            model_ref=record.model_ref,
            model=record.model,
            dialect=record.dialect,
            status_code=record.status_code,
            response_status=record.response_status,
            finish_reason=record.finish_reason,
            upstream_attempted=record.upstream_attempted,
            response_source=record.response_source,  # type: ignore[arg-type]
            upstream_status_code=record.upstream_status_code,
            local_response_reason=record.local_response_reason,
            error_category=record.error_category,
            latency_ttft_ms=ttft,
        ),
        token_stats=TrajectoryTokenStats(
            prompt_tokens=record.tokens_in,
            completion_tokens=record.tokens_out,
            reasoning_tokens=record.tokens_reasoning,
            total_tokens=record.tokens_total,
            cached_tokens=record.cached_tokens,
        ),
    )


def _captured_call(raw: Mapping[str, Any], position: int, gaps: list[ObservationGap]) -> TrajectoryModelCall:
    metadata = {name: raw[name] for name in _METADATA_FIELDS if raw.get(name) is not None}
    response = raw.get("response")
    if "response_status" not in metadata and isinstance(response, dict) and isinstance(response.get("status"), str):
        metadata["response_status"] = response["status"]
    values: dict[str, Any] = {
        "request": _first_known(raw, "request", "request_raw"),
        "response": _first_known(raw, "response", "response_raw"),
        "response_metadata": metadata,
        "token_stats": {
            name: count for name, source in _TOKEN_FIELDS.items() if (count := _count(raw.get(source))) is not None
        },
    }
    for name, source in _OWN_FIELDS.items():
        value = raw.get(source)
        if value is not None:
            values[name] = value
    try:
        return read(TrajectoryModelCall, values)
    except ValidationError:
        where = f"call_index={raw.get('call_index', position)}:"
        values["response_metadata"] = _readable(TrajectoryResponseMetadata, metadata, where, gaps)
        return read(TrajectoryModelCall, _readable(TrajectoryModelCall, values, where, gaps))


def _readable(
    kind: type[Evidence], values: Mapping[str, Any], where: str, gaps: list[ObservationGap]
) -> dict[str, Any]:
    """Return the values that their own field accepts; each other one leaves a gap."""
    good = {}
    for name, value in values.items():
        try:
            read(kind, {name: value})
        except ValidationError:
            gaps.append(ObservationGap(code=CALL_FIELD_INVALID, detail=where + name))
        else:
            good[name] = value
    return good


def _overlay_call(produced: TrajectoryModelCall, captured: TrajectoryModelCall) -> TrajectoryModelCall:
    changes = {name: value for name in _MERGED_FIELDS if (value := getattr(captured, name)) is not None}
    return msgspec.structs.replace(
        produced,
        response_metadata=_overlay(produced.response_metadata, captured.response_metadata),
        token_stats=_overlay(produced.token_stats, captured.token_stats),
        **changes,
    )


def _overlay(below: Any, above: TrajectoryResponseMetadata | TrajectoryTokenStats) -> Any:
    known = {name: value for name, value in msgspec.structs.asdict(above).items() if value is not None}
    return msgspec.structs.replace(below, **known)


def _first_known(raw: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        value = raw.get(name)
        if value is not None:
            return value
    return None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None

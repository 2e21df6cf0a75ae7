"""What collection adds to a result after each attempt: captured calls, joined observations, trajectory, performance.

Order: attach, join, project, summarise (A5). Everything is additive: response, reward and token fields stay as they
were (C19). Bad evidence never raises; it becomes a gap on the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nemo_gym.capture import CaptureStore, attach_model_call_capture
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject, decoded
from nemo_gym.records.evidence import AgentObservationBundle, ObservationGap, dump, dump_to_write, read
from nemo_gym.records.gaps import OBSERVATION_JOIN_FAILED
from nemo_gym.records.identity import TrajectoryIdentity, trajectory_identity_of
from nemo_gym.records.matching import CallIndex
from nemo_gym.records.model_calls import ModelCallRecord
from nemo_gym.trajectory import (
    CLAUDE_CODE,
    PROJECTION_ERRORS,
    Captured,
    add_gap,
    attach_summary_calls,
    build_perf,
    build_perf_detail,
    join_bundle,
    owned_calls,
    payloads_are_redacted,
    project_onto,
)


def attach_evidence(
    row: Mapping[str, Any],
    result: JsonObject,
    *,
    capture_dirs: Sequence[Path | CaptureStore],
    rollout_latency_ms: float | None = None,
    include_payloads: bool = True,
    keep_captured_payloads: bool = False,
    include_perf_detail: bool = False,
    encoded_bodies: bool = False,
) -> JsonObject:
    """Put the evidence of one finished attempt on `result`, in place, and return it.

    `row` is the dispatched row; it gives the capture key and the trajectory's ids. `capture_dirs` is where captures
    are; empty means observability is off: nothing is captured and there is no `ng_perf`, but what the agent returned
    is still projected. `rollout_latency_ms` is the measured wall clock around `/run`, or None. Without
    `include_payloads` no request or response body reaches the record. `keep_captured_payloads` leaves the bodies in
    `ng_model_call_capture` too; they are the same objects as in the trajectory. `include_perf_detail` adds
    a fifth attachment, `ng_perf_detail`, wherever there is `ng_perf`. `encoded_bodies` is for a result that is only
    going to be written: captured bodies and lists of records are put on it as `codec.Encoded`.
    """
    attached = _attach_and_join(
        row,
        result,
        capture_dirs,
        include_payloads=include_payloads and not payloads_are_redacted(result),
        encoded_bodies=encoded_bodies,
    )
    projection = project_onto(
        result,
        identity=_identity_of(row),
        joined=attached.joined,
        captured=attached.captured,
        include_payloads=include_payloads,
        keep_captured_payloads=keep_captured_payloads,
        only_written=encoded_bodies,
    )
    result.pop(keys.PERF, None)
    result.pop(keys.PERF_DETAIL, None)
    if projection is None or not capture_dirs:
        return result
    trajectory = projection.trajectory
    owners = owned_calls(trajectory, projection.calls)
    perf = build_perf(trajectory, rollout_latency_ms=rollout_latency_ms, owners=owners)
    if perf is not None:
        result[keys.PERF] = perf
        if include_perf_detail:
            result[keys.PERF_DETAIL] = build_perf_detail(trajectory, owners=owners)
    return result


def merge_model_call_capture_into_record(
    record: JsonObject, capture_dirs: Sequence[Path | CaptureStore], *, include_payloads: bool = False
) -> JsonObject:
    """Put `ng_model_call_capture` on `record`, join its observations to the calls, in place, and return it (C18).

    Without a directory, or when the record has no rollout id, nothing changes.
    """
    _attach_and_join(record, record, capture_dirs, include_payloads=include_payloads)
    return record


class _Attached(NamedTuple):
    """The records behind the capture on the result, and the bundle joined to them; None where there is none."""

    captured: Captured | None = None
    joined: AgentObservationBundle | None = None


def _attach_and_join(
    row: Mapping[str, Any],
    result: JsonObject,
    capture_dirs: Sequence[Path | CaptureStore],
    *,
    include_payloads: bool,
    encoded_bodies: bool = False,
) -> _Attached:
    """Attach the capture and join the bundle to it, in place."""
    if not capture_dirs:
        return _Attached()
    try:
        attached = attach_model_call_capture(
            result,
            row=row,
            capture_dirs=capture_dirs,
            include_payloads=include_payloads,
            encoded_bodies=encoded_bodies,
        )
    except ValueError:  # a row whose id cannot be a capture key was never captured
        return _Attached()
    if attached is None:
        return _Attached()
    captured = Captured(attached.calls, CallIndex(attached.calls))
    observations = result.get(keys.AGENT_OBSERVATIONS)
    if observations is None:
        return _Attached(captured)
    try:
        bundle = read(AgentObservationBundle, observations)
        if bundle.source == CLAUDE_CODE:  # compares bodies, so it needs them also where the record does not
            bundle = attach_summary_calls(bundle, [_with_decoded_bodies(call) for call in attached.calls])
        joined = join_bundle(bundle, attached.capture["calls"], captured.calls)
    except PROJECTION_ERRORS:
        add_gap(attached.capture, ObservationGap(code=OBSERVATION_JOIN_FAILED))
        return _Attached(captured)
    result[keys.AGENT_OBSERVATIONS] = (dump_to_write if encoded_bodies else dump)(joined)
    return _Attached(captured, joined)


def _with_decoded_bodies(call: ModelCallRecord) -> JsonObject:
    return {**call.model_dump(), "request": decoded(call.request), "response": decoded(call.response)}


def _identity_of(row: Mapping[str, Any]) -> TrajectoryIdentity:
    try:
        return trajectory_identity_of(row)
    except (ValueError, TypeError):  # an id that cannot be a capture key still names a trajectory
        bare = {key: value for key, value in row.items() if key not in (keys.ROLLOUT_ID, keys.ATTEMPT_INDEX)}
        return trajectory_identity_of(bare)

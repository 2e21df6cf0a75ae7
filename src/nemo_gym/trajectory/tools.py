"""Tool calls of a trajectory: producer records, observed executions, and the outputs that the model saw (A21).

The key is the pair of invocation and tool-call id: the same tool-call id in two invocations is two tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from nemo_gym.records.conversation import TOOL_OUTPUT_TYPES
from nemo_gym.records.evidence import AgentInvocation, ObservationGap, ToolCallObservation, TrajectoryToolCall
from nemo_gym.records.gaps import TOOL_TIMING_INVALID

ToolKey = tuple[str, str]

_MISSING: Any = object()


def tool_outputs(invocations: Iterable[AgentInvocation]) -> dict[ToolKey, Any]:
    """Return the outputs in the conversations by (invocation id, tool-call id); a later item wins."""
    outputs: dict[ToolKey, Any] = {}
    for invocation in invocations:
        for item in invocation.conversation:
            kind = item.get("type")
            if kind in TOOL_OUTPUT_TYPES:
                # a local shell's output names its call by `id`
                call_id = item.get("call_id") or item.get("id")
                if isinstance(call_id, str) and "output" in item:
                    outputs[invocation.invocation_id, call_id] = item["output"]
            elif kind == "mcp_call" and item.get("output") is not None:
                call_id = item.get("id") or item.get("call_id")
                if isinstance(call_id, str):
                    outputs[invocation.invocation_id, call_id] = item["output"]
    return outputs


def merge_tools(
    produced: Sequence[TrajectoryToolCall],
    observed: Iterable[ToolCallObservation],
    outputs: dict[ToolKey, Any],
    gaps: list[ObservationGap],
) -> list[TrajectoryToolCall]:
    """Return the producer's records overlaid with what was observed, then the other observed executions in order.

    An observed status `unknown` never replaces a known one. A record whose tool is in `outputs` gets that output when
    an execution was observed, or when the producer gave none.
    """
    merged = list(produced)
    positions: dict[ToolKey, int] = {}
    for at, tool in enumerate(produced):
        positions.setdefault((tool.invocation_id, tool.tool_call_id), at)
    overlaid: set[int] = set()
    for observation in observed:
        key = (observation.invocation_id, observation.tool_call_id)
        known_at = positions.get(key)
        values = msgspec.structs.asdict(observation)
        if known_at is None:
            positions[key] = len(merged)
            merged.append(TrajectoryToolCall(**values, output=outputs.get(key)))
            continue
        overlaid.add(known_at)
        merged[known_at] = _overlay(merged[known_at], values, outputs.get(key, _MISSING), gaps)
    for at, tool in enumerate(produced):
        output = outputs.get((tool.invocation_id, tool.tool_call_id))
        if at not in overlaid and tool.output is None and output is not None:
            merged[at] = msgspec.structs.replace(merged[at], output=output)
    return merged


def _overlay(
    below: TrajectoryToolCall, values: dict[str, Any], output: Any, gaps: list[ObservationGap]
) -> TrajectoryToolCall:
    changes = {name: value for name, value in values.items() if value is not None}
    if changes["status"] == "unknown":
        del changes["status"]
    if output is not _MISSING:
        changes["output"] = output
    started = changes.get("started_at", below.started_at)
    completed = changes.get("completed_at", below.completed_at)
    if started is not None and completed is not None and completed < started:
        changes["completed_at"] = None  # the two sources disagree, so the end is not known
        gaps.append(
            ObservationGap(code=TOOL_TIMING_INVALID, invocation_id=below.invocation_id, detail=below.tool_call_id)
        )
    return msgspec.structs.replace(below, **changes)

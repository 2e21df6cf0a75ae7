"""`ng_perf_detail`: where a rollout's time and tokens went, from the intervals and statuses that were observed.

It stands beside `ng_perf`, whose keys and meanings it leaves alone, and covers the same calls and tools: those that an
invocation owns. What was not observed has no key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nemo_gym.records.call_outcome import failed
from nemo_gym.records.codec import JsonObject, same_json
from nemo_gym.records.evidence import (
    ToolCallObservation,
    TrajectoryModelCall,
    TrajectoryRecord,
    ValidationError,
    read,
)
from nemo_gym.trajectory.perf import owned_calls

Interval = tuple[float, float]

_TOOL_FAILURES = frozenset({"failed", "timeout"})


def build_perf_detail(
    trajectory: JsonObject | TrajectoryRecord | None, *, owners: Mapping[int, str] | None = None
) -> JsonObject | None:
    """Return the detail of a trajectory, or None when it is missing, invalid or without an invocation.

    `time` (ms): the union of model intervals and of tool intervals (`model_ms`, `tool_ms`), with how many calls and
    tools have an interval. `busy_ms` (the union of both), `overlap_ms`, `span_ms` (first start to last end) and
    `idle_ms` (the part of the span in which neither ran) are there only when every call and tool has one. `ttft_ms` and
    each tool's `durations_ms` hold the values, sorted, and their median and 95th percentile. `cached_share` is cached
    over all prompt tokens. `failed_calls` are calls that ended in an error; `retries` are calls that send again what a
    failed one of the same invocation sent; both with the tokens they reported. `owners` spares working out again what
    `owned_calls` returned.
    """
    if not isinstance(trajectory, TrajectoryRecord):
        try:
            trajectory = read(TrajectoryRecord, trajectory)
        except ValidationError:
            return None
    if not trajectory.invocations:
        return None
    if owners is None:
        owners = owned_calls(trajectory)
    calls = {at: trajectory.model_calls[at] for at in sorted(owners)}
    names = {invocation.invocation_id for invocation in trajectory.invocations}
    tools = [tool for tool in trajectory.tool_calls if tool.invocation_id in names]
    detail: JsonObject = {"time": _time(list(calls.values()), tools)}
    first_bytes = [ttft for call in calls.values() if (ttft := call.response_metadata.latency_ttft_ms) is not None]
    if first_bytes:
        detail["ttft_ms"] = _spread("values", first_bytes, "")
    share = _cached_share(calls.values())
    if share is not None:
        detail["cached_share"] = share
    failures = {at: call for at, call in calls.items() if failed(call)}
    detail["failed_calls"] = _counted(failures.values())
    if not failures:  # the usual case
        detail["retries"] = {"count": 0}
    elif all(call.request is not None for call in failures.values()):
        detail["retries"] = _counted(_retries(calls, failures, owners))
    detail["tools"] = _tools(tools)
    return detail


def _time(calls: Sequence[TrajectoryModelCall], tools: Sequence[ToolCallObservation]) -> JsonObject:
    in_calls = sorted([interval for call in calls if (interval := _interval(call)) is not None])
    in_tools = sorted([interval for tool in tools if (interval := _interval(tool)) is not None])
    time: JsonObject = {"model_calls_timed": len(in_calls), "tool_calls_timed": len(in_tools)}
    model_ms, tool_ms = _covered_ms(in_calls), _covered_ms(in_tools)
    if in_calls:
        time["model_ms"] = model_ms
    if in_tools:
        time["tool_ms"] = tool_ms
    together = sorted(in_calls + in_tools) if in_tools else in_calls
    if together and len(in_calls) == len(calls) and len(in_tools) == len(tools):
        busy_ms = _covered_ms(together) if in_tools else model_ms
        span_ms = (max([end for _, end in together]) - together[0][0]) * 1000
        time |= {
            "busy_ms": busy_ms,
            "overlap_ms": max(0.0, model_ms + tool_ms - busy_ms),
            "span_ms": span_ms,
            "idle_ms": max(0.0, span_ms - busy_ms),
        }
    return time


def _interval(part: TrajectoryModelCall | ToolCallObservation) -> Interval | None:
    """Return start and end, seconds; an unknown bound follows from the other one and the measured duration."""
    start, end = part.started_at, part.completed_at
    if start is not None and end is not None and end >= start:
        return start, end
    if start is None and end is None:
        return None
    if part.duration_ms is not None:
        if start is not None and (end is None or end < start):
            end = start + part.duration_ms / 1000
        elif start is None and end is not None:
            start = end - part.duration_ms / 1000
    return None if start is None or end is None or end < start else (start, end)


def _covered_ms(intervals: Iterable[Interval]) -> float:
    """Return the length of the union of intervals in order of their starts, milliseconds."""
    covered, reached = 0.0, float("-inf")
    for start, end in intervals:
        if end > reached:
            covered += end - (start if start > reached else reached)
            reached = end
    return covered * 1000


def _cached_share(calls: Iterable[TrajectoryModelCall]) -> float | None:
    cached = prompt = 0
    for call in calls:
        counts = call.token_stats
        if counts.cached_tokens is not None and counts.prompt_tokens is not None:
            cached += counts.cached_tokens
            prompt += counts.prompt_tokens
    return min(1.0, cached / prompt) if prompt else None


def _retries(
    calls: dict[int, TrajectoryModelCall], failures: dict[int, TrajectoryModelCall], owners: Mapping[int, str]
) -> list[TrajectoryModelCall]:
    return [
        call
        for at, call in calls.items()
        if any(
            earlier < at and owners[earlier] == owners[at] and same_json(other.request, call.request)
            for earlier, other in failures.items()
        )
    ]


def _counted(calls: Iterable[TrajectoryModelCall]) -> JsonObject:
    stats = [call.token_stats for call in calls]
    counted: JsonObject = {"count": len(stats)}
    for name in ("prompt_tokens", "completion_tokens"):
        known = [value for stat in stats if (value := getattr(stat, name)) is not None]
        if known:
            counted[name] = sum(known)
    return counted


def _tools(tools: Sequence[ToolCallObservation]) -> list[JsonObject]:
    """Return one entry per tool name, in order of the names; tools whose name is unknown come last, under null."""
    of_name: dict[str | None, list[ToolCallObservation]] = {}
    for tool in tools:
        of_name.setdefault(tool.tool_name, []).append(tool)
    entries = []
    for name in sorted(of_name, key=lambda name: (name is None, name or "")):
        members = of_name[name]
        entry: JsonObject = {
            "tool_name": name,
            "count": len(members),
            "failures": len([tool for tool in members if tool.status in _TOOL_FAILURES]),
        }
        durations = [value for tool in members if (value := _duration_ms(tool)) is not None]
        if durations:
            entry |= _spread("durations_ms", durations, "_ms")
        entries.append(entry)
    return entries


def _duration_ms(tool: ToolCallObservation) -> float | None:
    if tool.duration_ms is not None:
        return tool.duration_ms
    interval = _interval(tool)
    return None if interval is None else (interval[1] - interval[0]) * 1000


def _spread(name: str, values: list[float], unit: str) -> dict[str, Any]:
    ordered = sorted(values)
    return {name: ordered, f"p50{unit}": _quantile(ordered, 0.5), f"p95{unit}": _quantile(ordered, 0.95)}


def _quantile(ordered: Sequence[float], q: float) -> float:
    """Linear interpolation between order statistics, as in every summary."""
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)

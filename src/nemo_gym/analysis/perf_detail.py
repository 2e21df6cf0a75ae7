"""What the `ng_perf_detail` of a run's rollouts adds up to: times, retries and tools over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nemo_gym.analysis import statistics
from nemo_gym.analysis.rows import number

Detail = Mapping[str, Any]

_TIMES = ("model_ms", "tool_ms", "busy_ms", "overlap_ms", "idle_ms", "span_ms")
_CALL_COUNTS = ("count", "prompt_tokens", "completion_tokens")


def summarize_details(details: Sequence[Detail]) -> dict[str, Any]:
    """Return the summary; each statistic covers the rollouts, calls or executions that know the value."""
    summary: dict[str, Any] = {"rollouts": len(details)}
    times = [_part(detail, "time") for detail in details]
    for name in _TIMES:
        values = _numbers(time.get(name) for time in times)
        if values:
            summary[name] = _spread(values)
    first_bytes = _numbers(value for detail in details for value in _list(_part(detail, "ttft_ms").get("values")))
    if first_bytes:
        summary["ttft_ms"] = _spread(first_bytes)
    shares = _numbers(detail.get("cached_share") for detail in details)
    if shares:
        summary["cached_share"] = {"mean": statistics.mean(shares), "rollouts": len(shares)}
    for name in ("failed_calls", "retries"):
        counted = [part for detail in details if (part := _part(detail, name))]
        if counted:
            summary[name] = {"rollouts": len(counted)} | {
                key: sum(values) for key in _CALL_COUNTS if (values := _numbers(part.get(key) for part in counted))
            }
    summary["tools"] = _tools(details)
    return summary


def _tools(details: Iterable[Detail]) -> list[dict[str, Any]]:
    by_name: dict[str | None, list[Detail]] = {}
    for detail in details:
        for entry in _list(detail.get("tools")):
            if isinstance(entry, Mapping):
                name = entry.get("tool_name")
                by_name.setdefault(name if isinstance(name, str) else None, []).append(entry)
    tools = []
    for name, entries in sorted(by_name.items(), key=lambda item: (item[0] is None, item[0] or "")):
        tool: dict[str, Any] = {"tool_name": name}
        for key in ("count", "failures"):
            tool[key] = sum(_numbers(entry.get(key) for entry in entries))
        durations = _numbers(value for entry in entries for value in _list(entry.get("durations_ms")))
        if durations:
            tool["duration_ms"] = _spread(durations)
        tools.append(tool)
    return tools


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "count": len(values),
        "mean": statistics.mean(values),
        "p50": statistics.quantile(values, 0.5),
        "p95": statistics.quantile(values, 0.95),
        "total": sum(values),
    }


def _numbers(values: Iterable[Any]) -> list[float]:
    return [amount for value in values if (amount := number(value)) is not None]


def _part(detail: Detail, name: str) -> Detail:
    value = detail.get(name)
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

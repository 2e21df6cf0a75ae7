"""`perf_summary`: what the `ng_perf` of a run's rollouts adds up to (A28)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nemo_gym.analysis import statistics
from nemo_gym.analysis.perf_detail import summarize_details
from nemo_gym.analysis.rows import Row, number
from nemo_gym.records import keys

_TOKEN_FIELDS = ("prompt_tokens", "cached_prompt_tokens", "completion_tokens", "reasoning_tokens")


def compute_perf_summary(rows: Iterable[Row]) -> dict[str, Any] | None:
    """Return the summary over all rollouts, masked ones too; None when none carries `ng_perf`.

    The two coverages are shares of rollouts, 0 to 1: those with `ng_perf`, and those whose own token coverage is above
    zero. Tokens are sums of observed values, latencies milliseconds; a statistic without a value has no key. `detail`
    is what the `ng_perf_detail` of the rollouts adds up to, there when one has it.
    """
    total, perfs, details = 0, [], []
    for row in rows:
        total += 1
        detail = row.get(keys.PERF_DETAIL)
        if isinstance(detail, Mapping):
            details.append(detail)
        perf = row.get(keys.PERF)
        if isinstance(perf, Mapping):
            perfs.append(perf)
    if not perfs:
        return None
    covered = sum((number(perf.get("token_observability_coverage")) or 0) > 0 for perf in perfs)
    summary: dict[str, Any] = {
        "overall_observability_coverage": len(perfs) / total,
        "token_observability_coverage": covered / total,
    }
    for field in _TOKEN_FIELDS:
        values = _known(perfs, field)
        if values:
            summary[f"mean_{field}"] = statistics.mean(values)
            summary[f"median_{field}"] = statistics.median(values)
            summary[f"total_{field}"] = sum(values)
    turns = _known(perfs, "num_turns")
    if turns:
        summary["mean_num_turns"] = statistics.mean(turns)
        summary["median_num_turns"] = statistics.median(turns)
        summary["std_num_turns"] = statistics.population_std(turns)
        summary["min_num_turns"] = min(turns)
        summary["p90_num_turns"] = statistics.quantile(turns, 0.9)
        summary["max_num_turns"] = max(turns)
    per_turn = [
        tokens / count
        for perf in perfs
        if (tokens := number(perf.get("completion_tokens"))) is not None and (count := number(perf.get("num_turns")))
    ]
    if per_turn:
        summary["mean_tokens_per_turn"] = statistics.mean(per_turn)
        summary["median_tokens_per_turn"] = statistics.median(per_turn)
    latencies = _known(perfs, "total_latency_ms")
    if latencies:
        for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            summary[f"total_latency_{name}_ms"] = statistics.quantile(latencies, q)
        summary["total_latency_mean_ms"] = statistics.mean(latencies)
    if details:
        summary["detail"] = summarize_details(details)
    return summary


def _known(perfs: Iterable[Mapping[str, Any]], field: str) -> list[float]:
    return [value for perf in perfs if (value := number(perf.get(field))) is not None]

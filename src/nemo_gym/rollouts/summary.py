"""What a run says at its end, as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nemo_gym.records.codec import JsonObject
from nemo_gym.records.status import RunStatus, mean_reward
from nemo_gym.rollouts.accounting import Denominators

if TYPE_CHECKING:
    from nemo_gym.rollouts.aggregation import AggregationSummary
    from nemo_gym.rollouts.collect import RunSummary

_SHOWN_METRICS = 8


def summary_lines(summary: RunSummary) -> list[str]:
    """Return the counts, the metrics, the files, what is missing, and the health of a run."""
    status, files, report = summary.status, summary.files, summary.report
    lines = [outcome_line(status), *reward_lines(status)]
    if summary.latencies.quantile(0.5) is not None or summary.latencies.drained:
        lines.append(times_line(status, summary.latencies.summary()))
    lines += metric_lines(report.metrics, summary.implementations)
    lines.append(f"rollouts: {files.rollouts}")
    if report.metrics_path is not None:
        lines.append(f"metrics: {report.metrics_path}")
    lines.append(Denominators.of_counts(status.counts).text())
    lines += missing_lines(status, str(files.failures), report.imputed)
    lines += report.notes
    if report.health is not None:
        lines.append(report.health)
    return lines


def aggregation_lines(summary: AggregationSummary) -> list[str]:
    """Return what was aggregated, the metrics, the files and the health."""
    lines = [f"{len(summary.shards)} files:", *(f"  {path}" for path in summary.shards)]
    lines.append(
        f"{summary.records} rollouts" + (f", {summary.duplicates} duplicates left out" if summary.duplicates else "")
    )
    if summary.merged_path is not None:
        lines.append(f"merged: {summary.merged_path}")
    lines += metric_lines(summary.metrics)
    lines.append("nothing to score" if summary.metrics_path is None else f"metrics: {summary.metrics_path}")
    lines.append(summary.denominators.text())
    if summary.without_inventory:
        lines.append(f"{summary.without_inventory} files lack their materialized inputs: what they miss is not known")
    if summary.failed_tries:
        lines.append(f"{summary.failed_tries} failed {'try' if summary.failed_tries == 1 else 'tries'}")
    lines.append(
        f"metrics cover {summary.records}" + (f" and {summary.imputed} counted as 0" if summary.imputed else "")
    )
    lines += summary.notes
    if summary.health is not None:
        lines.append(summary.health)
    return lines


def outcome_line(status: RunStatus) -> str:
    """Return one line: done, masked, failed, mean reward."""
    counts = status.counts
    parts = [f"{counts.succeeded} of {counts.expected} rollouts succeeded"]
    if counts.masked:
        parts.append(f"{counts.masked} of them masked")
    if counts.failed:
        parts.append(f"{counts.failed} failed")
    reward = mean_reward(status)
    parts.append("no reward" if reward is None else f"mean reward {reward:.4g} over {status.reward.count}")
    return ", ".join(parts)


def times_line(status: RunStatus, times: str) -> str:
    """Return how long rollouts took, saying which: those of a resumed run that an earlier one saved are not among them.

    `times` is the text of the tracker that saw the others.
    """
    restored = status.counts.restored
    if not restored:
        return times
    return f"of the {status.counts.succeeded + status.counts.failed - restored} rollouts run after the resume: {times}"


def reward_lines(status: RunStatus) -> list[str]:
    """Return what to know about results without a reward, nothing when each has one: no mean is made of them."""
    scored = status.counts.succeeded - status.counts.masked
    without = scored - status.reward.count
    if without <= 0:
        return []
    if without == scored:
        which = f"none of {scored} results has a reward"
    else:
        which = f"{without} of {scored} results have no reward and are not in the mean"
    return [f"Warning: {which}: the verifier gave nothing, null, NaN or text instead of a number"]


def metric_lines(entries: list[JsonObject], implementations: Mapping[str, str] | None = None) -> list[str]:
    """Return the key metrics of each agent, those made of rewards first.

    `implementations` says by agent what runs under its name; it is shown where the name tells of another one.
    """
    lines = []
    for entry in entries:
        metrics: dict[str, Any] = entry.get("key_metrics") or {}
        names = sorted(metrics, key=lambda name: ("reward" not in name, name))
        shown = ", ".join(f"{name} {_number(metrics[name])}" for name in names[:_SHOWN_METRICS])
        more = len(names) - _SHOWN_METRICS
        name = entry["agent_ref"]["name"]
        runs = (implementations or {}).get(name, name)
        lines.append(
            f"{name}{'' if runs in name else f' ({runs})'}: {shown or 'no metrics'}"
            + (f", and {more} more" if more > 0 else "")
        )
    return lines


def missing_lines(status: RunStatus, sidecar: str, imputed: int) -> list[str]:
    """Return how many rollouts have no result and why, nothing when all have one."""
    counts = status.counts
    missing = counts.expected - counts.succeeded
    if missing <= 0:
        return []
    parts = [f"{kind} {count}" for kind, count in sorted(status.failures.items())]
    parts += [f"{counts.omitted} withdrawn or not started"] if counts.omitted else []
    reasons = f": {', '.join(parts)}" if parts else ""
    lines = [
        f"without a result: {missing} of {counts.expected}{reasons}" + (f"; see {sidecar}" if status.failures else "")
    ]
    if imputed:
        lines.append(f"metrics count {imputed} of them as reward 0")
    return lines


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

"""The numbers of a run: per task, per agent, per repeat (collection.md 6, environments.md 7.3).

Everything is plain dicts with the five keys of `AggregateMetrics`. Masked rows count in `perf_summary` and the coverage
alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from nemo_gym.analysis import statistics
from nemo_gym.analysis.perf import compute_perf_summary
from nemo_gym.analysis.rows import by_task, index_key, number, numeric_fields, row_key, select_measured
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.rows import UNNAMED_SAMPLE

Tasks: TypeAlias = list[list[JsonObject]]
TasksHook: TypeAlias = Callable[[Tasks], Mapping[str, Any]]
KeyMetricsHook: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]


class FlatIntervalWarning(RuntimeWarning):
    """All values of an interval are equal, so that it looks more certain than it is."""


PER_TASK_METRICS = "per_task_metrics"
_NO_POINT_ESTIMATES = ("max/", "min/", "median/", "std/", "sem/", "p25/", "p75/", "ci_low_95/", "ci_high_95/", "_")
_COUNTS = frozenset({"sample_count", "missing_count", "num_repeats"})


def compute_aggregate_metrics(
    verify_responses: Sequence[JsonObject],
    compute_metrics_fn: TasksHook | None = None,
    get_key_metrics_fn: KeyMetricsHook | None = None,
    compute_repeat_metrics_fn: TasksHook | None = None,
) -> dict[str, Any]:
    """Return `group_level_metrics`, `agent_metrics`, `key_metrics`, `perf_summary`, `repeat_level_metrics`.

    `verify_responses` are result rows with their indices; their order does not matter. `compute_metrics_fn` gets the
    measured rows as one list per task and returns metrics of the whole, and under `per_task_metrics` dicts that are
    merged into the tasks they name. `get_key_metrics_fn` selects from the metrics of the whole; default: every
    `mean/*`. `compute_repeat_metrics_fn` gets the rows of one repeat as one list per task, once per repeat; a name
    whose value is finite in all repeats replaces the generic one.
    """
    result: dict[str, Any] = {
        "group_level_metrics": [],
        "agent_metrics": {},
        "key_metrics": {},
        "perf_summary": compute_perf_summary(verify_responses),
        "repeat_level_metrics": [],
    }
    measured, coverage = select_measured(verify_responses)
    if not measured:
        result["agent_metrics"], result["key_metrics"] = dict(coverage), dict(coverage)
        return result
    tasks = by_task(measured)
    agent_metrics: dict[str, Any] = dict(describe([numeric_fields(row) for task in tasks for row in task]))
    repeats = repeat_level_metrics(tasks, compute_repeat_metrics_fn)
    agent_metrics.update(across_repeats(repeats))
    _warn_of_flat_intervals([*repeats, agent_metrics])
    groups = [group_entry(task) for task in tasks]
    if compute_metrics_fn is not None:
        custom = dict(compute_metrics_fn(tasks))
        _merge_per_task(groups, custom.pop(PER_TASK_METRICS, None))
        agent_metrics.update(custom)
    agent_metrics["num_repeats"] = len({index_key(row.get(keys.ROLLOUT_INDEX)) for row in measured})
    agent_metrics = _without_nan(agent_metrics)
    key_metrics = (
        default_key_metrics(agent_metrics) if get_key_metrics_fn is None else get_key_metrics_fn(agent_metrics)
    )
    result["group_level_metrics"] = [_without_nan(group) for group in groups]
    result["agent_metrics"] = {**agent_metrics, **coverage}
    result["key_metrics"] = {**_without_nan(key_metrics), **coverage}
    result["repeat_level_metrics"] = repeats
    return result


def default_key_metrics(agent_metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return every `mean/*` entry."""
    return {key: value for key, value in agent_metrics.items() if key.startswith("mean/")}


def describe(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return `mean|max|min|median|std/<field>` over the rows that have a field.

    `std` is the sample deviation; a field with one value has none, unless no field has two: then all are 0.
    """
    columns = columns_of(rows)
    lonely = all(len(values) < 2 for values in columns.values())
    stats: dict[str, float] = {}
    for field, values in columns.items():
        stats[f"mean/{field}"] = statistics.mean(values)
        stats[f"max/{field}"] = max(values)
        stats[f"min/{field}"] = min(values)
        stats[f"median/{field}"] = statistics.median(values)
        std = 0.0 if lonely else statistics.sample_std(values)
        if std is not None:
            stats[f"std/{field}"] = std
    return stats


def columns_of(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the values of each field, in row order, fields in order of appearance."""
    columns: dict[str, list[float]] = {}
    for row in rows:
        for field, value in row.items():
            columns.setdefault(field, []).append(value)
    return columns


def group_entry(
    task: Sequence[JsonObject], *, sample: JsonObject | None = None, expected: int | None = None
) -> JsonObject:
    """Return the entry of one task; `expected` rollouts default to those that are there."""
    numbers = [numeric_fields(row) for row in task]
    expected = len(task) if expected is None else expected
    infos = []
    for row, fields in zip(task, numbers, strict=True):
        task_index, rollout_index = row.get(keys.TASK_INDEX), row.get(keys.ROLLOUT_INDEX)
        identity = {
            "rollout_id": f"{task_index}:{rollout_index}",
            keys.TASK_INDEX: task_index,
            keys.ROLLOUT_INDEX: rollout_index,
        }
        infos.append({**identity, **fields})
    return {
        **describe(numbers),
        keys.TASK_INDEX: task[0].get(keys.TASK_INDEX),
        "sample": UNNAMED_SAMPLE if sample is None else sample,
        "num_rollouts": len(task),
        "expected_num_rollouts": expected,
        "missing_num_rollouts": max(expected - len(task), 0),
        "reward_profile_completion_pct": 100 * len(task) / expected if expected else 100.0,
        "rollout_infos": infos,
    }


def _merge_per_task(groups: Sequence[JsonObject], entries: object) -> None:
    by_index = {index_key(group[keys.TASK_INDEX]): group for group in groups}
    for entry in entries if isinstance(entries, (list, tuple)) else ():
        group = by_index.get(index_key(entry.get(keys.TASK_INDEX))) if isinstance(entry, Mapping) else None
        if group is not None:
            group.update(entry)


def repeat_level_metrics(tasks: Tasks, compute_repeat_metrics_fn: TasksHook | None = None) -> list[dict[str, Any]]:
    """Return one entry per rollout index, in order; none when there is only one index.

    `missing_count` is the number of tasks without a row in that repeat. Deviation, error and interval need two values.
    """
    repeats: dict[tuple[int, float, str], list[JsonObject]] = {}
    for row in sorted((row for task in tasks for row in task), key=lambda row: row_key(row)[::-1]):
        repeats.setdefault(index_key(row.get(keys.ROLLOUT_INDEX)), []).append(row)
    if len(repeats) < 2:
        return []
    entries = [_repeat_entry(rows, len(tasks)) for rows in repeats.values()]
    if compute_repeat_metrics_fn is not None:
        custom = [compute_repeat_metrics_fn(by_task(rows)) for rows in repeats.values()]
        for name in custom[0]:
            values = [number(metrics.get(name)) for metrics in custom]
            if None not in values:
                for entry, value in zip(entries, values, strict=True):
                    entry[name] = value
    return entries


def _repeat_entry(rows: Sequence[JsonObject], num_tasks: int) -> dict[str, Any]:
    entry: dict[str, Any] = {
        keys.ROLLOUT_INDEX: rows[0].get(keys.ROLLOUT_INDEX),
        "sample_count": len(rows),
        "missing_count": num_tasks - len({index_key(row.get(keys.TASK_INDEX)) for row in rows}),
    }
    for field, values in columns_of([numeric_fields(row) for row in rows]).items():
        entry[f"mean/{field}"] = statistics.mean(values)
        entry[f"median/{field}"] = statistics.median(values)
        entry[f"min/{field}"] = min(values)
        entry[f"max/{field}"] = max(values)
        entry[f"p25/{field}"] = statistics.quantile(values, 0.25)
        entry[f"p75/{field}"] = statistics.quantile(values, 0.75)
        std = statistics.sample_std(values)
        if std is not None:
            entry[f"std/{field}"] = std
            entry[f"sem/{field}"] = std / math.sqrt(len(values))
            entry[f"ci_low_95/{field}"], entry[f"ci_high_95/{field}"] = _interval(values)
    return entry


def across_repeats(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return `<statistic>_across_repeats/<metric>` over the repeats' point estimates: means, and what a hook gave."""
    stats: dict[str, float] = {}
    for metric in dict.fromkeys(name for entry in entries for name in entry):
        if metric in _COUNTS or metric.startswith(_NO_POINT_ESTIMATES):
            continue
        values = [value for entry in entries if (value := number(entry.get(metric))) is not None]
        if not values:
            continue
        stats[f"mean_across_repeats/{metric}"] = statistics.mean(values)
        stats[f"median_across_repeats/{metric}"] = statistics.median(values)
        stats[f"min_across_repeats/{metric}"] = min(values)
        stats[f"max_across_repeats/{metric}"] = max(values)
        std = statistics.sample_std(values)
        if std is not None:
            stats[f"std_across_repeats/{metric}"] = std
            stats[f"se_across_repeats/{metric}"] = std / math.sqrt(len(values))
            low, high = _interval(values)
            stats[f"ci_low_95_across_repeats/{metric}"] = low
            stats[f"ci_high_95_across_repeats/{metric}"] = high
    return stats


def _interval(values: Sequence[float]) -> tuple[float, float]:
    interval = statistics.t_interval_95(values)
    assert interval is not None, "an interval is asked for with two values or more"
    return interval


def _warn_of_flat_intervals(entries: Sequence[Mapping[str, Any]]) -> None:
    """Say once, for all of `entries`, which intervals have no width."""
    flat = {
        name.split("/", 1)[1]: None
        for entry in entries
        for name, low in entry.items()
        if name.startswith("ci_low_95") and entry[name.replace("ci_low", "ci_high", 1)] == low
    }
    if flat:
        names = ", ".join(f"`{name}`" for name in flat)
        warnings.warn(f"95% intervals without width, of equal values: {names}", FlatIntervalWarning, stacklevel=3)


def _without_nan(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics without None, NaN and infinities, which are no JSON numbers."""
    return {
        key: value
        for key, value in metrics.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }

"""Result rows as numbers: which fields count, which rows are measured, in which order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject, JsonValue

Row: TypeAlias = Mapping[str, JsonValue]
Coverage: TypeAlias = dict[str, int]


class Measured(NamedTuple):
    """Rows that count for quality, and how many did not; `coverage` is empty when nothing was masked."""

    results: list[JsonObject]
    coverage: Coverage


def number(value: JsonValue) -> float | None:
    """Return a finite number as it is, a boolean as 0 or 1, None for anything else."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, float)):
        try:
            return value if math.isfinite(value) else None
        except OverflowError:  # a whole number that no float can hold
            return None
    return None


def numeric_fields(row: Row) -> dict[str, float]:
    """Return the numbers of a row: its own, not starting with `_`, and those of `response.usage`; reward first.

    A row's own field wins over one of its usage. `mask_sample` says whether a row counts, so it is no number.
    """
    fields: dict[str, float] = {}
    reward = number(row.get(keys.REWARD))
    if reward is not None:
        fields[keys.REWARD] = reward
    for name, value in row.items():
        if name.startswith("_") or name == keys.MASK_SAMPLE:
            continue
        amount = number(value)
        if amount is not None:
            fields[name] = amount
    response = row.get(keys.RESPONSE)
    usage = response.get("usage") if isinstance(response, Mapping) else None
    for name, value in usage.items() if isinstance(usage, Mapping) else ():
        amount = number(value)
        if amount is not None:
            fields.setdefault(name, amount)
    return fields


def index_key(value: JsonValue) -> tuple[int, float, str]:
    """Return a sort key for an index of any type: numbers by value, then texts, then what is absent."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (0, value, "")
    return (2, 0, "") if value is None else (1, 0, str(value))


def row_key(row: Row) -> tuple[tuple[int, float, str], tuple[int, float, str]]:
    """Return the sort key of a row: task, then rollout."""
    return index_key(row.get(keys.TASK_INDEX)), index_key(row.get(keys.ROLLOUT_INDEX))


def by_task(rows: Iterable[JsonObject]) -> list[list[JsonObject]]:
    """Return the rows in one list per task, tasks and rollouts in order."""
    groups: dict[tuple[int, float, str], list[JsonObject]] = {}
    for row in sorted(rows, key=row_key):
        groups.setdefault(index_key(row.get(keys.TASK_INDEX)), []).append(row)
    return list(groups.values())


def select_measured(results: Iterable[JsonObject]) -> Measured:
    """Return the rows that are not masked, and the coverage of the whole when at least one is."""
    every = list(results)
    measured = [row for row in every if not row.get(keys.MASK_SAMPLE)]
    return Measured(measured, {} if len(measured) == len(every) else coverage_of(every))


def coverage_of(results: Sequence[Row]) -> Coverage:
    """Return how many rollouts and tasks are measured, masked, and masked as a whole."""
    measured = [row for row in results if not row.get(keys.MASK_SAMPLE)]
    tasks = {index_key(row.get(keys.TASK_INDEX)) for row in results}
    measured_tasks = {index_key(row.get(keys.TASK_INDEX)) for row in measured}
    return {
        "coverage/measured_rollouts": len(measured),
        "coverage/masked_rollouts": len(results) - len(measured),
        "coverage/measured_tasks": len(measured_tasks),
        "coverage/fully_masked_tasks": len(tasks - measured_tasks),
    }


def agent_name(row: Row) -> str | None:
    """Return the name of the agent that a row was sent to, or None when it does not say."""
    ref = row.get(keys.AGENT_REF)
    name = ref.get("name") if isinstance(ref, Mapping) else None
    return name if isinstance(name, str) else None


def coverage_by_agent(results: Iterable[Row]) -> dict[str, Coverage]:
    """Return the coverage of each agent that has at least one masked row; rows without an agent count under ""."""
    groups: dict[str, list[Row]] = {}
    for row in results:
        groups.setdefault(agent_name(row) or "", []).append(row)
    return {
        name: coverage_of(rows)
        for name, rows in sorted(groups.items())
        if any(row.get(keys.MASK_SAMPLE) for row in rows)
    }

"""Which rollouts enter the metrics beside the successes, as reward 0. Files are never changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.failures import latest_failures
from nemo_gym.records.rows import RolloutKey, rollout_key

_DROPPED_PREFIX = "_ng_failure_"
_DROPPED = (keys.FAILURE_KIND, keys.FAILURE_REASON, keys.ROLLOUT_FAILURE, keys.FAILED_AT)


def failures_as_zero(
    sidecar: Iterable[JsonObject], done: Collection[RolloutKey], classes: Collection[str]
) -> Iterator[JsonObject]:
    """Yield a reward-0 row for each rollout without a success whose newest failure is of one of the classes."""
    for row in latest_failures(sidecar).values():
        key = rollout_key(row)
        if key is None or key in done or row.get(keys.OMITTED_ROLLOUT) or row.get(keys.FAILURE_CLASS) not in classes:
            continue
        kept = {
            name: value for name, value in row.items() if not name.startswith(_DROPPED_PREFIX) and name not in _DROPPED
        }
        kept.setdefault(keys.REWARD, 0.0)
        kept[keys.MASK_SAMPLE] = False
        yield kept


def missing_as_zero(materialized: Iterable[JsonObject], accounted: Collection[RolloutKey]) -> Iterator[JsonObject]:
    """Yield a reward-0 row for each materialized rollout that has neither a success nor a failure."""
    for row in materialized:
        key = rollout_key(row)
        if key is not None and key not in accounted:
            yield {**identity_fields(row), keys.REWARD: 0.0, keys.MASK_SAMPLE: False}


def identity_fields(row: JsonObject) -> JsonObject:
    """Return the indices and the agent of a row."""
    names = (keys.TASK_INDEX, keys.ROLLOUT_INDEX, keys.AGENT_REF, keys.TASK_SOURCE, keys.ENVIRONMENT_SERVER)
    return {name: row[name] for name in names if name in row}


def failed_keys(sidecar: Iterable[JsonObject]) -> set[RolloutKey]:
    """Return the rollouts that have a failure; omitted tries are none."""
    return {key for row in sidecar if not row.get(keys.OMITTED_ROLLOUT) and (key := rollout_key(row)) is not None}


def with_dataset_fields(imputed: JsonObject, dataset_row: JsonObject | None, carried: Collection[str]) -> JsonObject:
    """Return an imputed row with those fields of its dataset row that real rows of its server also carry."""
    extra = {name: value for name, value in (dataset_row or {}).items() if name in carried and name not in imputed}
    return {**imputed, **extra}

"""Which rollouts enter the metrics beside the successes, as reward 0. Files are never changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field

from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.failures import latest_failures
from nemo_gym.records.rows import RolloutKey, agent_name_of, rollout_key
from nemo_gym.rollouts.record import reward_of
from nemo_gym.store.jsonl import read_objects
from nemo_gym.store.run_files import RunFiles

_DROPPED_PREFIX = "_ng_failure_"
_DROPPED = (keys.FAILURE_KIND, keys.FAILURE_REASON, keys.ROLLOUT_FAILURE, keys.FAILED_AT)
_IDENTITY = (keys.TASK_INDEX, keys.ROLLOUT_INDEX, keys.AGENT_REF, keys.TASK_SOURCE, keys.ENVIRONMENT_SERVER)


@dataclass(slots=True)
class RealRows:
    """What results tell about rollouts without one: where they run, and which fields count there."""

    carried: dict[str, set[str]] = field(default_factory=dict)
    _servers: dict[str | None, set[str]] = field(default_factory=dict)

    def add(self, record: JsonObject) -> None:
        """Take a result in."""
        self.carried.setdefault(str(record.get(keys.ENVIRONMENT_SERVER)), set()).update(record)
        self.ran(record)

    def ran(self, row: JsonObject) -> None:
        """Take in where a result or a failure ran."""
        server = row.get(keys.ENVIRONMENT_SERVER)
        if isinstance(server, str):
            self._servers.setdefault(agent_name_of(row), set()).add(server)

    def server_of(self, row: JsonObject) -> str | None:
        """Return the environment server that rows of the same agent ran on, None when it is not known or not one."""
        servers = self._servers.get(agent_name_of(row)) or set()
        return next(iter(servers)) if len(servers) == 1 else None


def stand_ins(
    files: RunFiles,
    real: RealRows,
    done: Container[RolloutKey],
    *,
    classes: Collection[str],
    missing: bool,
    server_of: Callable[[JsonObject], str | None] | None = None,
) -> list[JsonObject]:
    """Return the reward-0 rows that the settings ask for, ordered by task and rollout. `done` have a result.

    `classes`: a rollout without a success counts when its newest failure is of one of them. `missing`: so does one that
    has neither success nor failure; what was only interrupted or never started has none. Each gets those fields of
    its dataset row that results of its server also carry. `server_of` says where a dataset row runs; by default
    what `real` knows. Holds the newest failure of each rollout, and the stand-ins, in memory.
    """
    sidecar = list(read_objects(files.failures)) if files.failures.exists() else []
    for row in sidecar:
        real.ran(row)
    failed = {
        key: row
        for row in latest_failures(sidecar).values()
        if not row.get(keys.OMITTED_ROLLOUT) and (key := rollout_key(row)) is not None and key not in done
    }
    counted = {key: _as_zero(row) for key, row in failed.items() if row.get(keys.FAILURE_CLASS) in classes}
    where = server_of or real.server_of
    found: dict[RolloutKey, JsonObject] = {}
    for row in read_objects(files.materialized) if files.materialized.exists() else ():
        key = rollout_key(row)
        if key is None or key in done:
            continue
        row_in = counted.pop(key, None)
        if row_in is None and missing and key not in failed:
            row_in = {name: row[name] for name in _IDENTITY if name in row}
            row_in |= {keys.REWARD: 0.0, keys.MASK_SAMPLE: False}
        if row_in is not None:
            if keys.ENVIRONMENT_SERVER not in row_in and (server := where(row)) is not None:
                row_in[keys.ENVIRONMENT_SERVER] = server
            carried = real.carried.get(str(row_in.get(keys.ENVIRONMENT_SERVER)), set())
            found[key] = _with_dataset_fields(row_in, row, carried)
    found |= counted  # failures of rollouts that the inventory does not name
    return [found[key] for key in sorted(found)]


def _as_zero(failure: JsonObject) -> JsonObject:
    kept = {
        name: value for name, value in failure.items() if not name.startswith(_DROPPED_PREFIX) and name not in _DROPPED
    }
    if reward_of(kept) is None:  # a judge that failed may say null
        kept[keys.REWARD] = 0.0
    kept[keys.MASK_SAMPLE] = False
    return kept


def _with_dataset_fields(row: JsonObject, dataset_row: Mapping[str, object], carried: Iterable[str]) -> JsonObject:
    extra = {name: dataset_row[name] for name in carried if name in dataset_row and name not in row}
    return {**row, **extra}

"""Saved rollouts by what they are, not by which line they are on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.identity import attempt_of, base_rollout_id, rollout_id_of
from nemo_gym.rollouts.record import reward_of
from nemo_gym.store.rollout_store import RolloutStore


def logical_rollout_id(record: Mapping[str, Any]) -> str | None:
    """Return which rollout a record is of, the same for every attempt; None without identity."""
    return base_rollout_id(record)


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """One saved result. `data` is the whole line; the properties read it."""

    data: JsonObject

    @property
    def rollout_id(self) -> str | None:
        """The capture key, attempt included."""
        return rollout_id_of(self.data)

    @property
    def attempt(self) -> int:
        """0 for the first try."""
        return attempt_of(self.data)

    @property
    def reward(self) -> float | None:
        """The reward, None when the rollout has none."""
        return reward_of(self.data)

    @property
    def masked(self) -> bool:
        """Whether the rollout counts for no quality metric."""
        return bool(self.data.get(keys.MASK_SAMPLE))


class RolloutRecords:
    """The effective results of a run or a folder of shards; iterating streams them from disk."""

    def __init__(self, output: str | Path) -> None:
        self._store = RolloutStore(output, read_only=True)

    def __iter__(self) -> Iterator[RolloutRecord]:
        return (RolloutRecord(row) for row in self._store.results())

"""Sets of rollouts that stay small at a million members.

Indices of a run are dense: tasks 0 to n, each with the same few repeats. So keys are kept as bits, 64 neighbouring keys
(8 tasks by 8 repeats) in one number. Indices that are far apart cost no more than in a set of tuples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSet

from nemo_gym.records.rows import RolloutKey

_SHIFT = 3
_LOW = (1 << _SHIFT) - 1
_TILE_SHIFT = 64


class RolloutKeySet(MutableSet[RolloutKey]):
    """A mutable set of rollout keys; iterates tile by tile, in no promised order."""

    __slots__ = ("_count", "_tiles")

    def __init__(self, keys: Iterable[RolloutKey] = ()) -> None:
        self._tiles: dict[int, int] = {}
        self._count = 0
        for key in keys:
            self.add(key)

    def add(self, value: RolloutKey) -> None:
        """Add a key; both indices are at least 0."""
        task, rollout = value
        tile = (task >> _SHIFT) << _TILE_SHIFT | rollout >> _SHIFT
        bit = 1 << ((task & _LOW) << _SHIFT | rollout & _LOW)
        bits = self._tiles.get(tile, 0)
        if not bits & bit:
            self._tiles[tile] = bits | bit
            self._count += 1

    def discard(self, value: RolloutKey) -> None:
        """Remove a key if it is there."""
        if value in self:
            task, rollout = value
            self._tiles[(task >> _SHIFT) << _TILE_SHIFT | rollout >> _SHIFT] ^= 1 << (
                (task & _LOW) << _SHIFT | rollout & _LOW
            )
            self._count -= 1

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, tuple):
            return False
        task, rollout = value
        bits = self._tiles.get((task >> _SHIFT) << _TILE_SHIFT | rollout >> _SHIFT, 0)
        return bool(bits >> ((task & _LOW) << _SHIFT | rollout & _LOW) & 1)

    def __iter__(self) -> Iterator[RolloutKey]:
        low_rollout = (1 << _TILE_SHIFT) - 1
        for tile, bits in self._tiles.items():
            task, rollout = (tile >> _TILE_SHIFT) << _SHIFT, (tile & low_rollout) << _SHIFT
            left = bits
            while left:
                position = (left & -left).bit_length() - 1
                left &= left - 1
                yield RolloutKey(task + (position >> _SHIFT), rollout + (position & _LOW))

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"RolloutKeySet({self._count} rollouts)"


class Inventory:
    """Which rollouts a run owes, and where each of them is sent: one key set for each target's label."""

    __slots__ = ("_of_label",)

    def __init__(self) -> None:
        self._of_label: dict[str, RolloutKeySet] = {}

    def add(self, key: RolloutKey, label: str) -> None:
        """Take a rollout in."""
        keys = self._of_label.get(label)
        if keys is None:
            keys = self._of_label[label] = RolloutKeySet()
        keys.add(key)

    def label_of(self, key: RolloutKey) -> str | None:
        """Return where the rollout is sent, None for one that the run does not owe."""
        return next((label for label, keys in self._of_label.items() if key in keys), None)

    def counts(self) -> dict[str, int]:
        """Return how many rollouts each target gets."""
        return {label: len(keys) for label, keys in self._of_label.items()}

    def tasks(self) -> int:
        """Return how many distinct tasks there are."""
        return len(RolloutKeySet(RolloutKey(key.task, 0) for key in self))

    def __contains__(self, key: RolloutKey) -> bool:
        return any(key in keys for keys in self._of_label.values())

    def __iter__(self) -> Iterator[RolloutKey]:
        for keys in self._of_label.values():
            yield from keys

    def __len__(self) -> int:
        return sum(len(keys) for keys in self._of_label.values())

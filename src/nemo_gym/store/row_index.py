"""Where the rows of a few files are, in the order of their indices; a million rows take 36 MB."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

_LIMIT = 1 << 63


class Place(NamedTuple):
    """One row: its indices, the number of its file, and its bytes there."""

    task: Any
    rollout: Any
    file: int
    offset: int
    length: int


class RowIndex:
    """Places of rows; iterating gives them sorted by task, rollout, and the order in which they were added.

    Rows whose indices are no whole numbers come last, sorted by their text.
    """

    def __init__(self) -> None:
        self._tasks = array("q")
        self._rollouts = array("q")
        self._files = array("I")
        self._offsets = array("Q")
        self._lengths = array("Q")
        self._unusual: list[Place] = []

    def __len__(self) -> int:
        return len(self._tasks) + len(self._unusual)

    def add(self, place: Place) -> None:
        """Take a row in."""
        task, rollout, file, offset, length = place
        if not _is_small(task) or not _is_small(rollout):
            self._unusual.append(place)
            return
        self._tasks.append(task)
        self._rollouts.append(rollout)
        self._files.append(file)
        self._offsets.append(offset)
        self._lengths.append(length)

    def __iter__(self) -> Iterator[Place]:
        tasks, rollouts = self._tasks, self._rollouts
        for number in sorted(range(len(tasks)), key=lambda at: (tasks[at] << 64) + rollouts[at]):
            yield Place(
                tasks[number], rollouts[number], self._files[number], self._offsets[number], self._lengths[number]
            )
        yield from sorted(self._unusual, key=lambda place: (str(place.task), str(place.rollout)))


def _is_small(index: Any) -> bool:
    return isinstance(index, int) and -_LIMIT <= index < _LIMIT

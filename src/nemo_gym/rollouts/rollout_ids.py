"""Rows that would share a capture, found before any of them is sent.

A capture is named after its rollout's id; two rollouts of one id would be captured as one. An id is a row's own
`_ng_rollout_id`, or `<task>-<rollout>`; a later try adds `-a<n>`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym.errors import ConfigError
from nemo_gym.records import keys
from nemo_gym.records.identity import base_rollout_id, rollout_id_of, rollout_id_problem
from nemo_gym.records.rows import RolloutKey, rollout_key
from nemo_gym.rollouts.row_places import POSITIONS, RowPlaces
from nemo_gym.store.key_set import RolloutKeySet

_LIKE_INDICES = re.compile(r"(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})")
_MAX_LISTED = 10
_WAY_OUT = (
    f"Give each rollout an id of its own, or leave `{keys.ROLLOUT_ID}` out: "
    "the id is then `<task index>-<rollout index>`"
)


class RolloutIds:
    """The ids of a run's rows, taken in one by one; 16 bytes and a set entry for an explicit one, bits for others."""

    def __init__(self, places: RowPlaces = POSITIONS) -> None:
        self._places = places
        self._explicit: dict[bytes, int] = {}
        self._with_explicit = RolloutKeySet()
        self._without = RolloutKeySet()
        self._like_indices: dict[RolloutKey, int] = {}
        self._problems: list[str] = []
        self._repeated: list[int] = []

    def add(self, row: Mapping[str, Any], position: int) -> None:
        """Take in a rollout; `position` is that of its input row, which several rollouts can come from."""
        key = rollout_key(row)
        if row.get(keys.ROLLOUT_ID) is None:
            if key is not None:
                self._without.add(key)
            return
        try:
            rollout_id = base_rollout_id(row) or ""
        except ValueError as error:
            self._problem(f"{self._places.one(position)}: {error}")
            return
        if key is not None:
            self._with_explicit.add(key)
        digest = hashlib.blake2b(rollout_id.encode(), digest_size=16).digest()
        first = self._explicit.setdefault(digest, position)
        if first != position:
            self._problem(f"{self._places.both(first, position)} have the same rollout id `{rollout_id}`")
        like = _LIKE_INDICES.fullmatch(rollout_id)
        if like is not None:
            self._like_indices[RolloutKey(int(like[1]), int(like[2]))] = position

    def add_repeated(self, position: int) -> None:
        """Take in an input row that has an explicit id and becomes several rollouts."""
        self._repeated.append(position)

    def check(self) -> None:
        """Raise one ConfigError for all rows whose id is unusable or not theirs alone."""
        if self._repeated:
            first, *more = self._repeated
            raise ConfigError(
                f"{self._places.many(self._repeated) if more else self._places.one(first)}: "
                f"`{keys.ROLLOUT_ID}` names one rollout, and the row is run several times. {_WAY_OUT}; "
                "or run each row once (`--num-repeats 1` (`num_repeats`), one agent)"
            )
        for key, position in self._like_indices.items():
            if key in self._without and key not in self._with_explicit:
                self._problem(
                    f"{self._places.one(position)} has the rollout id `{key}`, which another row has by its indices"
                )
        if self._problems:
            raise ConfigError(_text(self._problems))

    def _problem(self, text: str) -> None:
        if len(self._problems) <= _MAX_LISTED:
            self._problems.append(text)


def check_row_ids(rows: Sequence[Mapping[str, Any]], *, prefix: str, unique: bool) -> None:
    """Raise ValueError for rows whose id, under the run's prefix, is unusable, or with `unique` not theirs alone."""
    seen: dict[str, int] = {}
    problems: list[str] = []
    for position, row in enumerate(rows):
        try:
            prefixed = {**row, keys.ROLLOUT_ID: prefixed_rollout_id(row, prefix)} if prefix else row
            rollout_id = rollout_id_of(prefixed)
            problem = None if rollout_id is None else rollout_id_problem(rollout_id)
        except ValueError as error:
            rollout_id, problem = None, str(error)
        if problem is not None:
            problems.append(f"row {position}: {problem}")
        elif unique and rollout_id is not None:
            first = seen.setdefault(rollout_id, position)
            if first != position:
                shown = rollout_id.removeprefix(f"{prefix}-")
                problems.append(f"rows {first} and {position} have the same rollout id `{shown}`")
    if problems:
        raise ValueError(_text(problems))


def prefixed_rollout_id(row: Mapping[str, Any], run_id: str) -> str:
    """Return the row's id under a run's prefix; one that has it already keeps it."""
    base = base_rollout_id(row)
    return base if base is not None and base.startswith(f"{run_id}-") else f"{run_id}-{base}"


def _text(problems: Sequence[str]) -> str:
    more = len(problems) - _MAX_LISTED
    listed = "; ".join(problems[:_MAX_LISTED]) + ("; and more" if more > 0 else "")
    return f"nothing was sent: {listed}. {_WAY_OUT}"

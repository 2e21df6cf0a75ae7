"""Who a rollout is: the capture key made from a row, and the ids of its trajectory.

Source: `requirements.md` A20, C11 of the specification; writers and readers use these same functions, so that a key
that was written is always the key that is looked up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from nemo_gym.records import keys

ROLLOUT_ID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]*"
MAX_ROLLOUT_ID_LENGTH = 200
"""So that `<id>.capture.incomplete` fits into a file name of 255 bytes."""

_ROLLOUT_ID = re.compile(ROLLOUT_ID_PATTERN)
_RESERVED_ENDING = re.compile(r"-a[1-9][0-9]*\Z")
_TASK_ID_KEYS = ("task_id", "problem_id", "instance_id")


class TrajectoryIdentity(NamedTuple):
    """The two ids of a trajectory; `override_invalid` says that the row's own override was unusable."""

    task_id: str
    rollout_id: str
    override_invalid: bool


def rollout_id_problem(rollout_id: object) -> str | None:
    """Return why `rollout_id` cannot be a capture key, or None when it can."""
    if not isinstance(rollout_id, str):
        return f"a rollout id is a string, not `{type(rollout_id).__name__}`"
    if not _ROLLOUT_ID.fullmatch(rollout_id):
        return (
            f"rollout id `{rollout_id[:80]}` must start with a letter or digit and hold only letters, digits, "
            "`.`, `_` and `-`"
        )
    if len(rollout_id) > MAX_ROLLOUT_ID_LENGTH:
        return f"a rollout id has at most {MAX_ROLLOUT_ID_LENGTH} characters, this one has {len(rollout_id)}"
    if rollout_id.endswith("."):
        return f"rollout id `{rollout_id}` must not end with a dot"
    return None


def check_rollout_id(rollout_id: object) -> str:
    """Return `rollout_id` when it can be a capture key, else raise ValueError saying why."""
    problem = rollout_id_problem(rollout_id)
    if problem is not None:
        raise ValueError(problem)
    assert isinstance(rollout_id, str)
    return rollout_id


def attempt_of(row: Mapping[str, Any]) -> int:
    """Return the retry number of a row: 0 for the first try, also when the key is absent.

    Raises ValueError for anything but a whole number from 0: a guessed number would name the capture of another try.
    """
    value = row.get(keys.ATTEMPT_INDEX)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"`{keys.ATTEMPT_INDEX}` must be a whole number from 0, not `{str(value)[:80]}`")
    return value


def base_rollout_id(row: Mapping[str, Any]) -> str | None:
    """Return the row's id without the attempt suffix, or None when the row has no identity.

    An explicit `_ng_rollout_id` wins and is never sanitised: an unusable one raises ValueError, as does one that ends
    like an attempt suffix (`-a1`), since `x-a1` and the second attempt of `x` would share a file.
    """
    explicit = row.get(keys.ROLLOUT_ID)
    if explicit is not None:
        checked = check_rollout_id(explicit)
        if _RESERVED_ENDING.search(checked):
            raise ValueError(f"rollout id `{checked}` must not end in `-a<n>`: that ending names a retry attempt")
        return checked
    task, rollout = row.get(keys.TASK_INDEX), row.get(keys.ROLLOUT_INDEX)
    return None if task is None or rollout is None else f"{task}-{rollout}"


def rollout_id_of(row: Mapping[str, Any]) -> str | None:
    """Return the capture key of a row, attempt suffix included, or None when the row has no identity."""
    base = base_rollout_id(row)
    if base is None:
        return None
    attempt = attempt_of(row)
    return f"{base}-a{attempt}" if attempt > 0 else base


def is_materialized_row(row: Mapping[str, Any]) -> bool:
    """Return whether the row is a task envelope: `task_id` an object and `task_input` present."""
    return "task_input" in row and isinstance(row.get("task_id"), Mapping)


def task_id_of(row: Mapping[str, Any]) -> str:
    """Return the task id of a row: `task_id.task_id`, else the first scalar id, else the task index; "" if none."""
    value = row.get("task_id")
    if isinstance(value, Mapping):
        inner = value.get("task_id")
        if isinstance(inner, str):
            return inner
    for key in _TASK_ID_KEYS:
        value = row.get(key)
        if value is not None and not isinstance(value, (Mapping, list)):
            return str(value)
    index = row.get(keys.TASK_INDEX)
    return "" if index is None else str(index)


def trajectory_identity_of(row: Mapping[str, Any]) -> TrajectoryIdentity:
    """Return the ids that a trajectory of this row carries.

    A valid `trajectory_identity` (an object whose `task_id` and `rollout_id` are text that is not blank) overrides
    both. Otherwise the rollout id is the capture key, attempt suffix included. Capture look-up never uses the override.
    """
    override = row.get(keys.TRAJECTORY_IDENTITY)
    invalid = False
    if override is not None:
        if isinstance(override, Mapping):
            task, rollout = override.get("task_id"), override.get("rollout_id")
            if isinstance(task, str) and isinstance(rollout, str) and task.strip() and rollout.strip():
                return TrajectoryIdentity(task, rollout, False)
        invalid = True
    rollout_id = rollout_id_of(row)
    if rollout_id is None:
        rollout_id = f"{row.get(keys.TASK_INDEX, '')}-{row.get(keys.ROLLOUT_INDEX, '')}"
    return TrajectoryIdentity(task_id_of(row), rollout_id, invalid)

"""What a row says about itself: its key in a run, the body it becomes on the wire, the identity its record carries.

Pure: dicts in, values out. A *row* is one line of a run's materialized inputs; its key is the pair of task and rollout
index, unique in a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeGuard

from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.identity import attempt_of, base_rollout_id, is_materialized_row

UNNAMED_SAMPLE: Final[JsonObject] = {keys.AGENT_REF: {"name": "agent"}}
"""The `sample` of a task's metrics where only results are known: its form is fixed, its name stands for any agent."""

_COPIED_TO_RESULT = (keys.AGENT_REF, keys.TASK_SOURCE, keys.SKILLS_REF, keys.ATTEMPT_INDEX, keys.ROLLOUT_ID)
_EVIDENCE_FORBIDDEN_IN_EPISODE = (keys.TRAJECTORY, keys.MODEL_CALL_CAPTURE, keys.PERF, keys.PERF_DETAIL)
_EVIDENCE_OF_COLLECTION = (keys.MODEL_CALL_CAPTURE, keys.PERF, keys.PERF_DETAIL)
# What a reply may say about its own routing; `_ng_task_id` is put there by `result_of_reply`.
_OBEYED_IN_REPLY = frozenset(
    {
        keys.FAILURE_CLASS,
        keys.FAILURE_TYPE,
        keys.FAILURE_MESSAGE,
        keys.FAILURE_HTTP_STATUS,
        keys.FAILURE_RESPONSE_BODY,
        keys.FAILURE_TERMINAL,
        keys.FAILURE_STAGE,
        keys.FAILURE_PARTIAL_RESPONSE,
        keys.FAILURE_JUDGE_ERROR,
        keys.FAILED_AT,
        keys.NO_PERSIST,
    }
)
_MAX_POSITIONS = 10
_INDEX_LIMIT = 1 << 63


class RolloutKey(NamedTuple):
    """Task and rollout index: which rollout of a run this is, whatever the attempt."""

    task: int
    rollout: int

    def __str__(self) -> str:
        return f"{self.task}-{self.rollout}"


def rollout_key(row: Mapping[str, Any]) -> RolloutKey | None:
    """Return the row's key, or None when it lacks an index or one is no whole number from 0 to below 2**63."""
    task, rollout = row.get(keys.TASK_INDEX), row.get(keys.ROLLOUT_INDEX)
    if type(task) is int and type(rollout) is int and 0 <= task < _INDEX_LIMIT and 0 <= rollout < _INDEX_LIMIT:
        return RolloutKey(task, rollout)  # asked for each row more than once
    if not is_index(task) or not is_index(rollout):
        return None
    return RolloutKey(task, rollout)


def is_index(value: object) -> TypeGuard[int]:
    """Return whether a value can number a task or a rollout: a whole number from 0 to below 2**63."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _INDEX_LIMIT


def check_recordable(rows: Iterable[Mapping[str, Any]]) -> None:
    """Raise one ValueError when rows cannot be recorded: an index is missing or unusable, or a key comes twice (A14).

    The message names up to ten positions, 0-based.
    """
    seen: dict[RolloutKey, int] = {}
    unusable: list[str] = []
    for position, row in enumerate(rows):
        key = rollout_key(row)
        if key is None:
            unusable.append(f"row {position}: `{keys.TASK_INDEX}` and `{keys.ROLLOUT_INDEX}` must be integers >= 0")
        elif key in seen:
            unusable.append(f"row {position}: same indices {key} as row {seen[key]}")
        else:
            seen[key] = position
    if unusable:
        more = len(unusable) - _MAX_POSITIONS
        listed = "; ".join(unusable[:_MAX_POSITIONS]) + (f"; and {more} more" if more > 0 else "")
        raise ValueError(f"these rows cannot be recorded, nothing was written: {listed}")


def agent_name_of(row: Mapping[str, Any]) -> str | None:
    """Return the name in the row's `agent_ref`, or None."""
    ref = row.get(keys.AGENT_REF)
    # A dict first: an abstract class is slow to ask, and this is asked for each row several times.
    name = ref.get("name") if type(ref) is dict or isinstance(ref, Mapping) else None
    return name if isinstance(name, str) and name else None


def taskset_of(row: Mapping[str, Any]) -> str | None:
    """Return `task_id.taskset` of a materialized row, or None."""
    task_id = row.get("task_id")
    value = task_id.get("taskset") if isinstance(task_id, Mapping) else None
    return value if isinstance(value, str) else None


def run_body(row: JsonObject) -> JsonObject:
    """Return the body of `POST /run`: a flat row as it is, a materialized row as an episode request."""
    if not is_materialized_row(row):
        return row
    return {
        "episode_id": {"rollout_id": base_rollout_id(row), "attempt": attempt_of(row)},
        "task": {"task_id": row["task_id"], "task_input": row["task_input"]},
    }


def result_of_reply(row: Mapping[str, Any], reply: JsonObject) -> JsonObject:
    """Return the record's body in a reply to `/run`: the reply itself, or what an episode reply wraps.

    An episode reply's `failure` becomes a result of class `environment_server_failed`. Raises ValueError when an
    episode reply has neither, when its result claims keys that only collection writes, and when a flat row is answered
    with an episode reply.
    """
    if not is_materialized_row(row):
        if _is_episode_reply(reply):
            raise ValueError("a row without `task_id` and `task_input` was answered with an episode reply")
        return reply
    if not _is_episode_reply(reply):
        if isinstance(reply.get("episode_id"), Mapping) and ("result" in reply or "failure" in reply):
            raise ValueError("an episode reply needs a `task_id`, and an object `result` or an object `failure`")
        return reply
    failure = reply.get("failure")
    if isinstance(failure, Mapping):
        result: JsonObject = {
            keys.FAILURE_CLASS: "environment_server_failed",
            keys.FAILURE_TERMINAL: bool(failure.get("terminal")),
            keys.FAILURE_MESSAGE: failure.get("failure_reason"),
            keys.FAILURE_REASON: failure.get("failure_reason"),
        }
        if failure.get("failure_kind") is not None:
            result[keys.FAILURE_KIND] = failure["failure_kind"]
        if failure.get("stage") is not None:
            result[keys.FAILURE_STAGE] = failure["stage"]
        if reply.get("partial_response") is not None:
            result[keys.FAILURE_PARTIAL_RESPONSE] = reply["partial_response"]
    else:
        inner = reply.get("result")
        if not isinstance(inner, dict):
            raise ValueError("an episode reply needs an object `result` or an object `failure`")
        forbidden = sorted(key for key in inner if key.startswith("_ng_") or key in _EVIDENCE_FORBIDDEN_IN_EPISODE)
        if forbidden:
            raise ValueError(f"an episode result must not carry {', '.join(f'`{key}`' for key in forbidden)}")
        result = dict(inner)
    result[keys.MATERIALIZED_TASK_ID] = reply.get("task_id")
    return result


def drop_foreign_keys(row: Mapping[str, Any], result: JsonObject) -> None:
    """Remove from an accepted reply what only collection writes, in place: identity, marks, captured evidence.

    An agent that echoes its row, or claims a capture of its own, must not decide which rollout a record is of or what
    was observed. The marks that say where a reply goes stay: they are the agent's to set. One that its row has already,
    as rows made from saved results do, is only echoed.
    """
    for key in _EVIDENCE_OF_COLLECTION:
        result.pop(key, None)
    for key in [key for key in result if key.startswith("_ng_") and key not in _OBEYED_IN_REPLY]:
        if key != keys.MATERIALIZED_TASK_ID or not is_materialized_row(row):
            del result[key]
    if is_materialized_row(row):
        return
    for key in _OBEYED_IN_REPLY:
        if key in row and key in result and result[key] == row[key]:
            del result[key]


def stamp_identity(
    row: Mapping[str, Any], result: JsonObject, *, environment_server: str | None, result_type: str | None
) -> None:
    """Copy the row's identity onto its result, over whatever the agent echoed."""
    for key in (keys.TASK_INDEX, keys.ROLLOUT_INDEX):
        if key in row:
            result[key] = row[key]
    for key in _COPIED_TO_RESULT:
        value = row.get(key)
        if value is not None:
            result[key] = value
    if environment_server is not None:
        result[keys.ENVIRONMENT_SERVER] = environment_server
    if result_type is not None:
        result[keys.RESULT_TYPE] = result_type


def row_summary(row: Mapping[str, Any]) -> str:
    """Return a short name for log lines: agent and indices."""
    key = rollout_key(row)
    return f"{agent_name_of(row) or '?'} {key if key is not None else '(no indices)'}"


def _is_episode_reply(reply: Mapping[str, Any]) -> bool:
    return (
        isinstance(reply.get("episode_id"), Mapping)
        and isinstance(reply.get("task_id"), Mapping)
        and (reply.get("result") is not None or reply.get("failure") is not None)
    )

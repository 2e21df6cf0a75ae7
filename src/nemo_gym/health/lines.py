"""One line of a rollouts file as the checks see it.

The fast lane decodes the line once, into the record types of `records.evidence` with the payloads left as raw bytes, so
that every rule of those types holds and nothing is copied that no check reads. Whatever the fast lane refuses is read
again, slowly, by `records.evidence` itself, whose answer counts.
"""

from __future__ import annotations

import codecs
import json
import threading
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from nemo_gym.records import codec, evidence, keys
from nemo_gym.records.conversation import ITEM_TYPES, MESSAGE_ROLES

Line: TypeAlias = bytes | memoryview

_NULL = Raw(b"null")
_UTF8_PIECE = 16 << 10  # stays in the first-level cache
_IDENTITY_KEYS = (keys.TASK_INDEX, keys.ROLLOUT_INDEX, keys.STAGE_INDEX, keys.ROLLOUT_ID, keys.RUN_ID)
_TRAJECTORY_LISTS = ("invocations", "turns", "model_calls", "tool_calls", "gaps")
_CALL_PARTS = ("response_metadata", "token_stats")
_NAMED = frozenset({"function_call", "custom_tool_call"})
_QUOTE = ord('"')
_TEXT_OR_LIST = (_QUOTE, ord("["))
_INT64 = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a line, or a part of it, cannot be used; `error` is the class of what was raised."""

    reason: str
    error: str


class RecordFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a readable line says: identity values of the allowed types, and the evidence.

    `problems` are parts that are there and unusable: the trajectory, an identity value, a repeated key.
    """

    task_index: int | str | None
    rollout_index: int | str | None
    stage_index: int | str | None
    rollout_id: str | None
    run_id: str | None
    trajectory: evidence.TrajectoryRecord | None
    usage: dict[str, Any] | None
    problems: tuple[Problem, ...]


class _Once(threading.local):
    """Which of the keys that may stand once in a record the current decode has met, and how many parts it has made.

    A decoder keeps the last of two equal keys. More parts made than kept means that a list of them stood twice.
    """

    def __init__(self) -> None:
        self.met: list[str] = []
        self.parts = 0


_once = _Once()


class _Identity:
    """One identity value of any type; its class name is its key, so that the hook knows which it is."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class _TaskIndex(_Identity):
    __slots__ = ()


class _RolloutIndex(_Identity):
    __slots__ = ()


class _StageIndex(_Identity):
    __slots__ = ()


class _RolloutId(_Identity):
    __slots__ = ()


class _RunId(_Identity):
    __slots__ = ()


class _Reward(_Identity):
    __slots__ = ()


class _MaskSample(_Identity):
    __slots__ = ()


def _identity_hook(kind: type, value: Any) -> Any:
    _once.met.append(kind.__name__)
    return kind(value)


class _Item(msgspec.Struct, gc=False):
    """The part of a conversation item that the schema has rules for."""

    type: str | None = None
    role: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: Raw = _NULL
    content: Raw = _NULL


class _Invocation(evidence.AgentInvocation, frozen=True, gc=False):
    conversation: list[_Item] = []

    def __post_init__(self) -> None:
        _once.parts += 1
        if not all(map(_plainly_valid, self.conversation)):
            raise ValueError("an item that the fast lane is not sure about")


class _Turn(evidence.TrajectoryTurn, frozen=True, gc=False):
    question: Raw = _NULL
    answer: Raw = _NULL
    reasoning_content: Raw = _NULL

    def __post_init__(self) -> None:
        _once.parts += 1


class _Call(evidence.TrajectoryModelCall, frozen=True, gc=False):
    request: Raw = _NULL
    response: Raw = _NULL

    def __post_init__(self) -> None:
        _once.parts += 1


class _Tool(evidence.TrajectoryToolCall, frozen=True, gc=False):
    output: Raw = _NULL

    def __post_init__(self) -> None:
        _once.parts += 1
        evidence.TrajectoryToolCall.__post_init__(self)


class _Trajectory(evidence.TrajectoryRecord, frozen=True):
    # Lists are invariant, the record types are immutable: narrowing the items is safe.
    invocations: list[_Invocation] = []  # type: ignore[assignment]
    turns: list[_Turn] = []  # type: ignore[assignment]
    model_calls: list[_Call] = []  # type: ignore[assignment]
    tool_calls: list[_Tool] = []  # type: ignore[assignment]

    def __post_init__(self) -> None:
        _once.met.append("trajectory")
        kept = len(self.invocations) + len(self.turns) + len(self.model_calls) + len(self.tool_calls)
        if kept != _once.parts:
            raise ValueError("a list that stands twice")
        evidence.TrajectoryRecord.__post_init__(self)


class _Response(msgspec.Struct):
    usage: Raw = _NULL

    def __post_init__(self) -> None:
        _once.met.append("response")


class _Capture(msgspec.Struct):
    def __post_init__(self) -> None:
        _once.met.append("capture")


class _Observations(msgspec.Struct):
    def __post_init__(self) -> None:
        _once.met.append("observations")


class _Perf(msgspec.Struct):
    def __post_init__(self) -> None:
        _once.met.append("perf")


class _Record(msgspec.Struct):
    task_index: _TaskIndex | None = msgspec.field(default=None, name=keys.TASK_INDEX)
    rollout_index: _RolloutIndex | None = msgspec.field(default=None, name=keys.ROLLOUT_INDEX)
    stage_index: _StageIndex | None = msgspec.field(default=None, name=keys.STAGE_INDEX)
    rollout_id: _RolloutId | None = msgspec.field(default=None, name=keys.ROLLOUT_ID)
    run_id: _RunId | None = msgspec.field(default=None, name=keys.RUN_ID)
    response: _Response | None = msgspec.field(default=None, name=keys.RESPONSE)
    trajectory: _Trajectory | None = msgspec.field(default=None, name=keys.TRAJECTORY)
    # Not read, only met: a record that says one of these twice contradicts itself.
    reward: _Reward | None = None
    mask_sample: _MaskSample | None = None
    capture: _Capture | None = msgspec.field(default=None, name=keys.MODEL_CALL_CAPTURE)
    observations: _Observations | None = msgspec.field(default=None, name=keys.AGENT_OBSERVATIONS)
    perf: _Perf | None = msgspec.field(default=None, name=keys.PERF)


_RECORD = msgspec.json.Decoder(_Record, dec_hook=_identity_hook)
_TRAJECTORY = msgspec.json.Decoder(_Trajectory)
_PARTS = msgspec.json.Decoder(dict[str, Raw])
_RESPONSE = msgspec.json.Decoder(_Response)


def read_line(line: Line) -> RecordFacts | Problem:
    """Return what a line says, or why it cannot be read. Raises RecursionError, and nothing else, for any bytes."""
    try:
        _check_utf8(line)
    except UnicodeDecodeError as error:
        return Problem(reason="not UTF-8", error=type(error).__name__)
    met = _once.met
    met.clear()
    _once.parts = 0
    try:
        record = _RECORD.decode(line)
    except msgspec.DecodeError:
        return _read_by_parts(bytes(line))
    # A key met twice; or one met and then, by a null after it, taken back.
    if len(set(met)) != len(met) or (record.trajectory is None and "trajectory" in met):
        return _read_by_parts(bytes(line))
    problems: list[Problem] = []
    return RecordFacts(
        task_index=_index(record.task_index, keys.TASK_INDEX, problems),
        rollout_index=_index(record.rollout_index, keys.ROLLOUT_INDEX, problems),
        stage_index=_index(record.stage_index, keys.STAGE_INDEX, problems),
        rollout_id=_text(record.rollout_id, keys.ROLLOUT_ID, problems),
        run_id=_text(record.run_id, keys.RUN_ID, problems),
        trajectory=record.trajectory,
        usage=_usage(record.response),
        problems=tuple(problems),
    )


def _read_by_parts(line: bytes) -> RecordFacts | Problem:
    """Read a line that the fast lane refused, each part for itself."""
    try:
        parts = _PARTS.decode(line)
        identity = {key: _Identity(codec.decode(bytes(parts[key]))) for key in _IDENTITY_KEYS if key in parts}
    except ValueError:  # msgspec.DecodeError is a ValueError
        return _read_leniently(line)
    problems: list[Problem] = []
    task_index, rollout_index, stage_index = (_index(identity.get(key), key, problems) for key in _IDENTITY_KEYS[:3])
    rollout_id, run_id = (_text(identity.get(key), key, problems) for key in _IDENTITY_KEYS[3:])
    problems += [Problem(reason=f"key `{key}` occurs twice", error="ValueError") for key in _repeated_keys(line)]
    trajectory, problem = _trajectory(parts.get(keys.TRAJECTORY))
    if problem is not None:
        problems.append(problem)
    return RecordFacts(
        task_index=task_index,
        rollout_index=rollout_index,
        stage_index=stage_index,
        rollout_id=rollout_id,
        run_id=run_id,
        trajectory=trajectory,
        usage=_usage(_response(parts.get(keys.RESPONSE))),
        problems=tuple(problems),
    )


def _read_leniently(line: bytes) -> RecordFacts | Problem:
    """Read a line that only the package's own codec accepts: with lone surrogate escapes, which become `?`."""
    try:
        value = codec.decode(line)
    except ValueError as error:
        return Problem(reason="not JSON", error=type(error.__cause__ or error).__name__)
    if not isinstance(value, dict):
        return Problem(reason=f"not a JSON object but a `{type(value).__name__}`", error="TypeError")
    cleaned = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    try:
        _PARTS.decode(cleaned)
    except msgspec.DecodeError as error:
        return Problem(reason="not JSON", error=type(error).__name__)
    return _read_by_parts(cleaned)


def _response(raw: Raw | None) -> _Response | None:
    try:
        return None if raw is None else _RESPONSE.decode(raw)
    except msgspec.DecodeError:
        return None  # a result of another shape has no usage to compare


def _trajectory(raw: Raw | None) -> tuple[evidence.TrajectoryRecord | None, Problem | None]:
    if raw is None or bytes(raw) == b"null":
        return None, None
    _once.parts = 0
    try:
        return _TRAJECTORY.decode(raw), None
    except msgspec.DecodeError:
        pass
    try:
        return evidence.read(evidence.TrajectoryRecord, codec.decode(bytes(raw))), None
    except ValueError as error:  # msgspec.ValidationError is a ValueError
        return None, Problem(reason=f"`{keys.TRAJECTORY}` is invalid", error=type(error).__name__)


def _plainly_valid(item: _Item) -> bool:
    """Return True only for items that `records.conversation` accepts; False sends the trajectory to it."""
    kind = item.type
    if kind is None or kind == "message":
        return item.role in MESSAGE_ROLES and memoryview(item.content)[0] in _TEXT_OR_LIST
    if kind not in ITEM_TYPES:
        return False
    if kind in _NAMED:
        return item.call_id is not None and item.name is not None and memoryview(item.arguments)[0] == _QUOTE
    return item.call_id is not None or not kind.endswith("_output")


def _check_utf8(line: Line) -> None:
    """Raise UnicodeDecodeError unless the line is UTF-8. Skipped strings are not checked by the decoder."""
    view = memoryview(line)
    start, end = 0, len(view)
    while start < end:
        stop = start + _UTF8_PIECE
        _, used = codecs.utf_8_decode(view[start:stop], "strict", stop >= end)
        start += used


def _usage(response: _Response | None) -> dict[str, Any] | None:
    try:
        value = None if response is None else codec.decode(bytes(response.usage))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _index(value: _Identity | None, key: str, problems: list[Problem]) -> int | str | None:
    inner = None if value is None else value.value
    if inner is None or type(inner) is str or (type(inner) is int and -_INT64 <= inner < _INT64):
        return inner
    problems.append(Problem(reason=f"`{key}` is neither a whole number nor text", error="TypeError"))
    return None


def _text(value: _Identity | None, key: str, problems: list[Problem]) -> str | None:
    inner = None if value is None else value.value
    if inner is None or type(inner) is str:
        return inner
    problems.append(Problem(reason=f"`{key}` is not text", error="TypeError"))
    return None


class _Pairs(list[tuple[str, Any]]):
    """An object as its keys and values, none left out."""

    def value(self, key: str) -> Any:
        return next((value for name, value in reversed(self) if name == key), None)

    def repeated(self) -> list[str]:
        names = [name for name, _ in self]
        return [name for name in dict.fromkeys(names) if names.count(name) > 1]


def _repeated_keys(line: bytes) -> list[str]:
    """Return the paths of keys that occur more than once in an object of the record's own, payloads left out."""
    # Numbers are not looked at: some do not fit.
    record = json.loads(line, object_pairs_hook=_Pairs, parse_int=len, parse_float=len)
    found: list[str] = record.repeated()
    trajectory = record.value(keys.TRAJECTORY)
    if not isinstance(trajectory, _Pairs):
        return found
    found += [f"{keys.TRAJECTORY}.{name}" for name in trajectory.repeated()]
    for name in _TRAJECTORY_LISTS:
        parts = trajectory.value(name)
        for at, part in enumerate(parts if isinstance(parts, list) else ()):
            if not isinstance(part, _Pairs):
                continue
            where = f"{keys.TRAJECTORY}.{name}[{at}]"
            found += [f"{where}.{key}" for key in part.repeated()]
            for inner in _CALL_PARTS:
                if isinstance(value := part.value(inner), _Pairs):
                    found += [f"{where}.{inner}.{key}" for key in value.repeated()]
    return found

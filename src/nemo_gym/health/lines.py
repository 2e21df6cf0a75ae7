"""One line of a rollouts file as the checks see it.

A line is decoded whole, once, by a decoder that refuses a key that stands twice in any object. What it refuses is read
again with care, so that the finding says what is wrong and where, and the rest of the record is still judged.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import jiter
import msgspec

from nemo_gym.health.gap_codes import codes_of
from nemo_gym.records import codec, evidence, keys
from nemo_gym.records.codec import JsonObject, JsonValue

Where: TypeAlias = "tuple[Where, str | int] | None"
"""Where a value stands: the path of what holds it, and the step from there, a key or a position."""

NAMED_REPEATS = 20
"""So many repeated keys of a record are named; the others are counted."""
LONGEST_PATH = 300
"""Characters of a path, or of a reason, that a finding shows."""

_INT64 = 1 << 63
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
"""One escape of a JSON text, a pair of surrogates as one; the group is a surrogate that stands alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a line, or a part of it, cannot be used; `error` is the class of what was raised."""

    reason: str
    error: str


_TOO_DEEP = Problem(reason="nested too deeply", error="RecursionError")


class RecordFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a readable line says: identity values of the allowed types, and the evidence.

    `problems` are parts that are there and unusable: the trajectory, an identity value, a repeated key. `gap_codes` are
    distinct, and legible also where the trajectory is not.
    """

    task_index: int | str | None
    rollout_index: int | str | None
    stage_index: int | str | None
    rollout_id: str | None
    run_id: str | None
    trajectory: evidence.TrajectoryRecord | None
    usage: JsonObject | None
    problems: tuple[Problem, ...]
    gap_codes: tuple[str, ...] = ()


def read_line(line: bytes) -> RecordFacts | Problem:
    """Return what a line says, or why it cannot be read. Never raises, for any bytes."""
    try:
        value = jiter.from_json(line, catch_duplicate_keys=True, cache_mode="keys", allow_inf_nan=False)
    except ValueError:
        return _on_a_fresh_stack(line)
    return _facts(value, [])


def _on_a_fresh_stack(data: bytes) -> RecordFacts | Problem:
    """Read a line with care; how deep it may be nested must not depend on how deep the caller stands."""
    results: list[RecordFacts | Problem] = []
    thread = threading.Thread(target=lambda: results.append(_read_with_care(data)), name="health-careful")
    thread.start()
    thread.join()
    return results[0]


def _read_with_care(data: bytes) -> RecordFacts | Problem:
    """Read a line that is no JSON, or says a key twice, or is nested deeply, or holds surrogates that stand alone."""
    try:
        text = data.decode().removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
        value = codec.decode(_ESCAPE.sub(_whole, text) if _SURROGATE.search(text) else text)
        problems = _repeated_keys(text)
    except UnicodeDecodeError as error:
        return Problem(reason=f"not UTF-8 at byte {error.start} of the line", error=type(error).__name__)
    except RecursionError:
        return _TOO_DEEP
    except ValueError as error:
        if isinstance(error.__context__, RecursionError):
            return _TOO_DEEP
        return Problem(reason=_clipped(f"not JSON: {error}"), error=type(error.__cause__ or error).__name__)
    return _facts(value, problems)


def _whole(escape: re.Match[str]) -> str:
    """Return an escape as it is, and `?` for a surrogate that stands alone: no encoder of texts would take it."""
    return "?" if escape[1] else escape[0]


def _facts(value: JsonValue, problems: list[Problem]) -> RecordFacts | Problem:
    if not isinstance(value, dict):
        return Problem(reason=f"not a JSON object but a `{type(value).__name__}`", error="TypeError")
    response = value.get(keys.RESPONSE)
    usage = response.get("usage") if isinstance(response, dict) else None
    task_index = _index(value, keys.TASK_INDEX, problems)
    rollout_index = _index(value, keys.ROLLOUT_INDEX, problems)
    stage_index = _index(value, keys.STAGE_INDEX, problems)
    rollout_id = _text(value, keys.ROLLOUT_ID, problems)
    run_id = _text(value, keys.RUN_ID, problems)
    trajectory = _trajectory(value.get(keys.TRAJECTORY), problems)
    return RecordFacts(
        task_index=task_index,
        rollout_index=rollout_index,
        stage_index=stage_index,
        rollout_id=rollout_id,
        run_id=run_id,
        trajectory=trajectory,
        usage=usage if isinstance(usage, dict) else None,
        problems=tuple(problems),
        gap_codes=codes_of(value, trajectory),
    )


def _index(record: JsonObject, key: str, problems: list[Problem]) -> int | str | None:
    value = record.get(key)
    if value is None or type(value) is str or (type(value) is int and -_INT64 <= value < _INT64):
        return value
    problems.append(Problem(reason=f"`{key}` is neither a whole number nor text", error="TypeError"))
    return None


def _text(record: JsonObject, key: str, problems: list[Problem]) -> str | None:
    value = record.get(key)
    if value is None or type(value) is str:
        return value
    problems.append(Problem(reason=f"`{key}` is not text", error="TypeError"))
    return None


def _trajectory(value: JsonValue, problems: list[Problem]) -> evidence.TrajectoryRecord | None:
    if value is None:
        return None
    try:
        return evidence.read(evidence.TrajectoryRecord, value)
    except evidence.ValidationError as error:
        reason = f"`{keys.TRAJECTORY}` is invalid: {error}"
        problems.append(Problem(reason=_clipped(reason), error=type(error).__name__))
        return None


class _Pairs(list[tuple[str, Any]]):
    """An object as its keys and values, none left out."""


def _repeated_keys(text: str) -> list[Problem]:
    """Return a problem per key that an object of `text` says more than once, in the order of the text."""
    found: list[Problem] = []
    others = 0
    # Numbers are not looked at: some do not fit.
    for path, value in _objects(json.loads(text, object_pairs_hook=_Pairs, parse_int=len, parse_float=len)):
        counts = Counter(name for name, _ in value)
        for name in counts if len(counts) < len(value) else ():
            if counts[name] == 1:
                continue
            if len(found) < NAMED_REPEATS:
                where = _rendered((path, name))
                times = "twice" if counts[name] == 2 else f"{counts[name]} times"
                found.append(Problem(reason=f"key `{where}` occurs {times}", error="ValueError"))
            else:
                others += 1
    if others:
        found.append(Problem(reason=f"{others} other keys occur more than once", error="ValueError"))
    return found


def _objects(root: Any) -> Iterator[tuple[Where, _Pairs]]:
    """Yield every object below and including `root` with its path, in document order.

    Memory grows with the depth alone: a line may hold very many values.
    """
    pending: list[Iterator[tuple[Where, Any]]] = [iter([(None, root)])]
    while pending:
        path, value = next(pending[-1], (None, None))
        if value is None:
            pending.pop()
            continue
        if isinstance(value, _Pairs):
            yield path, value
        pending.append(_containers(path, value))


def _containers(path: Where, value: Any) -> Iterator[tuple[Where, Any]]:
    """Yield the lists and objects that a list or an object holds."""
    if isinstance(value, _Pairs):
        yield from (((path, name), item) for name, item in value if isinstance(item, list))
    elif isinstance(value, list):
        yield from (((path, at), item) for at, item in enumerate(value) if isinstance(item, list))


def _rendered(path: Where) -> str:
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append(f"[{step}]" if isinstance(step, int) else f".{step}")
    return _clipped("".join(reversed(steps)).removeprefix("."))


def _clipped(text: str) -> str:
    if len(text) <= LONGEST_PATH:
        return text
    half = LONGEST_PATH // 2
    return f"{text[:half]} ... {text[-half:]}"

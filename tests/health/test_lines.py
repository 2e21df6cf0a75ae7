from __future__ import annotations

import copy
import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from health_records import call, record, trajectory, turn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.health import evaluate_line
from nemo_gym.health.lines import Problem, RecordFacts, read_line
from nemo_gym.records import evidence
from nemo_gym.records.conversation import ITEM_TYPES


def accepted(value: Any) -> bool:
    try:
        evidence.read(evidence.TrajectoryRecord, copy.deepcopy(value))
    except msgspec.ValidationError:
        return False
    return True


def read(value: Any) -> RecordFacts:
    facts = read_line(json.dumps(value).encode())
    assert isinstance(facts, RecordFacts)
    return facts


def agrees(value: Any) -> bool:
    """The health reader takes a trajectory exactly when the evidence records do."""
    facts = read(record(ng_trajectory=value))
    return (facts.trajectory is not None) == accepted(value) == (not facts.problems)


ODD = [None, True, 0, -1, 1.5, "", " ", "x", [], {}, [None], {"x": 1}, [[]], "completed", "1.0", 10**30]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in items for found in _paths(item, (*path, key)))]


BASE = trajectory()
PATHS = [path for path in _paths(BASE) if path]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.sampled_from(PATHS), st.sampled_from(ODD), st.sampled_from(["set", "drop", "add"])), max_size=2
    )
)
def test_the_reader_is_exactly_as_strict_as_the_evidence_records(changes: list[tuple[Any, Any, str]]) -> None:
    value = copy.deepcopy(BASE)
    for path, shared, action in changes:
        odd = copy.deepcopy(shared)
        target: Any = value
        try:
            for key in path[:-1]:
                target = target[key]
            if action == "set":
                target[path[-1]] = odd
            elif action == "drop":
                del target[path[-1]]
            elif isinstance(target[path[-1]], dict):
                target[path[-1]]["unknown"] = odd
        except (KeyError, IndexError, TypeError):
            continue
    assert agrees(value)


@pytest.mark.parametrize("kind", [*sorted(ITEM_TYPES), "no_such_item", None, 7])
@pytest.mark.parametrize(
    "dropped", [(), ("call_id",), ("name",), ("arguments",), ("role",), ("content",), ("call_id", "name")]
)
def test_conversation_items_are_judged_as_the_evidence_records_judge_them(kind: Any, dropped: tuple[str, ...]) -> None:
    item = {
        "type": kind,
        "call_id": "t",
        "name": "n",
        "arguments": "{}",
        "role": "user",
        "content": "hi",
        "output": "o",
    }
    for odd in (None, 3, "text"):
        value = trajectory()
        value["invocations"][0]["conversation"] = [{**item, **dict.fromkeys(dropped, odd)}]
        assert agrees(value)
        value["invocations"][0]["conversation"] = [{k: v for k, v in item.items() if k not in dropped}]
        assert agrees(value)


SEMANTIC = {
    "invocation ids are unique": {"invocations": trajectory()["invocations"] * 2},
    "call ids are unique": {"model_calls": [call(1), call(1)]},
    "turn numbers are unique": {"turns": [turn(1), turn(1)]},
    "a turn belongs to its trajectory": {"turns": [turn(1, task_id="other")]},
    "turn numbers start at one": {"turns": [turn(0)]},
    "only version 1.0": {"schema_version": "2.0"},
    "completed after started": {"model_calls": [call(1)], "tool_calls": [
        {"kind": "tool_call", "invocation_id": "root", "tool_call_id": "t", "started_at": 2.0, "completed_at": 1.0}]},
    "durations are not negative": {"model_calls": [call(1, duration_ms=-1.0)]},
    "a reference names something": {"turns": [turn(1, model_calls=[{}])]},
    "tokens are no booleans": {"model_calls": [call(1, tokens={"prompt_tokens": True})]},
    "tokens are no texts": {"model_calls": [call(1, tokens={"prompt_tokens": "3"})]},
    "no unknown field": {"surprise": 1},
}  # fmt: skip


@pytest.mark.parametrize("changes", SEMANTIC.values(), ids=SEMANTIC.keys())
def test_a_trajectory_that_breaks_a_rule_is_unreadable_and_unobserved(changes: dict[str, Any]) -> None:
    value = trajectory(**changes)
    assert not accepted(value)
    outcome = evaluate_line(json.dumps(record(ng_trajectory=value)).encode())
    assert [(finding.check, finding.detail["error"]) for finding in outcome.findings] == [
        ("record_unreadable", "ValidationError")
    ]
    assert outcome.findings[0].locator is None
    assert len(outcome.unobserved) == 8


def test_lone_surrogate_escapes_do_not_make_a_line_unreadable() -> None:
    value = record()
    value["ng_trajectory"]["tool_calls"][0]["tool_name"] = "bash \ud800"
    value["ng_trajectory"]["turns"][0]["answer"] = "\udfff"
    outcome = evaluate_line(json.dumps(value).encode())
    assert (outcome.readable, outcome.findings, outcome.unobserved) == (True, [], [])


DEEP = b"[" * 200_000 + b"]" * 200_000
HOSTILE = {
    "cut": json.dumps(record()).encode()[:-40],
    "not json": b"{nope}",
    "a number": b"17",
    "a list": b"[]",
    "null": b"null",
    "NaN": b'{"_ng_task_index": NaN}',
    "a NUL run": b"\0" * 4096,
    "NULs after the record": json.dumps(record()).encode() + b"\0" * 64,
    "two records on a line": json.dumps(record()).encode() * 2,
    "deep": b'{"x": ' + DEEP + b"}",
    "deep and open": b'{"x": ' + b"[" * 500_000,
    "deep in the trajectory": b'{"ng_trajectory": {"turns": ' + DEEP + b"}}",
    "deep objects": b'{"x": ' + b'{"x":' * 100_000 + b"1" + b"}" * 100_001,
    "not UTF-8": b'{"note": "\xff\xfe"}',
    "an overlong UTF-8 form": b'{"note": "\xc0\xaf"}',
    "a UTF-8 surrogate": b'{"note": "\xed\xa0\x80"}',
    "a cut UTF-8 sequence over a piece": b'{"note": "' + b"a" * (16384 - 11) + b'\xe2\x82"}',
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_line_that_is_no_record_is_one_finding(line: bytes) -> None:
    outcome = evaluate_line(line)
    assert [finding.check for finding in outcome.findings] == ["record_unreadable"]
    assert not outcome.readable
    assert outcome.unobserved[:2] == ["check_execution_error", "rollout_duplicate_identity"]
    assert len(outcome.unobserved) == 10
    assert evaluate_line(line, ("record_unreadable",)).findings == []


@pytest.mark.parametrize("key", ["_ng_task_index", "_ng_rollout_index", "stage_index"])
@pytest.mark.parametrize("odd", [1.5, True, [], {}, 2**70])
def test_identity_of_a_wrong_type_is_a_finding_and_counts_as_absent(key: str, odd: Any) -> None:
    outcome = evaluate_line(json.dumps(record(**{key: odd})).encode())
    assert [finding.check for finding in outcome.findings] == ["record_unreadable"]
    assert key in outcome.findings[0].detail["reason"]
    assert outcome.unobserved == []


@pytest.mark.parametrize(
    "key", ["_ng_task_index", "_ng_rollout_id", "_ng_run_id", "response", "ng_trajectory", "reward"]
)
def test_a_key_that_stands_twice_in_a_record_is_a_finding(key: str) -> None:
    value = record(_ng_rollout_id="x", _ng_run_id="y")
    twice = json.dumps({key: value[key]})[:-1] + ", " + json.dumps(value)[1:]
    outcome = evaluate_line(twice.encode())
    assert [finding.check for finding in outcome.findings] == ["record_unreadable"]
    assert f"`{key}` occurs twice" in outcome.findings[0].detail["reason"]
    assert (outcome.readable, outcome.unobserved) == (True, [])


@pytest.mark.parametrize("key", ["invocations", "turns", "model_calls", "tool_calls"])
def test_a_list_that_stands_twice_in_a_trajectory_is_a_finding(key: str) -> None:
    """Which of the two lists counts is not for a reader to choose."""
    value = record()
    inner = json.dumps(value.pop("ng_trajectory"))
    twice = f"{{{json.dumps(key)}: {json.dumps(json.loads(inner)[key])}, {inner[1:]}"
    line = f'{json.dumps(value)[:-1]}, "ng_trajectory": {twice}}}'
    outcome = evaluate_line(line.encode())
    assert [finding.check for finding in outcome.findings] == ["record_unreadable"]
    assert f"`ng_trajectory.{key}` occurs twice" in outcome.findings[0].detail["reason"]


def test_every_key_that_stands_twice_is_named_once_one_is_found() -> None:
    text = json.dumps(record())
    text = text.replace('"reward": 1.0', '"reward": 1.0, "reward": 0.0')
    text = text.replace('"status_code": 200', '"status_code": 200, "status_code": 500', 1)
    reasons = [finding.detail["reason"] for finding in evaluate_line(text.encode()).findings]
    assert reasons == [
        "key `reward` occurs twice",
        "key `ng_trajectory.model_calls[0].response_metadata.status_code` occurs twice",
    ]


def test_a_key_of_a_record_may_stand_again_inside_a_payload() -> None:
    value = record()
    value["ng_trajectory"]["model_calls"][0]["request"] = {"ng_trajectory": {}, "_ng_task_index": 1, "response": {}}
    value["extra"] = {"ng_trajectory": {"turns": 3}}
    assert evaluate_line(json.dumps(value).encode()).findings == []


def test_a_record_of_ten_megabytes_is_read() -> None:
    value = record()
    value["ng_trajectory"]["model_calls"][0]["request"] = {"input": "é" * 5_000_000}
    line = json.dumps(value, ensure_ascii=False).encode()
    assert len(line) > 10_000_000
    assert evaluate_line(line).findings == []


def test_numbers_beyond_any_limit_stay_findings_or_nothing() -> None:
    digits = b"9" * 5000
    line = (
        b'{"_ng_task_index": '
        + digits
        + b', "reward": 1e999, "response": {"usage": {"input_tokens": '
        + digits
        + b"}}}"
    )
    outcome = evaluate_line(line)
    assert outcome.findings[0].check == "record_unreadable"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_no_bytes_stop_the_evaluation(data: bytes) -> None:
    assert evaluate_line(data).findings or isinstance(read_line(data), (RecordFacts, Problem))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from(
            ["_ng_task_index", "_ng_rollout_index", "_ng_rollout_id", "stage_index", "response", "ng_trajectory"]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                st.sampled_from(["turns", "model_calls", "usage", "gaps", "input_tokens", "x"]), inner, max_size=3),
            max_leaves=8,
        ),
    )
)  # fmt: skip
def test_no_json_object_stops_the_evaluation(value: dict[str, Any]) -> None:
    outcome = evaluate_line(json.dumps(value).encode())
    assert outcome.readable


@pytest.mark.parametrize("many", ["[" + "1," * 200_000 + "1]", '{"b": [' + "1," * 200_000 + "1]}"])
def test_looking_for_repeated_keys_takes_no_memory_per_value(many: str) -> None:
    line = b'{"many": ' + many.encode() + b', "a": 1, "a": 2}'
    tracemalloc.start()
    try:
        facts = read_line(line)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(facts, RecordFacts)
    assert [problem.reason for problem in facts.problems] == ["key `a` occurs twice"]
    assert peak < 60 * 200_000  # the values themselves, decoded twice

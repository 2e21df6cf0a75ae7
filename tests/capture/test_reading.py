from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from nemo_gym.capture import (
    CaptureStore,
    aggregate_model_call_metrics,
    aggregate_model_call_records,
    build_model_call_record,
    read_available_model_call_records,
    read_model_call_records,
    sum_model_calls,
)
from nemo_gym.errors import DataError
from nemo_gym.records.codec import decoded

EXCHANGE: dict[str, Any] = {
    "model_call_id": "c1",
    "dialect": "responses",
    "model_ref": {"type": "responses_api_models", "name": "policy"},
    "started_at": 10,
    "completed_at": 10.5,
    "latency_ms": 500.0,
    "latency_ttft_ms": 100,
    "status_code": 200,
    "error_category": None,
    "request": {"model": "asked", "input": "hi"},
    "response": {
        "id": "r1",
        "model": "answered",
        "status": "completed",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "t1", "name": "bash", "arguments": '{"cmd": "ls"}'},
        ],
        "usage": {"input_tokens": 12, "output_tokens": 8, "input_tokens_details": {"cached_tokens": 4}},
    },
    "client_session_id": "s",
    "upstream_attempted": True,
    "response_source": "upstream",
    "upstream_status_code": None,
    "local_response_reason": None,
}


def test_a_record_has_every_field_of_c13() -> None:
    record = build_model_call_record(EXCHANGE, call_index=3)
    assert (record.model_call_id, record.response_id, record.call_index) == ("c1", "r1", 3)
    assert record.model_ref is not None
    assert (record.model_ref.type, record.model_ref.name) == ("responses_api_models", "policy")
    assert (record.model, record.dialect, record.response_status) == ("answered", "responses", "completed")
    assert (record.started_at, record.completed_at, record.latency_total_ms) == (10.0, 10.5, 500.0)
    assert (record.tokens_in, record.tokens_out, record.tokens_total) == (12, 8, 20)
    assert (record.cached_tokens, record.cache_hit, record.tokens_reasoning) == (4, True, None)
    assert [call["name"] for call in record.tool_calls] == ["bash"]
    assert record.tool_calls[0]["arguments"] == {"cmd": "ls"}
    assert record.reasoning_content == "hm"
    assert (record.upstream_attempted, record.response_source) == (True, "upstream")
    assert record.request == EXCHANGE["request"]
    assert record.problems is None


def test_a_dump_is_a_plain_dict_with_or_without_payloads() -> None:
    record = build_model_call_record(EXCHANGE, call_index=0)
    dump = record.model_dump()
    assert dump["model_ref"] == EXCHANGE["model_ref"]
    assert dump["request"] is record.request
    assert json.loads(json.dumps(dump)) == dump
    bare = record.model_dump(include_payloads=False)
    assert not {"request", "response", "request_raw", "response_raw"} & set(bare)
    assert "tokens_reasoning" not in record.model_dump(exclude_none=True)
    assert "model" not in record.model_dump(exclude={"model"})


WRONG = [None, 0, -1, 1.5, True, "text", [], [1], {}, {"a": 1}, [{"type": 1}], 10**400, float("nan"), float("inf")]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_no_shape_of_a_line_raises(wrong: Any) -> None:
    for key in EXCHANGE:
        build_model_call_record({**EXCHANGE, key: wrong}, call_index=0)
        build_model_call_record({**EXCHANGE, "response": {key: wrong, "usage": {"input_tokens": wrong}}}, call_index=0)
    for dialect in ("responses", "chat", "messages"):
        for response in (
            {"output": wrong, "choices": wrong, "content": wrong, "usage": wrong, "id": wrong, "status": wrong},
            {"output": [wrong], "choices": [wrong], "content": [wrong], "incomplete_details": wrong},
            {"choices": [{"message": wrong}], "output": [{"type": "reasoning", "summary": wrong}]},
            {"choices": [{"message": {"tool_calls": wrong, "reasoning_content": wrong}}]},
            {"choices": [{"message": {"tool_calls": [{"function": wrong}]}}]},
        ):
            build_model_call_record({"dialect": dialect, "response": response}, call_index=0)


def test_what_cannot_be_read_is_named() -> None:
    wrong = {**EXCHANGE, "status_code": "200", "model_ref": {"type": "other", "name": "x"}, "dialect": "new"}
    record = build_model_call_record(wrong, call_index=0)
    assert record.status_code is None
    assert record.model_ref is None
    assert record.problems == ["dialect", "model_ref", "status_code"]
    assert record.tokens_in == 12


def test_an_empty_object_is_a_record_of_unknowns() -> None:
    dump = build_model_call_record({}, call_index=0).model_dump(exclude_none=True)
    assert dump == {"call_index": 0, "tool_calls": []}


def test_the_documents_snippet_runs_as_printed_c12(tmp_path: Any) -> None:
    from nemo_gym.base_responses_api_model import (
        CaptureStore,
        aggregate_model_call_metrics,
        read_model_call_records,
    )

    rollout_id = "0-0"
    store = CaptureStore(str(tmp_path))
    store.record(rollout_id, EXCHANGE)
    calls = read_model_call_records(store, rollout_id)
    totals = aggregate_model_call_metrics(store, rollout_id)
    assert [call.model_call_id for call in calls] == ["c1"]
    assert totals["num_calls"] == 1
    assert totals["tokens_in"] == 12


def test_sums_are_of_known_values_and_say_what_they_cover(store: CaptureStore) -> None:
    store.record("0-0", EXCHANGE)
    store.record("0-0", {"model_call_id": "c2", "error_category": "rate_limit", "latency_ms": 7})
    totals = aggregate_model_call_metrics(store, "0-0")
    assert (totals["num_calls"], totals["tokens_in"], totals["latency_total_ms"]) == (2, 12, 507.0)
    assert totals["tokens_reasoning"] is None
    assert totals["num_errors"] == 1
    assert totals["errors_by_category"] == {"rate_limit": 1}
    assert totals["observed"]["tokens_in"] == 1
    assert totals["observed"]["latency_total_ms"] == 2


def test_without_calls_every_sum_is_unknown(store: CaptureStore) -> None:
    totals = aggregate_model_call_metrics(store, "missing")
    assert totals["num_calls"] == 0
    assert {name for name, value in totals.items() if value is not None} == {"num_calls"}
    assert sum_model_calls([]) == {
        "tokens_in": None,
        "tokens_out": None,
        "tokens_reasoning": None,
        "tokens_total": None,
        "cached_tokens": None,
        "latency_total_ms": None,
        "num_calls": 0,
    }
    assert aggregate_model_call_records(iter([]))["num_calls"] == 0


def test_strict_reading_raises_and_tolerant_reading_counts(store: CaptureStore) -> None:
    store.path_for("0-0").write_bytes(json.dumps(EXCHANGE).encode() + b"\nbroken\n" + json.dumps(EXCHANGE).encode())
    with pytest.raises(DataError):
        read_model_call_records(store, "0-0")
    with pytest.raises(DataError):
        aggregate_model_call_metrics(store, "0-0")
    records, invalid = read_available_model_call_records(store, "0-0")
    assert [record.call_index for record in records] == [0, 2]
    assert invalid == 1


def test_counts_that_only_fill_the_shape_of_an_answer_are_unknown(store: CaptureStore) -> None:
    zeros = {"usage": {"input_tokens": 0, "output_tokens": 0}}
    exchange = {**EXCHANGE, "dialect": "messages", "response": zeros, "usage": None}
    store.record("0-0", exchange)
    store.record("0-0", {**exchange, "status_code": "not a number"})
    read = [
        *read_model_call_records(store, "0-0"),
        *read_available_model_call_records(store, "0-0")[0],
        build_model_call_record(exchange, call_index=0),
    ]
    assert [(call.tokens_in, call.tokens_out, call.tokens_total) for call in read] == [(None, None, None)] * 5
    assert all(call.response == zeros for call in read)


def test_usage_that_only_the_server_knew_counts() -> None:
    exchange = {**EXCHANGE, "response": {"id": "r1"}, "usage": {"input_tokens": 5, "output_tokens": 6}}
    record = build_model_call_record(exchange, call_index=0)
    assert (record.tokens_in, record.tokens_out) == (5, 6)


_CHAT: dict[str, Any] = {
    "id": "r2",
    "model": "answered",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "content": "<think>hm</think>",
                "reasoning_details": [{"text": "a"}, {"summary": "b"}],
                "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "bash", "arguments": "{}"}},
                    {"id": "t2", "type": "custom", "custom": {"name": "edit", "input": "x"}},
                ],
            },
        },
        {"index": 1, "finish_reason": "stop", "message": {"content": [{"type": "thinking", "thinking": "c"}]}},
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 1}},
}
_MESSAGES: dict[str, Any] = {
    "id": "r3",
    "type": "message",
    "model": "answered",
    "stop_reason": "tool_use",
    "content": [
        {"type": "thinking", "thinking": "hm"},
        {"type": "tool_use", "id": "t1", "name": "bash", "input": {"cmd": "ls"}},
        {"type": "server_tool_use", "id": "t2", "name": "search", "input": {}, "server_name": "s"},
    ],
    "usage": {"input_tokens": 5, "output_tokens": 7, "cache_read_input_tokens": 3, "cache_creation": {}},
}
_ANSWERS = (("responses", EXCHANGE["response"]), ("chat", _CHAT), ("messages", _MESSAGES))
_WRONG: list[Any] = [
    None,
    True,
    0,
    -1,
    200.0,
    1.5,
    10**30,
    "",
    "text",
    [],
    [1],
    {},
    {"type": "call"},
    "call",
    float("nan"),
]


def _objects_in(value: Any) -> list[dict[str, Any]]:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [found for one in inner for found in ([one] if isinstance(one, dict) else []) + _objects_in(one)]


def _spoilt(rng: random.Random) -> bytes:
    """Return a line in which a value is of another kind, a key is new, or some bytes are damaged."""
    dialect, answer = rng.choice(_ANSWERS)
    line = {**EXCHANGE, "notes": {"né": ["\u2028", 1e5, {"deep": "\\"}]}, "dialect": dialect, "response": answer}
    line = copy.deepcopy(line)
    for _ in range(rng.choice([0, 1, 1, 2])):
        place = rng.choice([line, *_objects_in(line)])
        key = rng.choice([*place, "type", "usage", "choices", "content", "stream_error", "terminal"])
        place[key] = copy.deepcopy(rng.choice(_WRONG))
    data = bytearray(json.dumps(line, ensure_ascii=rng.random() < 0.5).encode())
    for _ in range(rng.choice([0, 0, 1, 2])):
        data[rng.randrange(len(data))] = rng.choice(b'"\\{}[],:0e+-.\x00\x1f \xff\xc3\xed\xa0u')
    return bytes(data).replace(b"\n", b" ")


def test_reading_a_file_finds_what_reading_its_lines_one_by_one_finds(store: CaptureStore) -> None:
    rng = random.Random(20)
    for number in range(60):
        lines = [_spoilt(rng) for _ in range(50)]
        store.path_for(str(number)).write_bytes(b"\n".join(lines))
        objects, damaged = store.read_available(str(number))
        records, invalid = read_available_model_call_records(store, str(number))
        assert invalid == damaged
        assert repr(records) == repr([build_model_call_record(line, call_index=index) for index, line in objects])
        encoded, invalid = read_available_model_call_records(store, str(number), encoded_bodies=True)
        assert invalid == damaged
        for record in encoded:
            record.request, record.response = decoded(record.request), decoded(record.response)
        # As text: of the same kinds, and in the same order.
        assert repr([call.model_dump() for call in encoded]) == repr([call.model_dump() for call in records])

"""Whatever a stream holds, nothing is raised, the problem is named, and the result can be written (rules 7, 10, 11)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym import dialects
from nemo_gym.dialects import (
    STREAM_PROBLEMS,
    finish_of,
    make_accumulator,
    reasoning_of,
    token_counts,
    tool_calls_of,
    usage_details,
    usage_of,
)
from nemo_gym.records import codec

from .conftest import Feed

STREAMS = json.loads((Path(__file__).parents[1] / "cases" / "streams.json").read_text())
EVENTS: dict[str, list[dict[str, Any]]] = {"chat": [], "messages": [], "responses": []}
for case in STREAMS:
    for line in case["raw"].splitlines():
        if line.startswith("data: {") and line.endswith("}"):
            EVENTS[case["dialect"]].append(json.loads(line[6:]))

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.just(10**30),
    st.text(st.characters(exclude_categories=()), max_size=3),
    st.just([]),
    st.just({}),
    st.just([None, 1, "x", {}, {"type": "text", "text": 5}]),
    st.just({"type": ["x"], "index": {}, "id": 4, "text": [], "function": "f"}),
)


def mutate(value: Any, data: st.DataObject) -> Any:
    """Replace one place of a parsed event by something odd."""
    if isinstance(value, dict) and value and data.draw(st.integers(0, 5)):
        key = data.draw(st.sampled_from(sorted(value)))
        return {**value, key: mutate(value[key], data)}
    if isinstance(value, list) and value and data.draw(st.integers(0, 5)):
        return [mutate(value[0], data), *value[1:]]
    return data.draw(ODD)


@pytest.mark.parametrize("dialect", EVENTS)
@given(data=st.data())
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
def test_odd_shapes_anywhere(dialect: str, data: st.DataObject) -> None:
    accumulator = make_accumulator(dialect)  # type: ignore[arg-type]
    for event in data.draw(st.lists(st.sampled_from(EVENTS[dialect]), max_size=8)):
        odd = mutate(event, data) if data.draw(st.booleans()) else event
        accumulator.feed(b"data: " + json.dumps(odd).encode() + b"\n\n")
        if data.draw(st.integers(0, 9)) == 0:
            codec.encode(accumulator.response)
    accumulator.finish()
    response = accumulator.response
    codec.encode(response).decode()
    assert set(accumulator.problems) <= set(STREAM_PROBLEMS)
    tool_calls_of(response, accumulator.dialect)
    reasoning_of(response, accumulator.dialect)
    finish_of(response, accumulator.dialect)
    token_counts(usage_of(response), accumulator.dialect)
    usage_details(usage_of(response), accumulator.dialect)


@given(st.binary(max_size=200), st.sampled_from(sorted(EVENTS)))
@settings(max_examples=100, deadline=None)
def test_any_bytes(body: bytes, dialect: Any) -> None:
    accumulator = make_accumulator(dialect)
    accumulator.feed(body)
    accumulator.finish()
    assert accumulator.terminal is None or accumulator.terminal_seen


CONTENT = b'{"choices":[{"index":0,"delta":{"content":"%s"}}]}'


@pytest.mark.parametrize(
    ("data", "text", "problem"),
    [
        (CONTENT % b"caf\xff", "caf\ufffd", "invalid_utf8"),
        (CONTENT % b"\\ud83d", "\ufffd", "lone_surrogate"),
        (CONTENT % b"a\tb", "a\tb", "control_character"),
        (CONTENT[:-1] % b"x" + b',"x":NaN}', "x", "non_finite_number"),
        (CONTENT[:-1] % b"x", None, "event_not_json"),
        (b"[1]", None, "event_not_object"),
        (b"null", None, "event_not_object"),
        (b"[" * 100_000, None, "event_not_json"),
        (b'{"choices":5}', None, "choices_not_list"),
    ],
)
def test_what_strict_readers_refuse_is_read_or_named(feed: Feed, data: bytes, text: str | None, problem: str) -> None:
    result = feed("chat", b"data: " + data + b"\n\n", "[DONE]")
    assert result.problems == [problem]
    found = None if result.response is None else result.response["choices"][0]["message"]["content"]
    assert found == text


def test_an_event_cut_by_the_end_of_the_body_is_named(feed: Feed) -> None:
    result = feed("chat", b'data: {"choices":[{"index":0,"delta":{"con')
    assert (result.problems, result.error_category) == (["event_cut"], "stream_truncated")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("dialect", "start", "ending"),
    [
        ("messages", {"type": "message_start", "message": {"id": "m"}}, {"type": "message_stop"}),
        ("responses", {"type": "response.created", "response": {"id": "r"}}, {"type": "response.completed"}),
        ("responses", {"type": "response.created", "response": {"id": "r"}}, {"type": "response.incomplete"}),
        ("responses", {"type": "response.created", "response": {"id": "r"}}, {"type": "response.failed"}),
    ],
)
def test_half_an_ending_is_no_ending(dialect: Any, start: Any, ending: Any, end: str) -> None:
    """C16: cut at every byte of its ending, a stream is truncated until the data of the ending is whole."""
    before = f"data: {json.dumps(start)}{end}{end}".encode()
    block = f"event: {ending['type']}{end}data: {json.dumps(ending)}".encode()
    for at in range(len(block) + 1):
        accumulator = make_accumulator(dialect)
        accumulator.feed(before + block[:at])
        accumulator.finish()
        whole = at == len(block)
        assert accumulator.terminal_seen is whole, block[:at]
        assert (accumulator.error_category == "stream_truncated") is not whole, block[:at]
        assert accumulator.response is not None


def test_a_bad_event_does_not_lose_its_neighbours(feed: Feed) -> None:
    good = {"choices": [{"index": 0, "delta": {"content": "x"}}]}
    result = feed("chat", good, "{nonsense", {"choices": [{"index": None, "delta": 5}]}, good, "[DONE]")
    assert result.response is not None
    assert result.response["choices"][0]["message"]["content"] == "xx"


def test_halves_of_a_pair_meet_across_deltas_in_every_dialect(feed: Feed) -> None:
    high, low = b"\\ud83d", b"\\ude00"
    chat = feed("chat", *(b"data: " + CONTENT % half + b"\n\n" for half in (high, low)))
    block = b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%s"}}\n\n'
    messages = feed("messages", block % high, block % low)
    delta = b'data: {"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"%s"}\n\n'
    responses = feed("responses", delta % high, delta % low)
    assert chat.response is not None
    assert messages.response is not None
    assert responses.response is not None
    assert chat.response["choices"][0]["message"]["content"] == "😀"
    assert messages.response["content"][0]["text"] == "😀"
    assert responses.response["output"][0]["content"][0]["text"] == "😀"


@pytest.mark.parametrize("number", [2**64, -(2**64), 10**30, 12345678901234567890123])
@pytest.mark.parametrize(
    ("dialect", "event"),
    [
        ("chat", '{"choices":[{"index":0,"delta":{"content":"x","seen":%d}}]}'),
        ("messages", '{"type":"message_start","message":{"id":"m","seen":%d}}'),
        ("responses", '{"type":"response.completed","response":{"id":"r","seen":%d}}'),
        ("messages", '{"type":"content_block_delta","index":0,"delta":{"type":"x_delta","seen":%d}}'),
    ],
)
def test_integers_of_any_size_stay_exact(feed: Feed, dialect: str, event: str, number: int) -> None:
    result = feed(dialect, event % number)
    assert f'"seen":{number}' in codec.encode(result.response).decode()


@pytest.mark.parametrize("text", ['{"id": 12345678901234567890123}', '{"id": 18446744073709551616}'])
def test_large_ids_in_arguments_stay_exact(feed: Feed, text: str) -> None:
    expected = json.loads(text)
    call = {"index": 0, "id": "t", "function": {"name": "f", "arguments": text}}
    chat = feed("chat", {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": text}}
    messages = feed("messages", delta)
    assert messages.response is not None
    assert messages.response["content"][0]["input"] == expected
    assert tool_calls_of(chat.response, "chat")[0]["arguments"] == expected
    assert tool_calls_of(messages.response, "messages")[0]["arguments"] == expected


def test_an_exception_inside_one_event_skips_that_event_only() -> None:
    from nemo_gym.dialects.chat import ChatAccumulator

    class Failing(ChatAccumulator):
        def _on_event(self, kind: str | None, event: dict[str, Any]) -> None:
            if "bad" in event:
                raise KeyError("bad")
            super()._on_event(kind, event)

    accumulator = Failing()
    accumulator.feed(b"data: " + CONTENT % b"x" + b'\n\ndata: {"bad": 1}\n\ndata: ' + CONTENT % b"y" + b"\n\n")
    accumulator.finish()
    assert accumulator.problem_counts == {"event_failed": 1}
    assert accumulator.response is not None
    assert accumulator.response["choices"][0]["message"]["content"] == "xy"


def test_finish_is_idempotent_and_nothing_is_taken_after_it() -> None:
    accumulator = make_accumulator("chat")
    accumulator.feed(b"data: " + CONTENT % b"x" + b"\n\n")
    accumulator.finish()
    accumulator.feed(b"data: " + CONTENT % b"y" + b"\n\n")
    accumulator.finish()
    assert accumulator.response is not None
    assert accumulator.response["choices"][0]["message"]["content"] == "x"


def test_every_problem_that_can_be_noted_is_explained_and_none_is_explained_in_vain() -> None:
    source = "".join(
        path.read_text() for path in Path(dialects.__file__).parent.glob("*.py") if path.stem != "problems"
    )
    noted = {
        name
        for pattern in (
            r'_note\("(\w+)"\)',
            r'problems\.append\("(\w+)"\)',
            r'"(event_cut)" if',
            r'else "(event_not_json)"',
        )
        for name in re.findall(pattern, source)
    }
    named = set(re.findall(r'^(?:INDEX_REUSED|UNSUPPORTED|BROKEN) = "(\w+)"', source, re.MULTILINE))
    assert noted | named == set(STREAM_PROBLEMS)

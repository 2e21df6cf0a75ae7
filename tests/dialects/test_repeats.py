"""Deltas that repeat the one before are taken on a short way: nothing about the result may tell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.dialects import StreamAccumulator, accumulate, make_accumulator
from nemo_gym.dialects.repeats import Repeat

# Events with a place for raw bytes inside a JSON string: what servers repeat, and what only looks like it.
FORMS: dict[str, list[bytes]] = {
    "chat": [
        b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\r\n\r\n',
        (
            b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]'
            b',"usage":null}\n\n'
        ),
        b'data: {"id":"c","choices":[{"index":1,"delta":{"role":"assistant","content":"%b"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":null,"reasoning_content":"%b"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"refusal":"%b"}},{"index":1,"delta":{"content":"%b"}}]}\n\n',
        (
            b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"t","function":{"name":"f"'
            b',"arguments":"%b"}}]}}]}\n\n'
        ),
        b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"logprobs":{"content":[{"token":"%b"}]}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":[{"type":"text","text":"%b"}]}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"%b"}]}\n\n',
        b'data: {"error":{"message":"%b"},"choices":[{"index":0,"delta":{"content":"y"}}]}\n\n',
        b'data: {"choices":[{"index":0,"message":{"role":"assistant","content":"%b"}}]}\n\n',
        b'data: {"x":NaN,"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n',
        b": %b\n\n",
        b'event: %b\ndata: {"choices":[{"index":0,"delta":{"content":"z"}}]}\n\n',
        b"data: [DONE]\n\n",
    ],
    "messages": [
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"%b","type":"message","content":[]}}\n\n',
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"%b"}}\n\n',
        (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0'
            b',"delta":{"type":"text_delta","text":"%b"}}\n\n'
        ),
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%b"}}\n\n',
        b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"%b"}}\n\n',
        b'data: {"type":"content_block_delta","index":1,"delta":{"type":"thinking_delta","thinking":"%b"}}\n\n',
        b'data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"%b"}}\n\n',
        b'data: {"type":"content_block_stop","index":2}\n\n',
        b'data: {"type":"message_delta","delta":{"stop_reason":"%b"},"usage":{"output_tokens":3}}\n\n',
        b'event: error\ndata: {"type":"error","error":{"type":"%b"}}\n\n',
        b'data: {"type":"ping"}\n\n',
        b'data: {"type":"message_stop"}\n\n',
    ],
    "responses": [
        b'data: {"type":"response.created","response":{"id":"%b","object":"response","output":[]}}\n\n',
        b'data: {"type":"response.output_text.delta","delta":"%b"}\n\n',
        (
            b'data: {"type":"response.output_text.delta","item_id":"i","output_index":0,"content_index":0'
            b',"delta":"%b","logprobs":[]}\n\n'
        ),
        b'data: {"type":"response.output_text.delta","output_index":0,"delta":"%b","logprobs":[{"token":"%b"}]}\n\n',
        b'data: {"type":"response.output_text.delta","sequence_number":4,"output_index":0,"delta":"%b"}\n\n',
        b'data: {"type":"response.output_text.delta","sequence_number":9,"output_index":0,"delta":"%b"}\n\n',
        b'data: {"type":"response.reasoning_text.delta","output_index":1,"content_index":3,"delta":"%b"}\n\n',
        b'data: {"type":"response.function_call_arguments.delta","output_index":2,"delta":"%b"}\n\n',
        b'data: {"type":"response.output_text.done","output_index":0,"text":"%b"}\n\n',
        b'data: {"type":"response.output_item.added","output_index":0,"item":{"type":"message","id":"%b"}}\n\n',
        b'data: {"type":"response.completed","response":{"id":"r","status":"completed","output":[]}}\n\n',
    ],
}
TEXTS = [
    b"hello",
    b"",
    b" ",
    b"index",
    b"\xc3\xa9\xe4\xbd\xa0",
    b"\\n",
    b'\\"',
    b"\\u00e9",
    b"\\ud83d",
    b"\\ude00",
    b"\xed\xa0\xbd",
    b"\xff",
    b"\x01",
    b"\t",
    b"a\nb",
    b"a\rb",
    b"\xe2\x80\xa8",
    b'x"y',
    b'"',
    b"\\",
    b'x"}}],"model":"other","y":[{"z":{"w":"v',
    b'x","role":"user","content":"w',
    b'x","type":"error","a":"b',
    b'x"}\n\ndata: [DONE]\n\ndata: {"a":"b',
    b"[DONE]",
    b"error",
    b"message_stop",
    b"L" * 4095,
    b"L" * 5000,
]
texts = st.sampled_from(TEXTS) | st.text(max_size=6).map(lambda text: json.dumps(text)[1:-1].encode())


@st.composite
def streams(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """Chunks of one event each, most of them runs of one form, as a server sends them."""
    dialect = draw(st.sampled_from(sorted(FORMS)))
    chunks: list[bytes] = []
    for _ in range(draw(st.integers(1, 8))):
        form = draw(st.sampled_from(FORMS[dialect]))
        for _ in range(draw(st.integers(1, 5))):
            chunks.append(form.replace(b"%b", draw(texts)))
    return dialect, chunks


def seen(accumulator: StreamAccumulator) -> dict[str, Any]:
    """Everything that an accumulator says, but for the response, which costs something to read."""
    return {
        "terminal": accumulator.terminal,
        "category": accumulator.terminal_category,
        "error": accumulator.stream_error,
        "terminal_seen": accumulator.terminal_seen,
        "first_event": accumulator.first_event_seen,
        "first_content": accumulator.first_content_seen,
        "unknown": accumulator.unknown_events,
        "offset": accumulator.terminal_offset,
        "problems": accumulator.problem_counts,
    }


def steps(dialect: str, chunks: list[bytes], read_at: int) -> Iterator[tuple[dict[str, Any], Any]]:
    """What is seen after each chunk; the response is read once on the way, and at the end."""
    accumulator = make_accumulator(dialect)  # type: ignore[arg-type]
    for number, chunk in enumerate(chunks):
        accumulator.feed(chunk)
        yield seen(accumulator), json.dumps(accumulator.response) if number == read_at else None
    accumulator.finish()
    yield seen(accumulator), json.dumps(accumulator.response)


@settings(max_examples=300, deadline=None)
@given(streams(), st.integers(0, 40))
def test_the_short_way_shows_in_nothing(stream: tuple[str, list[bytes]], read_at: int) -> None:
    dialect, chunks = stream
    short = list(steps(dialect, chunks, read_at))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accumulate, "_TRIES", 0)
        general = list(steps(dialect, chunks, read_at))
    assert short == general


@settings(max_examples=150, deadline=None)
@given(streams(), st.data())
def test_the_same_bytes_cut_elsewhere_give_the_same(stream: tuple[str, list[bytes]], data: st.DataObject) -> None:
    dialect, chunks = stream
    body = b"".join(chunks)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    whole, cut = list(steps(dialect, chunks, -1))[-1], list(steps(dialect, pieces, -1))[-1]
    whole[0].pop("offset"), cut[0].pop("offset")
    assert whole == cut


@pytest.mark.parametrize(
    ("dialect", "form"),
    [
        ("chat", FORMS["chat"][0]),
        ("chat", FORMS["chat"][1]),
        ("chat", FORMS["chat"][2]),
        ("chat", FORMS["chat"][4]),
        ("messages", FORMS["messages"][2]),
        ("messages", FORMS["messages"][6]),
        ("responses", FORMS["responses"][1]),
        ("responses", FORMS["responses"][2]),
    ],
)
def test_the_usual_streams_do_take_the_short_way(dialect: str, form: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would compare the general way with itself."""
    taken: list[bool] = []
    take = Repeat.take
    monkeypatch.setattr(Repeat, "take", lambda self, chunk: taken.append(take(self, chunk)) or taken[-1])
    accumulator = make_accumulator(dialect)  # type: ignore[arg-type]
    for number in range(40):
        accumulator.feed(form.replace(b"%b", b"word\\n" if number % 9 == 8 else b"piece%d " % number))
    assert taken.count(True) >= 34


def test_a_stream_that_never_repeats_is_soon_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bytes] = []
    of = Repeat.of.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        Repeat, "of", classmethod(lambda cls, chunk, *rest: looked.append(chunk) or of(cls, chunk, *rest))
    )
    accumulator = make_accumulator("chat")
    for number in range(100):
        accumulator.feed(b'data: {"n":%d,"choices":[{"index":0,"delta":{"content":"a%d"}}]}\n\n' % (number, number))
    assert len(looked) < 10


@pytest.mark.parametrize("place", [b'{"a":"x","b":"x"}', b'{"a":"\\u0078","b":"x"}', b'{"a":1}'])
def test_a_text_whose_place_is_in_doubt_is_not_repeated(place: bytes) -> None:
    assert Repeat.of(b"data: " + place + b"\n\n", "x", []) is None

"""Framing on bytes: the eight framing rules of section 3.1, and that the work is linear in the stream."""

from __future__ import annotations

import itertools
import sys
from types import FrameType
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nemo_gym.dialects import make_accumulator
from nemo_gym.dialects.sse import PendingBytes, SseEvent, SseParser

Seen = list[tuple[bytes | None, bytes, bytes | None]]


def events_of(chunks: list[bytes]) -> Seen:
    parser = SseParser()
    events: list[SseEvent] = []
    for chunk in chunks:
        events.extend(parser.feed(chunk))
    events.extend(parser.finish())
    return [(event.name, event.data, event.error) for event in events]


def test_lines_end_with_cr_lf_or_crlf_and_a_crlf_may_be_split() -> None:
    for end in (b"\r", b"\n", b"\r\n"):
        raw = b"event: a" + end + b"data: 1" + end + b"data:2" + end + end + b"data: 3" + end + end
        wanted: Seen = [(b"a", b"1\n2", None), (None, b"3", None)]
        for at in range(len(raw)):
            assert events_of([raw[:at], raw[at:]]) == wanted


def test_unicode_line_separators_are_text() -> None:
    text = "x\u2028y\u2029z\u0085\x0b\x0c\x1c".encode()
    assert events_of([b"data: " + text + b"\n\n"]) == [(None, text, None)]


def test_one_byte_order_mark_is_dropped_even_when_split() -> None:
    raw = b"\xef\xbb\xbfdata: 1\n\n"
    for at in range(len(raw)):
        assert events_of([raw[:at], raw[at:]]) == [(None, b"1", None)]
    assert events_of([b"\xef\xbb\xbf" + raw]) == []  # a second one is part of the field name
    for at in range(3):
        assert events_of([b"\xef\xbb"[:at], b"\xef\xbb"[at:], b"\ndata: 1\n\n"]) == [(None, b"1", None)]


def test_comments_ids_and_retries_are_no_events() -> None:
    assert events_of([b": hi\n\nid: 4\nretry: 10\n\n:\n\nunknown: 1\n\n"]) == []


def test_exactly_one_space_is_stripped_and_the_last_event_name_wins() -> None:
    assert events_of([b"event: a\nevent:b\ndata:  x\ndata\n\n"]) == [(b"b", b" x\n", None)]


def test_the_error_field_of_old_servers_is_kept() -> None:
    assert events_of([b'error: {"code":500}\n\n']) == [(None, b"", b'{"code":500}')]


def test_end_of_body_dispatches_what_is_pending() -> None:
    assert events_of([b"data: 1\n\ndata: 2"]) == [(None, b"1", None), (None, b"2", None)]
    assert events_of([b"event: x\ndata: 2\n"]) == [(b"x", b"2", None)]


def test_a_sentinel_line_does_not_wait_for_its_blank_line() -> None:
    parser = SseParser()
    assert [event.data for event in parser.feed(b"data:  [DONE] \n")] == [b"[DONE]"]
    assert parser.feed(b"\n") == []
    assert parser.finish() == []


def test_starts_are_offsets_into_the_chunk_just_fed() -> None:
    parser = SseParser()
    first = b"data: 1\n\n: c\n\nevent: x\ndata: 2\n\ndata"
    assert [event.start for event in parser.feed(first)] == [0, 14]
    assert parser.open_block_offset == first.rindex(b"data")
    assert [event.start for event in parser.feed(b": 3\n\n\ndata: 4\n\n")] == [0, 6]
    assert parser.open_block_offset is None


def reference(raw: bytes) -> Seen:
    """The same rules, read from the whole body at once."""
    raw = raw.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found: Seen = []
    name, data, error = None, [], None
    for line in [*raw.split(b"\n"), b""]:
        if not line:
            if data or name is not None or error is not None:
                found.append((name, b"\n".join(data), error))
            name, data, error = None, [], None
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
        elif field == b"error":
            error = value
    return found


PIECES = st.sampled_from(
    [
        b"data: ",
        b"data",
        b":",
        b" ",
        b"\r",
        b"\n",
        b"\r\n",
        b"\n\n",
        b"event: e",
        b"x",
        b"error:1",
        b"\xef\xbb\xbf",
        b"\xe2",
    ]
)


@given(st.lists(PIECES, max_size=24).map(b"".join), st.lists(st.integers(0, 60), max_size=6))
@example(b"data: 1\r\n\r\n", [8])
@settings(max_examples=300, deadline=None)
def test_any_cut_gives_what_the_whole_body_gives(raw: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    assert events_of([raw[a:b] for a, b in itertools.pairwise(edges)]) == reference(raw)


class CountingBytes(PendingBytes):
    """Counts every byte that goes into and out of the unfinished line."""

    __slots__ = ("moved",)

    def __init__(self) -> None:
        super().__init__()
        self.moved = 0

    def append(self, piece: bytes) -> None:
        self.moved += len(piece)
        super().append(piece)

    def take(self) -> bytes:
        taken = super().take()
        self.moved += len(taken)
        return taken


@pytest.mark.parametrize("size", [1, 64, 4096])
def test_each_byte_of_a_large_event_is_moved_twice_at_most(size: int) -> None:
    body = b"data: " + b"x" * 40_000 + b"\n\n"
    pending = CountingBytes()
    parser = SseParser(pending)
    events = [event for at in range(0, len(body), size) for event in parser.feed(body[at : at + size])]
    assert len(events) == 1
    assert pending.moved <= 2 * len(body)


def calls_made(dialect: str, chunks: list[bytes]) -> int:
    """Count every Python and C call made while a stream is fed: work, not time."""
    accumulator = make_accumulator(dialect)  # type: ignore[arg-type]
    count = 0

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        for chunk in chunks:
            accumulator.feed(chunk)
        accumulator.finish()
    finally:
        sys.setprofile(None)
    return count


DELTAS = {
    "chat": {"choices": [{"index": 0, "delta": {"tool_calls": [{"function": {"name": "f", "arguments": "[1],"}}]}}]},
    "messages": {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{"}},
    "responses": {"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": "x"},
}


@pytest.mark.parametrize("dialect", DELTAS)
def test_twice_the_events_are_at_most_twice_the_work(dialect: str) -> None:
    event = b"data: " + orjson.dumps(DELTAS[dialect]) + b"\n\n"
    small, large = (calls_made(dialect, [event] * count) for count in (400, 800))
    assert large <= 2.1 * small


def test_a_growing_string_is_not_joined_before_the_end() -> None:
    """Quadratic copying would show as a joined string after each delta; what is there is a list of pieces."""
    accumulator = make_accumulator("responses")
    accumulator.feed(b"data: " + orjson.dumps(DELTAS["responses"]) + b"\n\n")
    for _ in range(50):
        accumulator.feed(b"data: " + orjson.dumps(DELTAS["responses"]) + b"\n\n")
    (rope_entry,) = accumulator._assembly._ropes
    assert len(rope_entry[2].pieces) == 51
    accumulator.finish()
    assert accumulator.response is not None
    assert accumulator.response["output"][0]["content"] == [{"type": "reasoning_text", "text": "x" * 51}]

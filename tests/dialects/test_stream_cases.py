"""Every handed stream, however it is cut, gives the object, the end, the category and the error that it must give."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.dialects import (
    STREAM_PROBLEMS,
    StreamAccumulator,
    coarse_error_category,
    finish_reason_of,
    make_accumulator,
    tool_calls_of,
)

CASES = Path(__file__).parents[1] / "cases"
STREAMS: list[dict[str, Any]] = json.loads((CASES / "streams.json").read_text())
BUGS: list[dict[str, Any]] = [
    case
    for case in map(json.loads, (CASES / "public-bugs" / "index.jsonl").read_text().splitlines())
    if case["dialect"] != "jsonl"
]


def raw_of(case: dict[str, Any]) -> bytes:
    if "file" in case:
        return (CASES / "public-bugs" / case["file"]).read_bytes()
    return base64.b64decode(case["raw_base64"]) if "raw_base64" in case else case["raw"].encode()


def run(dialect: str, chunks: list[bytes], encoding: str | None = None) -> StreamAccumulator:
    accumulator = make_accumulator(dialect, content_encoding=encoding)  # type: ignore[arg-type]
    for chunk in chunks:
        accumulator.feed(chunk)
    accumulator.finish()
    return accumulator


def each_byte(raw: bytes) -> list[bytes]:
    return [raw[at : at + 1] for at in range(len(raw))]


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def check_stream(case: dict[str, Any], result: StreamAccumulator) -> None:
    assert without_nulls(result.response) == without_nulls(case["expect_response"])
    assert result.terminal == case["expect_terminal"]
    assert result.error_category == case["expect_error_category"]
    assert result.stream_error == case.get("stream_error")
    assert set(result.problems) <= set(STREAM_PROBLEMS)


def text_of(dialect: str, response: dict[str, Any]) -> str:
    if dialect == "chat":
        return response["choices"][0]["message"]["content"] or ""
    return "".join(block["text"] for block in response["content"] if block["type"] == "text")


def calls_as_text(dialect: str, response: dict[str, Any]) -> list[dict[str, Any]]:
    if dialect == "chat":
        entries = response["choices"][0]["message"]["tool_calls"]
        return [{"id": entry["id"], **entry["function"]} for entry in entries]
    items = [item for item in response["output"] if item["type"] == "function_call"]
    return [{"id": item["call_id"], "name": item["name"], "arguments": item["arguments"]} for item in items]


def check_bug(case: dict[str, Any], result: StreamAccumulator) -> None:
    dialect, response, expect = case["dialect"], result.response, dict(case["expect"])
    expect.pop("note", None)
    expect.pop("opaque_kept", None)
    assert response is not None
    found: dict[str, Any] = {
        "text": lambda: text_of(dialect, response),
        "tool_calls": lambda: calls_as_text(dialect, response),
        "tool_uses": lambda: [
            {key: block[key] for key in ("id", "name", "input")}
            for block in response["content"]
            if block["type"] == "tool_use"
        ],
        "blocks": lambda: response["content"],
        "choices": lambda: [
            {"index": choice["index"], "text": choice["message"]["content"], "finish": choice["finish_reason"]}
            for choice in response["choices"]
        ],
        "items": lambda: [item["type"] for item in response["output"]],
        "usage": lambda: response["usage"],
        "finish": lambda: finish_reason_of(response),
        "outcome": lambda: coarse_error_category(result.error_category),
        "error_type": lambda: (result.stream_error or {})["type"],
        "terminal_seen": lambda: result.terminal_seen,
        "stream_truncated": lambda: result.error_category == "stream_truncated",
        "unknown_events": lambda: result.unknown_events,
        "notes": lambda: result.problems,
    }
    assert {key: found[key]() for key in expect} == expect


def with_line_ends(raw: bytes, end: bytes) -> bytes:
    return raw.replace(b"\r\n", b"\n").replace(b"\n", end)


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["id"])
class TestHandedStreams:
    def test_whole(self, case: dict[str, Any]) -> None:
        check_stream(case, run(case["dialect"], [raw_of(case)], case.get("content_encoding")))

    def test_byte_by_byte(self, case: dict[str, Any]) -> None:
        check_stream(case, run(case["dialect"], each_byte(raw_of(case)), case.get("content_encoding")))

    @pytest.mark.parametrize("end", [b"\r\n", b"\r"], ids=["crlf", "cr"])
    def test_other_line_ends_byte_by_byte(self, case: dict[str, Any], end: bytes) -> None:
        check_stream(case, run(case["dialect"], each_byte(with_line_ends(raw_of(case), end))))

    def test_without_the_last_blank_line(self, case: dict[str, Any]) -> None:
        check_stream(case, run(case["dialect"], [raw_of(case).rstrip(b"\r\n")]))

    @pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "stacked"])
    def test_encoded(self, case: dict[str, Any], encoding: str) -> None:
        raw = raw_of(case)
        body, name = {
            "gzip": (gzip.compress(raw), "GZIP"),
            "deflate": (zlib.compress(raw), "deflate"),
            "zstd": (zstandard.compress(raw), "zstd"),
            "stacked": (gzip.compress(zlib.compress(raw)), "deflate, gzip"),
        }[encoding]
        check_stream(case, run(case["dialect"], [body], name))
        check_stream(case, run(case["dialect"], each_byte(body), name))

    @given(data=st.data())
    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    def test_cut_anywhere(self, case: dict[str, Any], data: st.DataObject) -> None:
        raw = raw_of(case)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
        edges = [0, *cuts, len(raw)]
        chunks = [raw[a:b] for a, b in itertools.pairwise(edges)]
        check_stream(case, run(case["dialect"], chunks))


@pytest.mark.parametrize("case", BUGS, ids=lambda case: case["file"])
class TestPublicBugs:
    def test_whole(self, case: dict[str, Any]) -> None:
        check_bug(case, run(case["dialect"], [raw_of(case)]))

    def test_byte_by_byte(self, case: dict[str, Any]) -> None:
        check_bug(case, run(case["dialect"], each_byte(raw_of(case))))

    @pytest.mark.parametrize("end", [b"\r\n", b"\r"], ids=["crlf", "cr"])
    def test_other_line_ends_byte_by_byte(self, case: dict[str, Any], end: bytes) -> None:
        check_bug(case, run(case["dialect"], each_byte(with_line_ends(raw_of(case), end))))

    def test_every_cut_in_two(self, case: dict[str, Any]) -> None:
        raw = raw_of(case)
        for at in range(len(raw)):
            check_bug(case, run(case["dialect"], [raw[:at], raw[at:]]))


def test_calls_of_the_handed_bugs_are_normalised() -> None:
    case = next(case for case in BUGS if case["file"] == "chat_same_index_two_ids.sse")
    calls = tool_calls_of(run("chat", [raw_of(case)]).response, "chat")
    assert calls == [
        {"call_id": "a", "name": "ls", "arguments": {}},
        {"call_id": "b", "name": "pwd", "arguments": {}},
    ]


class TestTerminalOffset:
    """Section 2.6: only the bytes of the event that ends the answer wait."""

    @pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["id"])
    def test_whole_stream_names_the_first_byte_of_the_ending_event(self, case: dict[str, Any]) -> None:
        accumulator = make_accumulator(case["dialect"])
        raw = raw_of(case)
        accumulator.feed(raw)
        if case["expect_terminal"] in (None, "clean_eof") and b"[DONE]" not in raw:
            assert accumulator.terminal_offset is None
            return
        assert accumulator.terminal_offset is not None
        before, held = raw[: accumulator.terminal_offset], raw[accumulator.terminal_offset :]
        assert before.endswith((b"\n\n", b"\r\n\r\n")) or not before
        assert held.startswith((b"data: ", b"event: "))
        without_end = make_accumulator(case["dialect"])
        without_end.feed(before)
        assert not without_end.terminal_seen

    def test_an_event_that_began_in_an_earlier_chunk_is_held_from_the_first_byte(self) -> None:
        accumulator = make_accumulator("messages")
        accumulator.feed(b"event: message_stop\nda")
        assert accumulator.terminal_offset is None
        accumulator.feed(b'ta: {"type":"message_stop"}\n\n')
        assert accumulator.terminal_offset == 0
        accumulator.feed(b": bye\n\n")
        assert accumulator.terminal_offset is None

    @pytest.mark.parametrize("end", [b"", b"\n", b"\r", b"\r\n"])
    def test_a_sentinel_is_held_before_its_blank_line_comes(self, end: bytes) -> None:
        accumulator = make_accumulator("chat")
        accumulator.feed(b'data: {"choices":[]}\n\ndata: [DONE]' + end)
        assert accumulator.terminal_offset == 22

    def test_encoded_streams_are_held_from_the_first_byte(self) -> None:
        accumulator = make_accumulator("chat", content_encoding="gzip")
        accumulator.feed(gzip.compress(b'data: {"choices":[]}\n\ndata: [DONE]\n\n'))
        assert accumulator.terminal_offset == 0

"""Streams through the middleware: forwarded unchanged, reassembled, and judged (C15, C16, acceptance item 1)."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.capture import read_model_call_records
from nemo_gym.capture.bodies import RAW_HALF_BYTES
from nemo_gym.dialects import coarse_error_category

CASES = Path(__file__).parents[1] / "cases"
PATH_OF = {"responses": "/v1/responses", "chat": "/v1/chat/completions", "messages": "/v1/messages"}
STREAMS = json.loads((CASES / "streams.json").read_text())
BUGS = [
    entry
    for entry in map(json.loads, (CASES / "public-bugs" / "index.jsonl").read_text().splitlines())
    if entry["file"].endswith(".sse")
]
CHAT = [
    b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]}\n\n',
    b'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
]


def bytes_of(case: dict[str, Any]) -> bytes:
    return base64.b64decode(case["raw_base64"]) if "raw_base64" in case else case["raw"].encode()


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("split", ["whole", "bytes"])
@pytest.mark.parametrize("case", STREAMS, ids=[str(case.get("id") or case.get("name")) for case in STREAMS])
async def test_handed_streams_come_out_as_expected(captured: Any, tools: Any, case: dict[str, Any], split: str) -> None:
    body = bytes_of(case)
    chunks = [body] if split == "whole" else [body[at : at + 1] for at in range(len(body))]
    encoding = case.get("content_encoding")
    app = captured(tools.stream_app(chunks, encoding=encoding.encode() if encoding else None))
    answer = await app.call(f"/ng-rollout/0-0{PATH_OF[case['dialect']]}", b'{"stream": true}')
    assert answer.body == body
    (line,) = app.lines()
    assert without_nulls(line["response"]) == without_nulls(case["expect_response"])
    assert line["terminal"] == case["expect_terminal"]
    assert line["error_category"] == case["expect_error_category"]
    assert line["stream_error"] == case.get("stream_error")
    assert line["stream"] is True
    assert isinstance(line["reassembly_problems"], list)


@pytest.mark.parametrize("split", ["whole", "bytes"])
@pytest.mark.parametrize("entry", BUGS, ids=[entry["file"] for entry in BUGS])
async def test_publicly_reported_streams_keep_their_outcome(
    captured: Any, tools: Any, entry: dict[str, Any], split: str
) -> None:
    body = (CASES / "public-bugs" / entry["file"]).read_bytes()
    chunks = [body] if split == "whole" else [body[at : at + 1] for at in range(len(body))]
    app = captured(tools.stream_app(chunks))
    answer = await app.call(f"/ng-rollout/0-0{PATH_OF[entry['dialect']]}")
    assert answer.body == body
    (line,) = app.lines()
    expect = entry["expect"]
    if "outcome" in expect:
        assert coarse_error_category(line["error_category"]) == expect["outcome"]
    if expect.get("stream_truncated"):
        assert line["error_category"] == "stream_truncated"
    if "text" in expect and entry["dialect"] == "chat":
        assert line["response"]["choices"][0]["message"]["content"] == expect["text"]
    if "finish" in expect:
        (record,) = read_model_call_records(app.store, "0-0")
        assert record.finish_reason == expect["finish"]


async def test_a_good_stream_is_stored_once_as_an_object(captured: Any, tools: Any) -> None:
    app = captured(tools.stream_app(CHAT))
    await app.call("/ng-rollout/0-0/v1/chat/completions")
    (line,) = app.lines()
    assert line["terminal"] == "complete"
    assert line["reassembly_problems"] == []
    assert "response_raw" not in line
    assert line["response"]["choices"][0]["message"]["content"] == "ab"


@pytest.mark.parametrize("content_type", [b"Text/Event-Stream", b"text/event-stream; charset=utf-8"])
async def test_a_stream_is_known_by_its_media_type_in_any_case(captured: Any, tools: Any, content_type: bytes) -> None:
    app = captured(tools.stream_app(CHAT, content_type=content_type))
    await app.call("/ng-rollout/0-0/v1/chat/completions")
    assert app.lines()[0]["terminal"] == "complete"


async def test_a_cut_stream_keeps_its_part_and_is_marked_c16(captured: Any, tools: Any) -> None:
    app = captured(tools.stream_app(CHAT[:1]))
    await app.call("/ng-rollout/0-0/v1/chat/completions")
    (line,) = app.lines()
    assert (line["error_category"], line["terminal"], line["status_code"]) == ("stream_truncated", None, 200)
    assert line["response"]["choices"][0]["message"]["content"] == "a"
    assert line["response_raw"] == CHAT[0].decode()


async def test_only_the_terminal_bytes_wait_for_the_record(captured: Any, tools: Any) -> None:
    """Everything before goes out at once; what ends the answer comes after its record is durable."""
    app = captured(tools.stream_app([b"".join(CHAT)]))
    seen: list[tuple[bytes, int]] = []

    async def look(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            seen.append((message["body"], len(app.store.read("0-0"))))

    answer = await app.call("/ng-rollout/0-0/v1/chat/completions", on_message=look)
    assert answer.body == b"".join(CHAT)
    assert seen == [(CHAT[0] + CHAT[1], 0), (CHAT[2], 1), (b"", 1)]


async def test_the_end_split_over_chunks_is_held_from_where_it_is_known(captured: Any, tools: Any) -> None:
    app = captured(tools.stream_app([CHAT[0], CHAT[1], b"data: [DO", b"NE]\n", b"\n"]))
    durable_at_end: list[int] = []

    async def look(message: dict[str, Any]) -> None:
        if message.get("body") == b"NE]\n":
            durable_at_end.append(len(app.store.read("0-0")))

    await app.call("/ng-rollout/0-0/v1/chat/completions", on_message=look)
    assert durable_at_end == [1]


async def test_first_event_and_first_content_are_timed_apart(captured: Any, tools: Any) -> None:
    chunks = [b": keep-alive\n\n", b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n', *CHAT]

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await tools.read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await asyncio.sleep(0.002)
        await send({"type": "http.response.body", "body": b""})

    app = captured(inner)
    await app.call("/ng-rollout/0-0/v1/chat/completions")
    (line,) = app.lines()
    assert 0 < line["latency_ttft_ms"] < line["latency_first_content_ms"] < line["latency_ms"]


async def test_an_error_after_some_bytes_keeps_the_part(captured: Any, tools: Any) -> None:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": CHAT[0], "more_body": True})
        raise ConnectionResetError("upstream went away")

    app = captured(inner)
    with pytest.raises(ConnectionResetError):
        await app.call("/ng-rollout/0-0/v1/chat/completions")
    (line,) = app.lines()
    assert (line["status_code"], line["error_category"]) == (200, "connection")
    assert line["response"]["choices"][0]["message"]["content"] == "a"


async def test_a_stream_that_ends_because_the_client_left_is_cancelled(captured: Any, tools: Any) -> None:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await tools.read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": CHAT[0], "more_body": True})
        assert (await receive())["type"] == "http.disconnect"  # what Starlette does: it stops without an error

    app = captured(inner)
    left = asyncio.Event()
    left.set()
    await app.call("/ng-rollout/0-0/v1/chat/completions", disconnect_after=left)
    (line,) = app.lines()
    assert line["error_category"] == "cancelled"
    assert line["response"]["choices"][0]["message"]["content"] == "a"


async def test_long_damaged_streams_keep_both_ends_of_their_text(captured: Any, tools: Any) -> None:
    filler = b": " + b"x" * (1 << 20) + b"\n\n"
    app = captured(tools.stream_app([CHAT[0], *[filler] * 12, b"data: {broken\n\n"]))
    await app.call("/ng-rollout/0-0/v1/chat/completions")
    (line,) = app.lines()
    raw = line["response_raw"]
    assert raw.startswith(CHAT[0].decode())
    assert raw.endswith("data: {broken\n\n")
    assert "bytes left out" in raw
    assert len(raw) < 2 * RAW_HALF_BYTES + (2 << 20)


async def test_64_cancelled_streams_leave_64_records_with_their_part(captured: Any, tools: Any) -> None:
    """A cancelled call cannot lose its record, however many are cancelled at once (acceptance item 2)."""

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await tools.read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": CHAT[0], "more_body": True})
        running.release()
        await asyncio.Event().wait()

    running = asyncio.Semaphore(0)
    app = captured(inner)
    tasks = [asyncio.create_task(app.call("/ng-rollout/0-0/v1/chat/completions")) for _ in range(64)]
    for _ in tasks:
        await running.acquire()
    assert len(app.store.open_calls("0-0")) == 64
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    lines = app.lines()
    assert len({line["model_call_id"] for line in lines}) == 64
    assert {line["error_category"] for line in lines} == {"cancelled"}
    assert {line["response"]["choices"][0]["message"]["content"] for line in lines} == {"a"}
    assert app.store.open_calls("0-0") == []


async def test_a_cancel_while_the_end_is_held_still_leaves_the_record(captured: Any, tools: Any) -> None:
    app = captured(tools.stream_app(CHAT))
    tasks = [asyncio.create_task(app.call("/ng-rollout/0-0/v1/chat/completions")) for _ in range(16)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(app.lines()) == 16

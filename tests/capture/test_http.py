"""Through a real HTTP server: bytes unchanged, one record each, whatever passes (acceptance items 1, 2, 5, 6)."""

from __future__ import annotations

import asyncio
import base64
import gzip
import itertools
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from nemo_gym.capture import CaptureMiddleware, CaptureStore, read_model_call_records
from nemo_gym.dialects import coarse_error_category

CASES = Path(__file__).parents[1] / "cases"
PATH_OF = {"responses": "/v1/responses", "chat": "/v1/chat/completions", "messages": "/v1/messages"}
STREAMS = json.loads((CASES / "streams.json").read_text())
BUGS = [
    entry
    for entry in map(json.loads, (CASES / "public-bugs" / "index.jsonl").read_text().splitlines())
    if entry["file"].endswith(".sse")
]
SPLITS = ("whole", "bytes", "random")
CHAT = (
    b'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
)


class Server:
    """Capture behind uvicorn, in a thread. `answers` says what each path without its prefix is answered with."""

    def __init__(self, root: Path) -> None:
        self.store = CaptureStore(root)
        self.answers: dict[str, tuple[list[tuple[bytes, bytes]], list[bytes]]] = {}
        self.requests: list[bytes] = []
        self.middleware = CaptureMiddleware(self.application, store=self.store)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        config = uvicorn.Config(self.middleware, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        pieces, more = [], True
        while more:
            message = await receive()
            pieces.append(message.get("body", b""))
            more = message.get("more_body", False)
        self.requests.append(b"".join(pieces))
        headers, chunks = self.answers[dict(scope["headers"])[b"x-case"].decode()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def post(self, case: str, path: str, body: bytes = b"{}", *headers: str, until: bytes = b"") -> bytes:
        """Post and return the answer's body without its chunk framing; with `until`, as soon as that was read."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 27)
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"x-case: {case}", f"Content-Length: {len(body)}", *headers]
        writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode() + body)
        await reader.readuntil(b"\r\n\r\n")
        if until:
            found = await reader.readuntil(until)
        else:
            found = _unchunked(await reader.read())
        writer.close()
        return found

    def line(self, rollout_id: str) -> dict[str, Any]:
        (line,) = self.store.read(rollout_id)
        return line


def _unchunked(body: bytes) -> bytes:
    plain = bytearray()
    view = memoryview(body)
    while True:
        end = body.index(b"\r\n", len(body) - len(view)) - (len(body) - len(view))
        size = int(bytes(view[:end]), 16)
        if not size:
            return bytes(plain)
        plain += view[end + 2 : end + 2 + size]
        view = view[end + 2 + size + 2 :]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("captures"))
    server.thread.start()
    deadline = time.monotonic() + 30
    while not server.server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield server
    server.server.should_exit = True
    server.thread.join(30)
    assert server.middleware.writer is not None
    server.middleware.writer.close()


def _pieces(body: bytes, split: str) -> list[bytes]:
    if split == "whole":
        return [body]
    if split == "bytes":
        return [body[at : at + 1] for at in range(len(body))]
    rng = random.Random(len(body))
    cuts = sorted({0, len(body), *(rng.randrange(len(body) + 1) for _ in range(len(body) // 20 + 2))})
    return [body[start:end] for start, end in itertools.pairwise(cuts)]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


async def test_handed_streams_through_a_real_server_however_they_are_split(server: Server) -> None:
    for number, case in enumerate(STREAMS):
        body = base64.b64decode(case["raw_base64"]) if "raw_base64" in case else case["raw"].encode()
        encoding = case.get("content_encoding")
        headers = [(b"content-type", b"text/event-stream")]
        headers += [(b"content-encoding", encoding.encode())] if encoding else []
        for split in SPLITS:
            rollout_id = f"stream-{number}-{split}"
            server.answers[rollout_id] = headers, _pieces(body, split)
            path = f"/ng-rollout/{rollout_id}{PATH_OF[case['dialect']]}"
            assert await server.post(rollout_id, path, b'{"stream": true}') == body
            line = server.line(rollout_id)
            about = (rollout_id, case.get("id") or case.get("name"))
            assert _without_nulls(line["response"]) == _without_nulls(case["expect_response"]), about
            assert line["terminal"] == case["expect_terminal"], about
            assert line["error_category"] == case["expect_error_category"], about
            assert line["stream_error"] == case.get("stream_error"), about


async def test_publicly_reported_streams_through_a_real_server_however_they_are_split(server: Server) -> None:
    for number, entry in enumerate(BUGS):
        body = (CASES / "public-bugs" / entry["file"]).read_bytes()
        expect = entry["expect"]
        seen = []
        for split in SPLITS:
            rollout_id = f"bug-{number}-{split}"
            server.answers[rollout_id] = [(b"content-type", b"text/event-stream")], _pieces(body, split)
            assert await server.post(rollout_id, f"/ng-rollout/{rollout_id}{PATH_OF[entry['dialect']]}") == body
            line = server.line(rollout_id)
            seen.append({key: line[key] for key in ("response", "terminal", "error_category", "reassembly_problems")})
            if "outcome" in expect:
                assert coarse_error_category(line["error_category"]) == expect["outcome"], entry["file"]
            if "text" in expect and entry["dialect"] == "chat":
                assert line["response"]["choices"][0]["message"]["content"] == expect["text"]
        assert seen[0] == seen[1] == seen[2], entry["file"]


GZIPPED = gzip.compress(b'{"zipped": true}')
ODD = {
    "surrogate": b'{"a": "\\ud800"}',
    "big-integer": b'{"a": 1000000000000000000000000000000}',
    "not-a-number": b'{"a": NaN, "b": -Infinity}',
    "invalid-utf-8": b'{"a": "\xff\xfe"}',
    "50-megabytes": b'{"a": "' + b"x" * 50_000_000 + b'"}',
    "empty": b"",
    "array": b"[1, 2]",
    "gzip": GZIPPED,
    "broken-gzip": GZIPPED[:9],
}


@pytest.mark.parametrize("name", ODD)
async def test_odd_bodies_both_ways_leave_one_record_and_pass_unchanged(server: Server, name: str) -> None:
    body, rollout_id = ODD[name], f"odd-{name}"
    encoded = name.endswith("gzip")
    headers = [(b"content-type", b"application/json"), *([(b"content-encoding", b"gzip")] if encoded else [])]
    server.answers[rollout_id] = headers, [body] if body else []
    sent = await server.post(
        rollout_id, f"/ng-rollout/{rollout_id}/v1/responses", body, *(["Content-Encoding: gzip"] if encoded else [])
    )
    assert sent == body == server.requests[-1]
    line = server.line(rollout_id)
    for key in ("request", "response"):
        if name in ("surrogate", "big-integer", "50-megabytes"):
            assert line[key] == json.loads(body)
        elif name == "not-a-number":
            assert line[key] == {"a": None, "b": None}
        elif name == "gzip":
            assert line[key] == {"zipped": True}
        else:
            assert line[key] is None
            assert (f"{key}_raw" in line) == bool(body)
    assert len(read_model_call_records(server.store, rollout_id)) == 1


async def test_a_thousand_of_a_thousand_clients_find_their_record_when_they_have_seen_the_end(server: Server) -> None:
    """The client stops reading at the terminal event, and looks at once."""
    server.answers["end"] = [(b"content-type", b"text/event-stream")], list(CHAT)
    found = 0

    async def client(number: int) -> None:
        nonlocal found
        for turn in range(50):
            rollout_id = f"end-{number}-{turn}"
            await server.post("end", f"/ng-rollout/{rollout_id}/v1/chat/completions", until=b"data: [DONE]\n\n")
            found += server.line(rollout_id)["terminal"] == "complete"

    await asyncio.gather(*(client(number) for number in range(20)))
    assert found == 1000

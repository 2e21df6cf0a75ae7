"""A caller that speaks ASGI to an application, and small applications to put capture around."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pytest

from nemo_gym.capture import CaptureMiddleware, CaptureStore, CaptureWriter

MODEL_REF = {"type": "responses_api_models", "name": "policy"}


@dataclass
class Answer:
    """What a client saw; `messages` are the ASGI messages in order."""

    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> int | None:
        return next((m["status"] for m in self.messages if m["type"] == "http.response.start"), None)

    @property
    def headers(self) -> dict[str, str]:
        start = next((m for m in self.messages if m["type"] == "http.response.start"), {})
        return {name.decode().lower(): value.decode() for name, value in start.get("headers", [])}

    @property
    def body(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.messages if m["type"] == "http.response.body")

    def json(self) -> Any:
        return json.loads(self.body)


async def call(
    app: Any,
    path: str,
    body: bytes | list[bytes] = b"{}",
    *,
    method: str = "POST",
    headers: tuple[tuple[str, str], ...] = (),
    on_message: Callable[[dict[str, Any]], Awaitable[None]] | None = None,
    disconnect_after: asyncio.Event | None = None,
) -> Answer:
    """Call `app` once, as an HTTP server would; `path` is as sent, escapes included."""
    pieces = [body] if isinstance(body, bytes) else list(body)
    answer = Answer()

    async def receive() -> dict[str, Any]:
        if pieces:
            piece = pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}
        await (disconnect_after or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        answer.messages.append(message)
        if on_message is not None:
            await on_message(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    answer.scope = scope  # type: ignore[attr-defined]
    await app(scope, receive, send)
    return answer


async def read_body(receive: Any) -> bytes:
    """Read a whole request body."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return body
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body


def json_app(body: bytes, *, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Any:
    """An application that reads the request and answers `body`; `seen` lists (path, request body)."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        app.seen.append((scope["path"], await read_body(receive)))  # type: ignore[attr-defined]
        content_type = (
            () if any(name == b"content-type" for name, _ in headers) else ((b"content-type", b"application/json"),)
        )
        await send({"type": "http.response.start", "status": status, "headers": [*content_type, *headers]})
        await send({"type": "http.response.body", "body": body})

    app.seen = []  # type: ignore[attr-defined]
    return app


def stream_app(
    chunks: list[bytes], *, encoding: bytes | None = None, content_type: bytes = b"text/event-stream"
) -> Any:
    """An application that streams `chunks` as server-sent events."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive)
        headers = [(b"content-type", content_type)]
        if encoding:
            headers.append((b"content-encoding", encoding))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


@dataclass
class Captured:
    """An application with capture around it."""

    app: CaptureMiddleware
    store: CaptureStore
    writer: CaptureWriter

    async def call(self, path: str, *args: Any, **kwargs: Any) -> Answer:
        return await call(self.app, path, *args, **kwargs)

    def lines(self, rollout_id: str = "0-0") -> list[dict[str, Any]]:
        """The raw lines, after everything queued is durable."""
        assert self.writer.flush(10)
        return self.store.read(rollout_id)


@pytest.fixture
def store(tmp_path: Any) -> CaptureStore:
    return CaptureStore(tmp_path / "captures")


@pytest.fixture
def captured(store: CaptureStore) -> Any:
    """A function that puts capture around an application."""
    writers = []

    def make(app: Any, **options: Any) -> Captured:
        writer = CaptureWriter(store)
        writers.append(writer)
        return Captured(
            CaptureMiddleware(app, store=store, writer=writer, model_ref=MODEL_REF, **options), store, writer
        )

    yield make
    for writer in writers:
        writer.close()


@pytest.fixture
def tools() -> Any:
    """The helpers of this file."""

    class Tools:
        pass

    Tools.call, Tools.json_app, Tools.stream_app, Tools.read_body = (  # type: ignore[attr-defined]
        staticmethod(call),
        staticmethod(json_app),
        staticmethod(stream_app),
        staticmethod(read_body),
    )
    return Tools

"""Server-sent events of a finished object, and signs of life while there is none yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nemo_gym.dialects.errors import error_body
from nemo_gym.dialects.names import Dialect
from nemo_gym.records import codec

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 15.0
"""How long a client waits without a byte: shorter than the idle limits of the SDKs."""

STREAM_HEADERS = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}
_PIECE = 32 * 1024
_COMMENT = b": keep-alive\n\n"
_PING = b'event: ping\ndata: {"type": "ping"}\n\n'


class EventStream(Response):
    """A response whose chunks come from an iterator."""

    def __init__(self, chunks: AsyncIterator[bytes], headers: dict[str, str] | None = None) -> None:
        super().__init__(headers={**STREAM_HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self.chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the chunks as they come."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for chunk in self.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def pieces(events: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield events in pieces of a sensible size."""
    for piece in _joined(events):
        yield piece


def _joined(events: Iterable[bytes]) -> Iterator[bytes]:
    waiting: list[bytes] = []
    size = 0
    for event in events:
        waiting.append(event)
        size += len(event)
        if size >= _PIECE:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


async def answer_or_stream(
    dialect: Dialect, work: Awaitable[Response], *, keep_alive_s: float = KEEP_ALIVE_S
) -> Response:
    """Return what `work` returns if it is quick, so that early failures are plain HTTP errors.

    Otherwise begin a 200 stream at once, send a sign of life every `keep_alive_s` seconds, and then the answer's
    events; an answer that is an error ends the stream with the dialect's error event.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=keep_alive_s)
    except asyncio.CancelledError:
        task.cancel()
        raise
    return task.result() if done else EventStream(_late(dialect, task, keep_alive_s))


async def _late(dialect: Dialect, task: asyncio.Future[Response], keep_alive_s: float) -> AsyncIterator[bytes]:
    sign = _PING if dialect == "messages" else _COMMENT
    try:
        while not task.done():
            yield sign
            await asyncio.wait({task}, timeout=keep_alive_s)
        error = task.exception()
        if error is not None:
            logger.error("a streamed model call failed: %s", error, exc_info=error)
            yield error_event(dialect, error_body(dialect, status=500, message=str(error) or repr(error)))
            return
        async for chunk in _events_of(dialect, task.result()):
            yield chunk
    finally:
        task.cancel()


async def _events_of(dialect: Dialect, answer: Response) -> AsyncIterator[bytes]:
    """Yield an answer as events of a stream that began before the answer was known."""
    if isinstance(answer, EventStream):
        async for chunk in answer.chunks:
            yield chunk
        return
    content = bytes(answer.body)
    try:
        body = codec.decode_object(content)
    except ValueError:
        body = error_body(dialect, status=answer.status_code, message=content.decode("utf-8", "replace"))
    yield error_event(dialect, body)


def error_event(dialect: Dialect, body: dict[str, Any]) -> bytes:
    """Return an error body as the event that ends a stream of the dialect."""
    if dialect == "responses":
        inner = body.get("error") if isinstance(body.get("error"), dict) else {}
        assert isinstance(inner, dict)
        failed = {
            "id": "resp_failed",
            "object": "response",
            "status": "failed",
            "output": [],
            "error": {"code": inner.get("code") or "server_error", "message": inner.get("message")},
        }
        event = {"type": "response.failed", "sequence_number": 0, "response": failed}
        return b"event: response.failed\ndata: " + codec.encode(event) + b"\n\n"
    return b"event: error\ndata: " + codec.encode(body) + b"\n\n"

"""Server-sent events of a finished object, and signs of life while there is none yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nemo_gym.dialects.conversion import SYSTEM_MINT
from nemo_gym.dialects.errors import error_body
from nemo_gym.dialects.names import Dialect
from nemo_gym.records import codec
from nemo_gym.servers.upstream import failure_answer

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 15.0
"""How long a client waits without a byte: shorter than the idle limits of the SDKs."""

STREAM_HEADERS = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}
_PIECE = 32 * 1024
_COMMENT = b": keep-alive\n\n"
_PING = b'event: ping\ndata: {"type": "ping"}\n\n'


class EventStream(Response):
    """A response whose chunks come from an iterator.

    With `keep_alive` it sends a sign of life whenever the iterator is silent for too long, between two events only.
    """

    def __init__(self, chunks: AsyncIterator[bytes], headers: dict[str, str] | None = None) -> None:
        super().__init__(headers={**STREAM_HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self.chunks = chunks
        self._sign: bytes | None = None
        self._interval_s = KEEP_ALIVE_S

    def keep_alive(self, dialect: Dialect, interval_s: float = KEEP_ALIVE_S) -> None:
        """Send signs of life of the dialect after `interval_s` seconds of silence."""
        self._sign, self._interval_s = sign_of_life(dialect), interval_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the chunks as they come; a client that leaves closes the iterator, and what it reads from."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        pulse = None if self._sign is None else _Pulse(send, self._sign, self._interval_s)
        try:
            async for chunk in self.chunks:
                if pulse is None:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                elif chunk:
                    await pulse.send(chunk)
        finally:
            if pulse is not None:
                pulse.stop()
            if isinstance(self.chunks, AsyncGenerator):
                await self.chunks.aclose()
        await send({"type": "http.response.body", "body": b""})


class _Pulse:
    """Sends chunks, and a sign of life when the last one is too long ago and ended an event."""

    def __init__(self, send: Send, sign: bytes, interval_s: float) -> None:
        self._send, self._sign, self._interval_s = send, sign, interval_s
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._is_sending = False
        self._between_events = True
        self._beat: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(interval_s, self._due)

    async def send(self, chunk: bytes) -> None:
        """Send a chunk, after a sign of life that is just being sent."""
        if self._beat is not None:
            await asyncio.wait({self._beat})
        self._is_sending = True
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        self._is_sending = False
        self._last = self._loop.time()
        self._between_events = chunk.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))

    def _due(self) -> None:
        silent_s = self._loop.time() - self._last
        if silent_s >= self._interval_s * 0.99 and self._between_events and not self._is_sending:
            self._beat = self._loop.create_task(self._send_sign())
            self._last, silent_s = self._loop.time(), 0.0
        self._timer = self._loop.call_later(max(self._interval_s - silent_s, self._interval_s / 10), self._due)

    async def _send_sign(self) -> None:
        try:
            await self._send({"type": "http.response.body", "body": self._sign, "more_body": True})
        finally:
            self._beat = None

    def stop(self) -> None:
        """Send no more signs of life."""
        self._timer.cancel()
        if self._beat is not None:
            self._beat.cancel()


def sign_of_life(dialect: Dialect) -> bytes:
    """Return what a client of the dialect reads over: an event of its own for Messages, else a comment."""
    return _PING if dialect == "messages" else _COMMENT


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

    Otherwise begin a 200 stream at once, keep it alive, and send the answer's events when they come; an answer that is
    an error ends the stream with the dialect's error event.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=keep_alive_s)
    except asyncio.CancelledError:
        task.cancel()
        raise
    answer = task.result() if done else EventStream(_late(dialect, task))
    if isinstance(answer, EventStream):
        answer.keep_alive(dialect, keep_alive_s)
    return answer


async def _late(dialect: Dialect, task: asyncio.Future[Response]) -> AsyncIterator[bytes]:
    try:
        yield sign_of_life(dialect)
        await asyncio.wait({task})
        error = task.exception()
        if error is not None:
            logger.error("a streamed model call failed: %s", error, exc_info=error)
            answer = failure_answer(dialect, error) if isinstance(error, Exception) else None
            status, content = (500, b"") if answer is None else (answer.status_code, bytes(answer.body))
            yield error_event(
                dialect, _error_body(dialect, status, content or str(error).encode() or repr(error).encode())
            )
            return
        async with aclosing(_events_of(dialect, task.result())) as events:
            async for chunk in events:
                yield chunk
    finally:
        task.cancel()


async def _events_of(dialect: Dialect, answer: Response) -> AsyncGenerator[bytes, None]:
    """Yield an answer as events of a stream that began before the answer was known."""
    chunks = answer.chunks if isinstance(answer, EventStream) else getattr(answer, "body_iterator", None)
    if chunks is not None:
        async for chunk in chunks:
            yield chunk.encode() if isinstance(chunk, str) else bytes(chunk)
        return
    yield error_event(dialect, _error_body(dialect, answer.status_code, bytes(answer.body)))


def _error_body(dialect: Dialect, status: int, content: bytes) -> dict[str, Any]:
    try:
        return codec.decode_object(content)
    except ValueError:
        return error_body(dialect, status=status, message=content.decode("utf-8", "replace"))


def error_event(
    dialect: Dialect, body: dict[str, Any], *, begun: Mapping[str, Any] | None = None, number: int = 0
) -> bytes:
    """Return an error body as the event that ends a stream of the dialect.

    Of a Responses stream `begun` is the object so far, and `number` the event's place.
    """
    if dialect == "responses":
        inner = body.get("error") if isinstance(body.get("error"), dict) else {}
        assert isinstance(inner, dict)
        failed = {
            "id": SYSTEM_MINT.new_id("resp"),
            "object": "response",
            **(begun or {}),
            "status": "failed",
            "output": [],
            "error": {"code": inner.get("code") or "server_error", "message": inner.get("message")},
        }
        event = {"type": "response.failed", "sequence_number": number, "response": failed}
        return b"event: response.failed\ndata: " + codec.encode(event) + b"\n\n"
    return b"event: error\ndata: " + codec.encode(body) + b"\n\n"

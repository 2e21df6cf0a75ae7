"""Streams from a backend to a client: converted, stripped of what was not asked for, or ended by an error."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request

from nemo_gym.capture.execution import report_execution
from nemo_gym.dialects import make_accumulator
from nemo_gym.dialects.conversion import StreamConverter
from nemo_gym.dialects.errors import error_body
from nemo_gym.dialects.names import Dialect
from nemo_gym.records import codec
from nemo_gym.servers.event_stream import error_event
from nemo_gym.servers.upstream import BAD_GATEWAY, GATEWAY_TIMEOUT, UpstreamError
from nemo_gym.servers.upstream_client import UpstreamReply

Chunks = AsyncGenerator[bytes, None]


async def untouched(chunks: AsyncIterator[bytes], dialect: Dialect, request: Request) -> Chunks:
    """Yield the bytes as they come; a stream that breaks off ends with the dialect's own error event."""
    async with aclosing(_closable(chunks)) as source:
        try:
            async for chunk in source:
                yield chunk
        except UpstreamError as error:
            report_execution(request, upstream=[_broken(error)])
            yield error_event(dialect, failure_body(dialect, error))


async def converted(chunks: AsyncIterator[bytes], converter: StreamConverter, request: Request) -> Chunks:
    """Yield the stream in the client's dialect, each event as it arrives; a broken one ends with an error event."""
    failure: dict[str, Any] | None = None
    async with aclosing(_closable(chunks)) as source:
        try:
            async for chunk in source:
                if piece := converter.feed(chunk):
                    yield piece
        except UpstreamError as error:
            report_execution(request, upstream=[_broken(error)])
            failure = {"message": str(error), "code": error.code}
    last = converter.finish(failure)
    if converter.notes:
        report_execution(request, conversion_notes=converter.notes)
    if converter.usage is not None:
        report_execution(request, usage=converter.usage)
    if last:
        yield last


async def without_usage_chunk(chunks: AsyncIterator[bytes], request: Request) -> Chunks:
    """Yield a Chat stream without the chunk of counts that only this server asked for; the record gets the counts.

    The other bytes stay as they are. Only the unfinished end of an event waits, which no client could use yet.
    """
    waiting = b""
    async with aclosing(_closable(chunks)) as source:
        async for chunk in source:
            waiting += chunk
            cut = max(waiting.rfind(b"\n\n") + 2, waiting.rfind(b"\r\n\r\n") + 4)
            if cut < 4:
                continue
            ready, waiting = waiting[:cut], waiting[cut:]
            if b'"usage"' in ready:
                ready = _strip_usage(ready, request)
            if ready:
                yield ready
    if waiting:
        yield waiting


async def accumulated(reply: UpstreamReply, dialect: Dialect) -> dict[str, Any] | None:
    """Return the object of a stream that was not asked for; None when it holds none. Raises UpstreamError."""
    accumulator = make_accumulator(dialect)
    async for chunk in reply.chunks():
        accumulator.feed(chunk)
    accumulator.finish()
    return accumulator.response if accumulator.terminal in ("complete", "clean_eof", "incomplete") else None


def failure_body(dialect: Dialect, error: UpstreamError) -> dict[str, Any]:
    """Return the error body for a backend that broke off."""
    status = GATEWAY_TIMEOUT if error.code == "upstream_timeout" else BAD_GATEWAY
    return error_body(dialect, status=status, message=str(error), code=error.code)


def _strip_usage(ready: bytes, request: Request) -> bytes:
    separator = b"\r\n\r\n" if b"\r\n\r\n" in ready else b"\n\n"
    kept = []
    for block in ready.split(separator)[:-1]:
        usage = _usage_of(block)
        if usage is None:
            kept.append(block + separator)
        else:
            report_execution(request, usage=usage)
    return b"".join(kept)


def _usage_of(block: bytes) -> dict[str, Any] | None:
    """Return the counts of a chunk that holds nothing else; None for any other block."""
    if b'"usage"' not in block:
        return None
    payload = block.partition(b"data:")[2].strip()
    try:
        data = codec.decode_object(payload)
    except ValueError:
        return None
    usage = data.get("usage")
    return usage if isinstance(usage, dict) and not data.get("choices") and not data.get("error") else None


def _broken(error: UpstreamError) -> dict[str, Any]:
    cause = error.__cause__
    return {"url": error.server, "status": None, "error": type(cause or error).__name__, "while": "streaming"}


async def _closable(chunks: AsyncIterator[bytes]) -> Chunks:
    """Yield from any iterator, and close it at the end when it can be closed."""
    try:
        async for chunk in chunks:
            yield chunk
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()

"""Streams from a backend to a client: converted, stripped of what was not asked for, or ended by an error."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request

from nemo_gym.capture.execution import report_execution
from nemo_gym.dialects import conversion, make_accumulator
from nemo_gym.dialects.conversion import StreamConverter
from nemo_gym.dialects.errors import error_body
from nemo_gym.dialects.names import Dialect
from nemo_gym.records import codec
from nemo_gym.servers.event_stream import error_event
from nemo_gym.servers.upstream import BAD_GATEWAY, GATEWAY_TIMEOUT, UpstreamError
from nemo_gym.servers.upstream_client import UpstreamReply

Chunks = AsyncGenerator[bytes, None]

_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_SEQUENCE_NUMBER = re.compile(rb'"sequence_number":\s{0,4}(\d{1,15})\b')


def report_conversion(request: Request, notes: list[str]) -> None:
    """Tell the record what a conversion could not carry, and that counts which only fill a shape are none."""
    if notes:
        report_execution(request, conversion_notes=notes)
    if conversion.UNKNOWN_USAGE in notes:
        report_execution(request, usage=None)


async def untouched(chunks: AsyncIterator[bytes], dialect: Dialect, request: Request) -> Chunks:
    """Yield the bytes as they come; a stream that breaks off ends with the dialect's own error event."""
    first = last = b""
    async with aclosing(_closable(chunks)) as source:
        try:
            async for chunk in source:
                first, last = first or chunk, chunk
                yield chunk
        except UpstreamError as error:
            report_execution(request, upstream=[_broken(error)])
            yield _interruption(dialect, failure_body(dialect, error), first, last)


async def converted(chunks: AsyncIterator[bytes], converter: StreamConverter, request: Request) -> Chunks:
    """Yield the stream in the client's dialect, each event as it arrives; a broken one ends with an error event."""
    failure: dict[str, Any] | None = None
    if converter.begins_with_fillers:
        report_execution(request, usage=None)
    async with aclosing(_closable(chunks)) as source:
        try:
            async for chunk in source:
                if piece := converter.feed(chunk):
                    if converter.usage is not None:  # told before the client, who may leave with the last event
                        report_execution(request, usage=converter.usage)
                    yield piece
        except UpstreamError as error:
            report_execution(request, upstream=[_broken(error)])
            failure = {"message": str(error), "code": error.code}
    last = converter.finish(failure)
    report_conversion(request, converter.notes)
    if converter.usage is not None:
        report_execution(request, usage=converter.usage)
    if last:
        yield last


async def without_usage_chunk(chunks: AsyncIterator[bytes], request: Request) -> Chunks:
    """Yield a Chat stream without the chunk of counts that only this server asked for; the record gets the counts.

    The other bytes stay as they are. Only the unfinished end of an event waits, which no client could use yet.
    """
    waiting = bytearray()
    async with aclosing(_closable(chunks)) as source:
        async for chunk in source:
            seen = max(0, len(waiting) - 3)  # each byte is looked at once, however long an event is
            waiting += chunk
            cut = max(waiting.rfind(b"\n\n", seen) + 2, waiting.rfind(b"\r\n\r\n", seen) + 4)
            if cut < 4:
                continue
            ready = bytes(waiting[:cut])
            del waiting[:cut]
            if b'"usage"' in ready:
                ready = _strip_usage(ready, request)
            if ready:
                yield ready
    if waiting:
        yield bytes(waiting)


async def accumulated(reply: UpstreamReply, dialect: Dialect) -> dict[str, Any] | None:
    """Return the object of a stream that was not asked for; None when it holds none. Raises UpstreamError."""
    accumulator = make_accumulator(dialect)
    async for chunk in reply.chunks():
        accumulator.feed(chunk)
    accumulator.finish()
    return accumulator.response if accumulator.terminal in ("complete", "clean_eof", "incomplete") else None


def _interruption(dialect: Dialect, body: dict[str, Any], first: bytes, last: bytes) -> bytes:
    """Return the error event for a stream that began with the bytes `first` and broke off behind `last`.

    It never joins an event that was cut, and a Responses stream stays the answer that it was: its object and its
    numbering go on.
    """
    gap = b"" if not last or last.endswith(_EVENT_ENDS) else b"\n\n"
    if dialect != "responses":
        return gap + error_event(dialect, body)
    begun = make_accumulator(dialect)
    begun.feed(first)
    numbers = _SEQUENCE_NUMBER.findall(last) or _SEQUENCE_NUMBER.findall(first)
    return gap + error_event(dialect, body, begun=begun.response, number=int(numbers[-1]) + 1 if numbers else 0)


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

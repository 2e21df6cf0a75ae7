"""Events of a model server's own generator as the bytes of its dialect."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from nemo_gym.dialects.names import Dialect
from nemo_gym.servers.web import encode_answer

_DONE = b"data: [DONE]\n\n"


async def encoded(events: AsyncIterator[Any], dialect: Dialect) -> AsyncGenerator[bytes, None]:
    """Yield each event, a model or a dict, as a server-sent event; a Chat stream ends with `[DONE]`."""
    try:
        async for event in events:
            data = encode_answer(event)
            name = b""
            if dialect != "chat":
                kind = event.get("type") if isinstance(event, dict) else getattr(event, "type", None)
                name = b"event: " + str(kind).encode() + b"\n"
            yield name + b"data: " + data + b"\n\n"
        if dialect == "chat":
            yield _DONE
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()


async def begun(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Return the same chunks once the first one is there; what is raised before it is raised here."""
    try:
        first = await anext(chunks)
    except StopAsyncIteration:
        first = b""
    return _with_first(first, chunks)


async def _with_first(first: bytes, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        yield first
        async for chunk in chunks:
            yield chunk
    finally:
        await chunks.aclose()

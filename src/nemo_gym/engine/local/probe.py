"""One small HTTP request without a client library: start-up asks many times, and must import little."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of an HTTP answer."""

    status: int
    body: bytes


async def ask(
    host: str, port: int, path: str, *, timeout_s: float, method: str = "GET", headers: tuple[tuple[str, str], ...] = ()
) -> Answer | None:
    """Return the answer, or None when the server cannot be reached, does not speak HTTP or takes too long."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(host, port, path, method, headers)
    except (OSError, TimeoutError, ValueError, EOFError):
        return None


async def _exchange(host: str, port: int, path: str, method: str, headers: tuple[tuple[str, str], ...]) -> Answer:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        # HTTP/1.0, so that the body is whatever comes until the connection ends.
        lines = [f"{method} {path} HTTP/1.0", f"Host: {host}:{port}", "Connection: close", "Content-Length: 0"]
        lines += [f"{name}: {value}" for name, value in headers]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await writer.drain()
        status_line = (await reader.readline()).split(b" ", 2)
        if len(status_line) < 2 or not status_line[0].startswith(b"HTTP/"):
            raise ValueError("not HTTP")
        while (await reader.readline()) not in (b"\r\n", b"\n", b""):
            pass
        return Answer(int(status_line[1]), await reader.read())
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

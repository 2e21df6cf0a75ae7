"""Request bodies up to a limit: memory is not for whoever sends the largest body."""

from __future__ import annotations

from starlette.requests import Request

DEFAULT_MAX_REQUEST_BYTES = 512 * 1024 * 1024
"""A long conversation with images; a limit for mistakes, not for budgets."""


async def body_within(request: Request, limit: int) -> bytes | None:
    """Return the request's body; None when it is larger than `limit` bytes, which are then not read."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit():
        # The server underneath reads no more than was declared.
        return await request.body() if int(declared) <= limit else None
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            return None
        pieces.append(piece)
    return b"".join(pieces)

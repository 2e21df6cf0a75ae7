"""Request bodies up to a limit: memory is not for whoever sends the largest body."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import ClientDisconnect, Request

DEFAULT_MAX_REQUEST_BYTES = 512 * 1024 * 1024
"""A long conversation with images; a limit for mistakes, not for budgets."""


async def body_within(request: Request, limit: int) -> bytes | None:
    """Return the request's body; None when it is larger than `limit` bytes, which are then not read.

    The request keeps the body, for a handler that asks for it again. Raises ClientDisconnect.
    """
    declared = _declared_length(request.scope["headers"])
    # The server underneath reads no more than was declared.
    if declared is not None and declared > limit:
        return None
    pieces: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        piece = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(piece)
        if size > limit:
            return None
        pieces.append(piece)
    body = request._body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return body


def _declared_length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    for name, value in headers:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None

"""Encoded JSON as an answer; apart from `web`, so that the head server needs no more than Starlette."""

from __future__ import annotations

from starlette.responses import Response


def json_answer(content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return encoded JSON as a response."""
    return Response(content, status_code=status, headers=headers, media_type="application/json")

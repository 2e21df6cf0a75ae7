"""Passing a model call on to a backend of the same dialect: its bytes are the answer, streamed as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from nemo_gym.capture.execution import report_execution
from nemo_gym.dialects.errors import error_body
from nemo_gym.dialects.names import Dialect
from nemo_gym.records import codec
from nemo_gym.servers.event_stream import EventStream, error_event
from nemo_gym.servers.upstream import BAD_GATEWAY, GATEWAY_TIMEOUT, UpstreamError
from nemo_gym.servers.upstream_client import UpstreamClient, UpstreamReply


async def forward(
    client: UpstreamClient, path: str, body: Mapping[str, Any], *, dialect: Dialect, request: Request
) -> Response:
    """Send `body` to the backend and return its answer untouched. Raises UpstreamError for a refusal."""
    reply = await _post(client, path, body, dialect=dialect, request=request)
    if reply.content_type.lower().startswith("text/event-stream"):
        return EventStream(_chunks(reply, dialect))
    return Response(await reply.read(), headers={"content-type": reply.content_type})


async def forward_for_object(
    client: UpstreamClient, path: str, body: Mapping[str, Any], *, dialect: Dialect, request: Request
) -> dict[str, Any]:
    """Send `body` to the backend and return its JSON object, for an answer in another dialect.

    Raises UpstreamError for a refusal, and for an answer that is no JSON object.
    """
    reply = await _post(client, path, body, dialect=dialect, request=request)
    content = await reply.read()
    try:
        return codec.decode_object(content)
    except ValueError as error:
        raise UpstreamError(
            f"the model at `{client.settings.base_url}{path}` answered with no JSON object: {error}",
            server=client.settings.base_url,
            body=content[:2000],
            dialect=dialect,
        ) from error


async def _post(
    client: UpstreamClient, path: str, body: Mapping[str, Any], *, dialect: Dialect, request: Request
) -> UpstreamReply:
    attempts: list[dict[str, Any]] = []
    report_execution(request, upstream_attempted=True)
    try:
        reply = await client.post(path, codec.encode(dict(body)), dialect=dialect, attempts=attempts)
    except UpstreamError as refusal:
        report_execution(request, upstream=attempts, upstream_status_code=refusal.status)
        raise
    report_execution(request, upstream=attempts, response_source="upstream")
    return reply


async def _chunks(reply: UpstreamReply, dialect: Dialect) -> AsyncIterator[bytes]:
    """Yield the backend's bytes; a stream that breaks off ends with the dialect's own error event."""
    try:
        async for chunk in reply.chunks():
            yield chunk
    except UpstreamError as error:
        status = GATEWAY_TIMEOUT if error.code == "upstream_timeout" else BAD_GATEWAY
        yield error_event(dialect, error_body(dialect, status=status, message=str(error)))

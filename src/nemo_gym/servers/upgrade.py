"""WebSocket upgrades of `/v1/responses`, answered at once: a client that hears 426 falls back to plain HTTP.

Left alone, the upgrade would look like a wrong path, and some clients would try it again and again.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from nemo_gym.capture.correlation import split_rollout_path
from nemo_gym.dialects.errors import error_body
from nemo_gym.records import codec
from nemo_gym.servers.answers import json_answer

_PATH = "/v1/responses"
_MESSAGE = "this server does not speak WebSocket; POST /v1/responses with `stream: true` streams over HTTP"


def upgrade_refusals() -> list[BaseRoute]:
    """Return the routes that answer an upgrade, in whichever way the HTTP server hands it on."""
    return [Route(_PATH, _answer_get, methods=["GET"]), _WebSocketRefusal()]


async def _answer_get(request: Request) -> Response:
    if request.headers.get("upgrade", "").lower() == "websocket":
        return _refusal()
    return json_answer(
        codec.encode(error_body("responses", status=405, message="POST is the method of this path")),
        405,
        {"allow": "POST"},
    )


def _refusal() -> Response:
    body = error_body("responses", status=426, message=_MESSAGE, code="upgrade_not_supported")
    return json_answer(codec.encode(body), 426)


class _WebSocketRefusal(BaseRoute):
    """Takes every WebSocket of the path, with or without a rollout's prefix."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match WebSockets of the path."""
        if scope["type"] != "websocket":
            return Match.NONE, {}
        route = split_rollout_path(scope["path"], scope.get("raw_path"))
        path = scope["path"] if route is None else route.rest
        return (Match.FULL, {}) if path.rstrip("/") == _PATH else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 426, or close where the server has no way to answer."""
        await receive()
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": _MESSAGE})
            return
        answer = _refusal()
        await send({"type": "websocket.http.response.start", "status": 426, "headers": answer.raw_headers})
        await send({"type": "websocket.http.response.body", "body": bytes(answer.body)})

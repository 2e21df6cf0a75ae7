"""The model routes as one route that looks the path up: matching them one by one costs more than it has to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from starlette._utils import get_route_path
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.dialects.names import MODEL_CALL_PATHS

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


class ModelRoutes(BaseRoute):
    """POST to the given paths. Other methods are answered by ordinary routes behind it."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints = dict(endpoints)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a POST to one of the paths."""
        if scope["type"] == "http" and scope["method"] == "POST":
            path = get_route_path(scope) if scope.get("root_path") else scope["path"]
            endpoint = self._endpoints.get(path)
            if endpoint is not None:
                return Match.FULL, {"endpoint": endpoint, "path_params": {}}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; exceptions go to the handlers of the app, as those of every route do."""
        response = await scope["endpoint"](Request(scope, receive, send))
        await response(scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        """Name no route: the ordinary routes have names."""
        raise NoMatchFound(name, path_params)


def no_such_route(default: ASGIApp) -> ASGIApp:
    """Return what answers a path that no route has: 404, and what a client's base URL has to look like."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            served = ", ".join(f"`{path}`" for path in MODEL_CALL_PATHS)
            raise HTTPException(
                404,
                f"`{scope['path']}` is no route of a model server; model calls are POSTed to {served}. The base URL of "
                "an OpenAI client ends in `/v1`, that of an Anthropic client before it, and a conversation's name in "
                "the URL is quoted: `/` in it is `%2F`",
            )
        await default(scope, receive, send)

    return answer

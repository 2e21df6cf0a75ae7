"""The MCP endpoint of a server: streamable HTTP without state, every answer plain JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from nemo_gym.records import codec

PROTOCOL_VERSIONS: Final = ("2025-06-18", "2025-03-26", "2024-11-05")
"""Newest first; a client that asks for another one is offered the newest."""

_PARSE_ERROR, _INVALID_REQUEST, _METHOD_NOT_FOUND, _INVALID_PARAMS = -32700, -32600, -32601, -32602

Result: TypeAlias = dict[str, Any]
Method: TypeAlias = Callable[[Request, Mapping[str, Any]], Awaitable[Result]]


class InvalidParamsError(ValueError):
    """The parameters of a method are not what it takes."""


class McpEndpoint:
    """Answers JSON-RPC messages; `methods` holds what the server adds to `initialize` and `ping`."""

    def __init__(self, *, name: str, version: str, methods: Mapping[str, Method]) -> None:
        self._info = {"name": name, "version": version}
        self._methods: Mapping[str, Method] = {"initialize": self._initialize, "ping": self._ping, **methods}

    async def __call__(self, request: Request) -> Response:
        """Answer one request; there is no stream to open and no session to end, so anything but POST is refused."""
        if request.method != "POST":
            return Response(status_code=405, headers={"Allow": "POST"})
        try:
            message = codec.decode(await request.body())
        except ValueError as error:
            return _json(_failure(None, _PARSE_ERROR, f"the body is no JSON: {error}"), status=400)
        if not isinstance(message, list):
            answer = await self._answer(request, message)
            return Response(status_code=202) if answer is None else _json(answer)
        answers = [answer for part in message if (answer := await self._answer(request, part)) is not None]
        return _json(answers) if answers else Response(status_code=202)

    async def _answer(self, request: Request, message: object) -> Result | None:
        """Return the answer to one message, or None for one that wants none."""
        if not isinstance(message, dict) or not isinstance(message.get("method", ""), str):
            return _failure(None, _INVALID_REQUEST, "a message is a JSON-RPC object")
        if "id" not in message or "method" not in message:
            return None
        method = self._methods.get(message["method"])
        if method is None:
            return _failure(message["id"], _METHOD_NOT_FOUND, f"there is no method `{message['method']}`")
        params = message.get("params") or {}
        if not isinstance(params, dict):
            return _failure(message["id"], _INVALID_PARAMS, "`params` is a JSON object")
        try:
            result = await method(request, params)
        except InvalidParamsError as error:
            return _failure(message["id"], _INVALID_PARAMS, str(error))
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    async def _initialize(self, _request: Request, params: Mapping[str, Any]) -> Result:
        asked = params.get("protocolVersion")
        version = asked if asked in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[0]
        return {"protocolVersion": version, "capabilities": {"tools": {"listChanged": False}}, "serverInfo": self._info}

    async def _ping(self, _request: Request, _params: Mapping[str, Any]) -> Result:
        return {}


def _failure(message_id: object, code: int, text: str) -> Result:
    return {"jsonrpc": "2.0", "id": message_id, "error": {"code": code, "message": text}}


def _json(value: object, *, status: int = 200) -> Response:
    return Response(codec.encode(value), status_code=status, media_type="application/json")

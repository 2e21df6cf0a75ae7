"""A resources server's tools over MCP: `expose_tools_over_mcp`.

The token that `/seed_session` hands out names the session, so that a client which keeps no cookies plays in the session
that `/verify` scores. The routes stay as they are: a tool is the same handler, called with the same body.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from fastapi import FastAPI
from fastapi.routing import APIRoute
from itsdangerous import BadData, URLSafeSerializer
from starlette.requests import Request
from starlette.routing import Match, Route
from starlette.types import Scope

from nemo_gym import __version__
from nemo_gym.capture.correlation import RolloutContextMiddleware
from nemo_gym.errors import ConfigError
from nemo_gym.records import codec
from nemo_gym.servers.boundary import ExceptionMiddleware
from nemo_gym.servers.mcp_calls import Answer, call, changed
from nemo_gym.servers.mcp_names import NEMO_GYM_MCP_METADATA_KEY, NEMO_GYM_MCP_SESSION_TOKEN_HEADER
from nemo_gym.servers.mcp_protocol import InvalidParamsError, McpEndpoint, Result
from nemo_gym.servers.mcp_tools import MCP_PATH, CatchAll, McpTool, checked, harvest
from nemo_gym.servers.session_types import MCPServerMetadata
from nemo_gym.servers.sessions import SESSION_ID_KEY, SessionMiddleware, server_signing_key

_SALT = "nemo-gym-mcp-session"
_ROUTED = ("route", "endpoint", "path_params", "fastapi")
"""What routing leaves in a request's scope."""
_OWN_MIDDLEWARE = (SessionMiddleware, RolloutContextMiddleware)

Allowed: TypeAlias = Sequence[str] | None


class SessionBody(dict[str, Any]):
    """What a session is seeded with; its keys are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


class McpExposure:
    """Puts a server's tools on `/mcp` of its app."""

    def __init__(
        self,
        app: FastAPI,
        *,
        name: str,
        signing_name: str,
        choose: Callable[[list[McpTool], CatchAll | None], Iterable[McpTool] | None],
        allowed_for: Callable[[Any], Allowed],
        normalize: Callable[[str], str],
    ) -> None:
        self._app, self._name = app, name
        self._allowed_for, self._normalize = allowed_for, normalize
        self._signer = URLSafeSerializer(server_signing_key(signing_name), salt=_SALT)
        self._check_room()
        harvested, catch_all = harvest(app)
        self._tools = {tool.name: tool for tool in checked(choose(harvested, catch_all), catch_all)}

    def install(self) -> None:
        """Change the app: `/mcp` in front, and the routes of a session know the token."""
        for path, body, answer in (
            ("/seed_session", _same, self._with_metadata),
            ("/verify", self._with_own_names, self._with_given_names),
        ):
            for route in self._app.router.routes:
                if isinstance(route, APIRoute) and route.path == path:
                    route.app = changed(route.app, body=body, answer=answer)
        methods = {"tools/list": self._list, "tools/call": self._call}
        endpoint = McpEndpoint(name=self._name, version=__version__, methods=methods)
        verbs = ["GET", "POST", "DELETE"]
        paths = (MCP_PATH, f"{MCP_PATH}/{{rest:path}}")
        self._app.router.routes[:0] = [Route(path, endpoint.__call__, methods=verbs) for path in paths]

    def _check_room(self) -> None:
        probe = {"type": "http", "method": "POST", "path": MCP_PATH, "headers": [], "root_path": ""}
        for route in self._app.router.routes:
            path = str(getattr(route, "path", ""))
            if "{" not in path and route.matches(probe)[0] is not Match.NONE:
                raise ConfigError(f"`{self._name}` has a route `{path}` of its own; `expose_tools_over_mcp` needs it")
        for middleware in self._app.user_middleware:
            cls: object = middleware.cls
            if cls not in _OWN_MIDDLEWARE:
                named = getattr(cls, "__name__", cls)
                raise ConfigError(
                    f"`{self._name}` adds the middleware `{named}`, which MCP calls would not pass; take it off, or "
                    "leave `expose_tools_over_mcp` out"
                )

    # -- a session and its token

    async def _with_metadata(self, scope: Scope, given: bytes, answer: dict[str, Any]) -> dict[str, Any]:
        body = _object_of(given)
        is_typed = "resources_session_id" in answer
        key = "resources_tools" if is_typed else NEMO_GYM_MCP_METADATA_KEY
        if answer.get(key) is not None:
            return answer
        seeded = body.get("task_data") if is_typed else body
        allowed = self._allowed_for(SessionBody(seeded if isinstance(seeded, dict) else {}))
        tools = None if allowed is None else list(allowed)
        token = self._signer.dumps({"sid": scope["session"].get(SESSION_ID_KEY), "tools": tools})
        headers = {NEMO_GYM_MCP_SESSION_TOKEN_HEADER: str(token)}
        return {**answer, key: MCPServerMetadata(server_name=self._name, headers=headers).model_dump()}

    def _session_of(self, request: Request) -> tuple[str, Allowed] | None:
        """Return the session and the tools of the request's token, or None without a good one."""
        try:
            claims = self._signer.loads(request.headers.get(NEMO_GYM_MCP_SESSION_TOKEN_HEADER, ""))
        except BadData:
            return None
        return str(claims["sid"]), claims["tools"]

    # -- names in what is scored

    def _with_own_names(self, given: bytes) -> bytes:
        body = _object_of(given)
        renamed = copy.deepcopy(body)
        for item in _function_calls(renamed):
            item["name"] = self._normalize(item["name"])
        return given if renamed == body else codec.encode(renamed)

    async def _with_given_names(self, _scope: Scope, given: bytes, answer: dict[str, Any]) -> dict[str, Any]:
        names = {item.get("call_id"): item["name"] for item in _function_calls(_object_of(given))}
        for item in _function_calls(answer):
            item["name"] = names.get(item.get("call_id"), item["name"])
        return answer

    # -- methods

    async def _list(self, request: Request, _params: Mapping[str, Any]) -> Result:
        session = self._session_of(request)
        tools = self._tools.values() if session is None else self._allowed_tools(session[1])
        return {
            "tools": [
                {"name": tool.name, "description": tool.description, "inputSchema": dict(tool.input_schema)}
                for tool in tools
            ]
        }

    def _allowed_tools(self, allowed: Allowed) -> list[McpTool]:
        return [tool for tool in self._tools.values() if allowed is None or tool.name in allowed]

    async def _call(self, request: Request, params: Mapping[str, Any]) -> Result:
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise InvalidParamsError("`name` is the name of a tool, and `arguments` an object")
        session = self._session_of(request)
        if session is None:
            return _failed(
                f"a tool is called with the header `{NEMO_GYM_MCP_SESSION_TOKEN_HEADER}` that `/seed_session` answered"
            )
        known = {tool.name: tool for tool in self._allowed_tools(session[1])}
        if name not in known:
            return _failed(f"there is no tool `{name}`; the tools are {', '.join(f'`{each}`' for each in known)}")
        return await self._dispatch(request, known[name], session[0], arguments)

    async def _dispatch(self, request: Request, tool: McpTool, session_id: str, arguments: dict[str, Any]) -> Result:
        body = codec.encode(arguments)
        length = str(len(body)).encode()
        scope = {
            **{key: value for key, value in request.scope.items() if key not in _ROUTED},
            "method": "POST",
            "path": f"{request.scope.get('root_path', '')}{tool.path}",
            "raw_path": tool.path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"content-length", length)],
            "session": {SESSION_ID_KEY: session_id},
            "state": dict(request.scope.get("state") or {}),
        }
        # What a handler raises is answered as it is over HTTP.
        app = ExceptionMiddleware(self._app.router, name=self._name)
        answer = await call(app, scope, body)
        return _result(tool.name, answer)


def _result(name: str, answer: Answer) -> Result:
    text, value = answer.body.decode("utf-8", "replace"), answer.decoded()
    if answer.status >= 400:
        detail = value.get("detail", value) if isinstance(value, dict) else value if isinstance(value, str) else text
        shown = detail if isinstance(detail, str) else codec.encode(detail).decode()
        return _failed(f"HTTP {answer.status} from POST /{name}: {shown}")
    result: Result = {"content": [{"type": "text", "text": text}], "isError": False}
    if isinstance(value, dict):
        result["structuredContent"] = value
    return result


def _failed(text: str) -> Result:
    return {"content": [{"type": "text", "text": text}], "isError": True}


def _same(given: bytes) -> bytes:
    return given


def _object_of(given: bytes) -> dict[str, Any]:
    """Return a body's JSON object; {} for another body, which the route itself refuses."""
    try:
        return dict(codec.decode_object(given))
    except ValueError:
        return {}


def _function_calls(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    response = body.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    return [
        item
        for item in (output if isinstance(output, list) else ())
        if isinstance(item, dict) and item.get("type") == "function_call" and isinstance(item.get("name"), str)
    ]

"""The tools of one rollout, at a URL that only its program knows: calls are passed on with the session's cookies.

The resources server has other routes, its verifier among them; only what the task declares as a tool is passed on.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from starlette.requests import Request
from starlette.responses import Response

from nemo_gym.builtin.responses_api_agents.simple_agent.tool_names import declared_tools, refusal
from nemo_gym.errors import RemoteError
from nemo_gym.records import codec
from nemo_gym.rollout_correlation import rollout_context
from nemo_gym.server_utils import ServerClient

TOOLS_PATH = "/tools/{key}/{name}"


@dataclass(slots=True)
class ToolSession:
    """The tools of one rollout. `unreachable` says why the resources server did not answer, once it did not."""

    declared: frozenset[str]
    cookies: dict[str, str]
    rollout_id: str | None
    key: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    unreachable: str | None = None


class ToolRelay:
    """Passes tool calls on to a resources server."""

    def __init__(self, client: ServerClient, resources_server: str | None) -> None:
        self._client, self._server = client, resources_server
        self._sessions: dict[str, ToolSession] = {}

    @contextmanager
    def session(
        self, params: Mapping[str, Any], cookies: Mapping[str, str], rollout_id: str | None
    ) -> Iterator[ToolSession]:
        """Open the tools that a task declares for the duration of the block."""
        session = ToolSession(declared_tools(params), dict(cookies), rollout_id)
        self._sessions[session.key] = session
        try:
            yield session
        finally:
            del self._sessions[session.key]

    async def call(self, request: Request) -> Response:
        """Answer one tool call: status and body are the tool's own."""
        session = self._sessions.get(request.path_params["key"])
        name = request.path_params["name"]
        if session is None:
            return _error(404, "this rollout has ended")
        if self._server is None:
            return _error(400, "this agent has no `resources_server`, and so no tools")
        if (refused := refusal(name, session.declared)) is not None:
            return _error(400, refused.message)
        try:
            with rollout_context(session.rollout_id):
                answer = await self._client.post(
                    server_name=self._server,
                    url_path=f"/{name}",
                    data=await request.body() or b"{}",
                    headers={"Content-Type": "application/json"},
                    cookies=session.cookies,
                )
            content = await answer.read()
        except (RemoteError, aiohttp.ClientError, TimeoutError) as error:
            session.unreachable = f"tool `{name}`: {type(error).__name__}: {error}"
            return _error(502, session.unreachable)
        session.cookies |= {cookie: morsel.value for cookie, morsel in answer.cookies.items()}
        return Response(content, status_code=answer.status, media_type=answer.content_type)


def _error(status: int, message: str) -> Response:
    return Response(codec.encode({"error": message}), status_code=status, media_type="application/json")

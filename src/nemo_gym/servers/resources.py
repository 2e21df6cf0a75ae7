"""The base of resources servers: tasks, their tools, and the verifier."""

from __future__ import annotations

from abc import abstractmethod
from enum import StrEnum
from typing import Any, ClassVar, cast

from fastapi import FastAPI

from nemo_gym.analysis import AggregateMetricsMixin
from nemo_gym.capture.correlation import RolloutContextMiddleware
from nemo_gym.servers.base import BaseServer, SimpleServer
from nemo_gym.servers.judging import judge_failsafe
from nemo_gym.servers.mcp_names import (
    NEMO_GYM_MCP_METADATA_KEY,
    NEMO_GYM_MCP_SESSION_TOKEN_HEADER,
    RESERVED_MCP_TOOL_NAMES,
)
from nemo_gym.servers.metrics import AggregateMetrics, AggregateMetricsRequest, compute_aggregate_metrics
from nemo_gym.servers.run_types import BaseSeedSessionRequest, BaseSeedSessionResponse
from nemo_gym.servers.server_config import BaseRunServerInstanceConfig
from nemo_gym.servers.session_types import (
    ResourcesCloseSessionRequest,
    ResourcesCloseSessionResponse,
    ResourcesSeedSessionRequest,
    ResourcesSeedSessionResponse,
)
from nemo_gym.servers.web import new_app

__all__ = [
    "NEMO_GYM_MCP_METADATA_KEY",
    "NEMO_GYM_MCP_SESSION_TOKEN_HEADER",
    "RESERVED_MCP_TOOL_NAMES",
    "BaseResourcesServer",
    "BaseResourcesServerConfig",
    "ReverifyMode",
    "SimpleResourcesServer",
    "normalize_tool_name",
]

_MCP_PREFIX = "mcp__"


class ReverifyMode(StrEnum):
    """Whether recorded rollouts can be scored again."""

    STATELESS = "stateless"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


class BaseResourcesServerConfig(BaseRunServerInstanceConfig):
    """A resources server's own configuration; subclasses add fields, unknown keys are ignored."""

    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNKNOWN

    expose_tools_over_mcp: bool = False


class BaseResourcesServer(BaseServer):
    """A server that owns tasks."""

    config: BaseResourcesServerConfig


class SimpleResourcesServer(BaseResourcesServer, AggregateMetricsMixin, SimpleServer):
    """Write `verify`, and `seed_session`, tools and metric hooks where the tasks need them.

    The annotations of an override decide how its body is parsed and how its answer is filtered. A handler may also take
    `request: Request`, in any position.
    """

    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        """Return the app; an override calls this one and adds its tools as POST routes."""
        app = new_app()
        self.setup_session_middleware(app)
        app.add_middleware(cast(Any, RolloutContextMiddleware))
        app.post("/seed_session")(self.seed_session)
        app.post("/close_session")(self.close_resources_session)
        app.post("/verify")(judge_failsafe(self.verify))
        app.post("/aggregate_metrics")(self.aggregate_metrics)
        app.get("/reverify_mode")(self.get_reverify_mode)
        return app

    def finish_webserver(self, app: FastAPI) -> None:
        """Offer the tools over MCP where the configuration asks for it."""
        if self.config.expose_tools_over_mcp:
            from nemo_gym.servers.mcp_exposure import McpExposure  # only with it

            McpExposure(
                app,
                name=self.config.name,
                signing_name=self.get_session_middleware_key(),
                choose=self.mcp_tools,
                allowed_for=self.mcp_allowed_tools_for_session,
                normalize=self.normalize_tool_name,
            ).install()

    async def seed_session(
        self, body: ResourcesSeedSessionRequest | BaseSeedSessionRequest
    ) -> ResourcesSeedSessionResponse | BaseSeedSessionResponse:
        """Open a session; a typed body names it, any other body is accepted as it is."""
        if isinstance(body, ResourcesSeedSessionRequest):
            return ResourcesSeedSessionResponse(resources_session_id=body.resources_session_id)
        return BaseSeedSessionResponse()

    @abstractmethod
    async def verify(self, *args: Any, **kwargs: Any) -> Any:
        """Score what the agent did: `body`, a verify request, in; a verify response out."""

    async def close_resources_session(self, body: ResourcesCloseSessionRequest) -> ResourcesCloseSessionResponse:
        """Release a session; a server that holds state overrides this, and raises when the release fails."""
        return ResourcesCloseSessionResponse(resources_session_id=body.resources_session_id)

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        """Return the metrics of result rows, with this server's hooks."""
        return compute_aggregate_metrics(
            body.verify_responses,
            compute_metrics_fn=self.compute_metrics,
            get_key_metrics_fn=self.get_key_metrics,
            compute_repeat_metrics_fn=self.compute_repeat_metrics,
        )

    async def get_reverify_mode(self) -> ReverifyMode:
        """Return whether recorded rollouts can be scored again."""
        return self.config.REVERIFY_MODE

    def normalize_tool_name(self, name: str) -> str:
        """Return a tool's own name where a client has prefixed it with this server's."""
        return normalize_tool_name(name, self.config.name)

    def mcp_tools(self, harvested: list[Any], catchall: Any = None) -> list[Any] | None:
        """Choose which POST routes are offered as MCP tools; by default all, and none through the catch-all.

        `catchall`, the POST route with a path parameter, makes further ones: `catchall.tool(name, schema, text)`.
        """
        return harvested

    def mcp_allowed_tools_for_session(self, body: Any) -> list[str] | None:
        """Choose which tools one session may call; None is all. `body` is the row that it was seeded with."""
        return None


def normalize_tool_name(name: str, server_name: str | None = None) -> str:
    """Return a tool's name without the prefix `mcp__<server>__` of an MCP client.

    With `server_name` only that server's prefix is taken off; without, whatever is before the next `__`.
    """
    if not name.startswith(_MCP_PREFIX):
        return name
    if server_name is not None:
        return name.removeprefix(f"{_MCP_PREFIX}{server_name}__")
    _, separator, own = name.removeprefix(_MCP_PREFIX).partition("__")
    return own if separator and own else name

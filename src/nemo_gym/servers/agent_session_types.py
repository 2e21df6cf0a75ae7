"""Bodies of agent sessions: an agent that acts several times within one episode, for an environment server."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.records.observation_models import AgentObservationBundle
from nemo_gym.records.sandbox_access import SandboxAccess
from nemo_gym.servers.session_types import EpisodeId, TaskId


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DirectHttpToolAccess(_Strict):
    """Tools that are POST routes below a URL; `cookies` and `headers` go with every call."""

    kind: Literal["direct_http"] = "direct_http"
    name: str = Field(min_length=1)
    required: bool = True
    base_url: str
    cookies: dict[str, str] = Field(default_factory=dict)
    headers: dict[str, str] = Field(default_factory=dict)


class McpConnection(_Strict):
    """Where an MCP server is, and what proves that its tools may be called."""

    transport: Literal["streamable_http"] = "streamable_http"
    url: str
    headers: dict[str, str] = Field(default_factory=dict)


class McpToolAccess(_Strict):
    """Tools of an MCP server."""

    kind: Literal["mcp"] = "mcp"
    name: str = Field(min_length=1)
    required: bool = True
    connection: McpConnection


ToolAccess: TypeAlias = DirectHttpToolAccess | McpToolAccess


class AgentSeedSessionRequest(_Strict):
    """Opens a session; the same body again names the same session."""

    agent_session_id: Annotated[str, Field(min_length=1)]
    episode_id: EpisodeId
    task_id: TaskId
    tool_accesses: list[ToolAccess] = Field(default_factory=list)
    sandbox_access: SandboxAccess | None = None

    @model_validator(mode="after")
    def _unique_grants(self) -> AgentSeedSessionRequest:
        names = [grant.name for grant in self.tool_accesses]
        if len(names) != len(set(names)):
            raise ValueError(f"`tool_accesses` need unique names, these are {names}")
        return self


class AgentSeedSessionResponse(_Strict):
    """A session that is open; its cookie binds later calls to it."""

    agent_session_id: str


class AgentCloseSessionRequest(_Strict):
    """Closes a session; closing one that is unknown or closed is no error."""

    agent_session_id: Annotated[str, Field(min_length=1)]
    episode_id: EpisodeId


class AgentCloseSessionResponse(_Strict):
    """A session that is closed: what its agent observed, and the cookies that its tools set."""

    agent_session_id: str
    agent_observations: AgentObservationBundle | None = None
    resources_cookies: dict[str, Any] | None = None

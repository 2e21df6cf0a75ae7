"""Identities and bodies of typed sessions: an episode, a task, and a resources session opened for them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Generic, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from nemo_gym.records.failure_kinds import FailureStage
from nemo_gym.records.identity import check_rollout_id
from nemo_gym.records.sandbox_access import SandboxAccess

T = TypeVar("T")

_RESERVED_ENDING = re.compile(r"-a[1-9][0-9]*\Z")


def _episode_rollout_id(value: str) -> str:
    check_rollout_id(value)
    if _RESERVED_ENDING.search(value):
        raise ValueError(f"rollout id `{value}` must not end in `-a<n>`: the attempt is a field of its own")
    return value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class EpisodeId(_Strict):
    """One try at one rollout; `rollout_id` carries no attempt suffix."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rollout_id: Annotated[str, AfterValidator(_episode_rollout_id)]
    attempt: int = Field(default=0, ge=0)

    @property
    def capture_key(self) -> str:
        """The id under which model calls of this try are captured."""
        return f"{self.rollout_id}-a{self.attempt}" if self.attempt else self.rollout_id


class TaskId(_Strict):
    """A task within a taskset."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    taskset: str
    task_id: str


class MaterializedTask(BaseModel, Generic[T]):
    """A task with the input that an environment runs it on."""

    task_id: TaskId
    task_input: T


class EpisodeFailure(_Strict):
    """Why an episode has no result; `terminal` says that another try is useless."""

    failure_reason: str = Field(max_length=2000)
    terminal: bool
    failure_kind: str | None = None
    stage: FailureStage | None = None

    @model_serializer(mode="wrap")
    def _without_unknowns(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        dumped: dict[str, Any] = handler(self)
        return {key: value for key, value in dumped.items() if value is not None}


class BaseEpisodeRequest(BaseModel, Generic[T]):
    """Asks for an episode of a task."""

    episode_id: EpisodeId
    task: MaterializedTask[T]


class BaseEpisodeResponse(BaseModel, Generic[T]):
    """A finished episode: a result or a failure, never both."""

    episode_id: EpisodeId
    task_id: TaskId
    result: T | None = None
    failure: EpisodeFailure | None = None

    @model_validator(mode="after")
    def _one_outcome(self) -> BaseEpisodeResponse[T]:
        if (self.result is None) == (self.failure is None):
            raise ValueError("an episode has a `result` or a `failure`, exactly one of them")
        return self


class MCPServerMetadata(BaseModel):
    """How a client reaches the tools of a session over MCP; `headers` prove that it may."""

    server_name: str
    url_path: str = "/mcp"
    transport: str = "http"
    headers: dict[str, str] = Field(default_factory=dict)


class ResourcesSeedSessionRequest(_Strict):
    """Opens a session; the same id again names the same session."""

    resources_session_id: str = Field(min_length=1)
    episode_id: EpisodeId
    task_id: TaskId
    task_data: dict[str, Any]


class ResourcesSeedSessionResponse(_Strict):
    """A session that is open."""

    resources_session_id: str
    resources_tools: MCPServerMetadata | None = None
    sandbox_access: SandboxAccess | None = None


class ResourcesVerifyRequest(_Strict, Generic[T]):
    """Asks for the verdict on an episode."""

    episode_id: EpisodeId
    task_id: TaskId
    verification_input: T


class ResourcesCloseSessionRequest(_Strict):
    """Closes a session; closing one that is unknown or closed is no error."""

    resources_session_id: str
    episode_id: EpisodeId


class ResourcesCloseSessionResponse(_Strict):
    """A session that is closed."""

    resources_session_id: str

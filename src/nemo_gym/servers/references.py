"""References from one server's configuration to another server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from pydantic import BaseModel, ValidationError


class ModelServerRef(BaseModel):
    """Names a model server."""

    type: Literal["responses_api_models"]
    name: str


class ResourcesServerRef(BaseModel):
    """Names a resources server."""

    type: Literal["resources_servers"]
    name: str


class AgentServerRef(BaseModel):
    """Names an agent server."""

    type: Literal["responses_api_agents"]
    name: str


class EnvironmentServerRef(BaseModel):
    """Names an environment server."""

    type: Literal["environment_servers"]
    name: str


ServerRef: TypeAlias = ModelServerRef | ResourcesServerRef | AgentServerRef | EnvironmentServerRef

_REFS: dict[str, type[ServerRef]] = {
    "responses_api_models": ModelServerRef,
    "resources_servers": ResourcesServerRef,
    "responses_api_agents": AgentServerRef,
    "environment_servers": EnvironmentServerRef,
}


def is_server_ref(value: object) -> ServerRef | None:
    """Return the reference that `value` is, or None; further keys do not disqualify."""
    if not isinstance(value, Mapping):
        return None
    kind = value.get("type")
    ref = _REFS.get(kind) if isinstance(kind, str) else None
    if ref is None:
        return None
    try:
        return ref.model_validate({"type": kind, "name": value.get("name")})
    except ValidationError:
        return None

"""How an agent reaches a sandbox that somebody else opened: what a session's answer carries over the wire."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class DirectSandboxConnection(BaseModel):
    """A sandbox that is reached through its provider.

    `provider_config_ref` names a block of the configuration; `descriptor` is what `AsyncSandbox.serialize` returned.
    """

    model_config = ConfigDict(extra="forbid")

    kind: Literal["direct"] = "direct"
    provider_config_ref: str
    descriptor: dict[str, Any]


class SandboxAccess(BaseModel):
    """How an agent reaches the sandbox of a session, and where it works inside."""

    model_config = ConfigDict(extra="forbid")

    connection: DirectSandboxConnection
    workdir: str | None = None

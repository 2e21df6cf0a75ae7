"""Public path of how an agent reaches a sandbox that somebody else opened."""

from __future__ import annotations

from nemo_gym.records.sandbox_access import DirectSandboxConnection, SandboxAccess

__all__ = ["DirectSandboxConnection", "SandboxAccess"]

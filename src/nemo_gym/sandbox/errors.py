"""Why there is no sandbox."""

from __future__ import annotations

from nemo_gym.errors import BoundaryError


class SandboxCreateError(BoundaryError, RuntimeError):
    """A sandbox could not be created, or was not ready in time."""


class SandboxCreateVerificationError(SandboxCreateError):
    """A sandbox was created, and is not what was asked for."""

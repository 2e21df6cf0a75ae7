"""What a sandbox provider offers. A handle is the provider's own; nobody else looks into it.

What only some providers can do is a protocol of its own, checked at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from nemo_gym.sandbox.spec import SandboxExecResult, SandboxSpec, SandboxStatus


@runtime_checkable
class SandboxProvider(Protocol):
    """Creates sandboxes and works in them."""

    async def create(self, spec: SandboxSpec) -> Any:
        """Create a sandbox and return its handle. Raises `SandboxCreateError`."""
        ...

    async def exec(
        self,
        handle: Any,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
        preserve_background_services: bool = False,
    ) -> SandboxExecResult:
        """Run a shell command and return how it ended; a command that fails or takes too long is a result."""
        ...

    async def upload_file(self, handle: Any, local: str | Path, remote: str) -> None:
        """Copy a local file into the sandbox."""
        ...

    async def download_file(self, handle: Any, remote: str, local: str | Path) -> None:
        """Copy a file of the sandbox to a local path."""
        ...

    async def status(self, handle: Any) -> SandboxStatus:
        """Return what the sandbox does."""
        ...

    async def close(self, handle: Any) -> None:
        """End the sandbox; one that is gone is no error."""
        ...

    async def aclose(self) -> None:
        """Release what the provider itself holds."""
        ...


@runtime_checkable
class ConnectableProvider(Protocol):
    """Can hand a running sandbox to another process."""

    async def serialize_handle(self, handle: Any, *, scope: str | None = None) -> dict[str, Any]:
        """Return plain data that `connect` of the same kind of provider understands."""
        ...

    async def connect(self, descriptor: Mapping[str, Any]) -> Any:
        """Return a handle of the sandbox behind a descriptor."""
        ...


@runtime_checkable
class PausableProvider(Protocol):
    """Can hold a sandbox still."""

    async def pause(self, handle: Any) -> None:
        """Hold everything in the sandbox."""
        ...

    async def resume(self, handle: Any) -> None:
        """Let it go on."""
        ...


@runtime_checkable
class EndpointProvider(Protocol):
    """Can reach what listens in a sandbox."""

    async def endpoint(self, handle: Any, port: int) -> str:
        """Return the URL under which a port of the sandbox is reached from here."""
        ...

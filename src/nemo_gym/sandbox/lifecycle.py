"""One sandbox from start to stop, whichever provider it comes from."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nemo_gym.sandbox.errors import SandboxCreateError
from nemo_gym.sandbox.providers.base import ConnectableProvider, EndpointProvider, PausableProvider, SandboxProvider
from nemo_gym.sandbox.registry import create_provider
from nemo_gym.sandbox.spec import SandboxExecResult, SandboxSpec, SandboxStatus

DEFAULT_EXEC_TIMEOUT_S = 180


class AsyncSandbox:
    """A sandbox: started once, used, stopped.

    `provider`: a provider, or `{name: settings}` of one to create. `owns_provider`: release the provider with the
    sandbox. As an async context manager it is started on entering and stopped on leaving; one that was connected to is
    only disconnected from. Using it before it is started, or after it was stopped, raises `RuntimeError`.
    """

    def __init__(
        self,
        provider: SandboxProvider | Mapping[str, Any],
        spec: SandboxSpec | None = None,
        *,
        owns_provider: bool = True,
    ) -> None:
        self._provider: SandboxProvider = create_provider(provider) if isinstance(provider, Mapping) else provider
        self._spec = spec
        self._owns_provider = owns_provider
        self._handle: Any = None
        self._started = False
        self._connected = False
        self._open = False

    @classmethod
    async def connect(
        cls,
        descriptor: Mapping[str, Any],
        *,
        provider: SandboxProvider | Mapping[str, Any],
        owns_provider: bool = True,
    ) -> Self:
        """Return a sandbox that runs already, from what `serialize` returned. Raises `RuntimeError` when the provider
        cannot connect."""
        sandbox = cls(provider, owns_provider=owns_provider)
        if not isinstance(sandbox._provider, ConnectableProvider):
            raise RuntimeError(f"sandbox provider `{type(sandbox._provider).__name__}` cannot connect to a sandbox")
        sandbox._handle = await sandbox._provider.connect(descriptor)
        sandbox._started = sandbox._connected = sandbox._open = True
        return sandbox

    async def start(self, spec: SandboxSpec | None = None) -> Self:
        """Create the sandbox and upload the files of its spec; stop it again when that fails.

        Raises `ValueError` without a spec, `RuntimeError` at a second start, `SandboxCreateError`.
        """
        if self._started:
            raise RuntimeError("the sandbox was started already")
        chosen = spec if spec is not None else self._spec
        if chosen is None:
            raise ValueError("a sandbox needs a `SandboxSpec`, here or when it is made")
        self._started = True
        self._spec = chosen
        ready = False
        try:
            await self._create(chosen)
            for remote, source in chosen.files.items():
                await self._put(source, remote)
            ready = True
        finally:
            if not ready:
                await self.stop()
        return self

    async def start_with_setup(self, spec: SandboxSpec | None, setup: Callable[[Self], Awaitable[Any]]) -> Self:
        """Start, then await `setup(sandbox)`; stop again when that fails."""
        await self.start(spec)
        ready = False
        try:
            await setup(self)
            ready = True
        finally:
            if not ready:
                await self.stop()
        return self

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = DEFAULT_EXEC_TIMEOUT_S,
        user: str | int | None = None,
        preserve_background_services: bool = False,
    ) -> SandboxExecResult:
        """Run a shell command, by default in the spec's `workdir`, for at most `timeout_s` seconds (None: no limit)."""
        handle = self._usable()
        if cwd is None and self._spec is not None:
            cwd = self._spec.workdir
        return await self._provider.exec(
            handle,
            command,
            cwd=cwd,
            env=env,
            timeout_s=timeout_s,
            user=user,
            preserve_background_services=preserve_background_services,
        )

    async def upload(self, local: str | Path, remote: str) -> None:
        """Copy a local file into the sandbox."""
        await self._provider.upload_file(self._usable(), local, remote)

    async def download(self, remote: str, local: str | Path) -> None:
        """Copy a file of the sandbox to a local path."""
        await self._provider.download_file(self._usable(), remote, local)

    async def status(self) -> SandboxStatus:
        """Return what the provider says; a sandbox that was stopped is `stopped`."""
        if self._started and not self._open:
            return SandboxStatus.STOPPED
        return await self._provider.status(self._usable())

    async def endpoint(self, port: int) -> str:
        """Return the URL of a port of the sandbox. Raises `RuntimeError` when the provider has none."""
        handle = self._usable()
        if not isinstance(self._provider, EndpointProvider):
            raise self._cannot("give endpoints")
        return await self._provider.endpoint(handle, port)

    async def pause(self) -> None:
        """Hold the sandbox. Raises `RuntimeError` when the provider cannot."""
        handle = self._usable()
        if not isinstance(self._provider, PausableProvider):
            raise self._cannot("pause")
        await self._provider.pause(handle)

    async def resume(self) -> None:
        """Let a paused sandbox go on. Raises `RuntimeError` when the provider cannot."""
        handle = self._usable()
        if not isinstance(self._provider, PausableProvider):
            raise self._cannot("resume")
        await self._provider.resume(handle)

    async def serialize(self, *, scope: str | None = None) -> dict[str, Any]:
        """Return plain data with which another process can `connect`. Raises `RuntimeError` when that cannot be."""
        handle = self._usable()
        if not isinstance(self._provider, ConnectableProvider):
            raise self._cannot("be connected to")
        return await self._provider.serialize_handle(handle, scope=scope)

    async def stop(self) -> None:
        """End the sandbox. May be called again, also after it failed; one that was never started is no error."""
        if self._open:
            await self._provider.close(self._handle)
            self._open, self._handle = False, None
        await self._release_provider()

    async def disconnect(self) -> None:
        """Leave a sandbox that was connected to, without ending it. Raises `RuntimeError` for any other."""
        if not self._connected:
            raise RuntimeError("only a sandbox that was connected to can be disconnected from; `stop` ends this one")
        self._open, self._handle = False, None
        await self._release_provider()

    async def __aenter__(self) -> Self:
        """Start, unless it runs already."""
        return self if self._open else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, or disconnect from what was connected to."""
        await (self.disconnect() if self._connected else self.stop())

    async def _create(self, spec: SandboxSpec) -> None:
        try:
            async with asyncio.timeout(spec.ready_timeout_s):
                self._handle = await self._provider.create(spec)
        except TimeoutError as error:
            raise SandboxCreateError(f"the sandbox was not ready after {spec.ready_timeout_s:g} s") from error
        self._open = True

    async def _put(self, source: Any, remote: str) -> None:
        if not isinstance(source, bytes):
            await self._provider.upload_file(self._handle, source, remote)
            return
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "content"
            file.write_bytes(source)
            await self._provider.upload_file(self._handle, file, remote)

    async def _release_provider(self) -> None:
        if self._owns_provider:
            self._owns_provider = False
            await self._provider.aclose()

    def _usable(self) -> Any:
        if not self._started:
            raise RuntimeError("the sandbox is not started; `await sandbox.start()` comes first")
        if not self._open:
            raise RuntimeError("the sandbox was stopped")
        return self._handle

    def _cannot(self, what: str) -> RuntimeError:
        return RuntimeError(f"sandboxes of provider `{type(self._provider).__name__}` cannot {what}")

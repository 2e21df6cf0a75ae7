"""One server process: how it is started, what it left in its log, how it is ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nemo_gym.config import ServerBlock

TAIL_LINES = 20
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInstance:
    """A started server. `start_time` is UTC Unix seconds; `log_file` holds its output."""

    name: str
    kind: str
    implementation: str
    directory: Path
    entrypoint: str
    host: str
    port: int
    pid: int
    start_time: float
    log_file: Path

    @property
    def url(self) -> str:
        """Base URL, without a slash at the end."""
        return f"http://{self.host}:{self.port}"

    def as_dict(self) -> dict[str, Any]:
        """Return the entry that the head server's `/server_instances` and `gym env status --json` show."""
        return {
            "name": self.name,
            "process_name": self.name,
            "config_path": self.name,
            "server_type": self.kind,
            "kind": self.kind,
            "implementation": self.implementation,
            "dir_path": str(self.directory),
            "entrypoint": self.entrypoint,
            "host": self.host,
            "port": self.port,
            "url": self.url,
            "pid": self.pid,
            "start_time": self.start_time,
            "log_file": str(self.log_file),
        }


class OwnProcess(Protocol):
    """A process that this one waits for."""

    @property
    def pid(self) -> int:
        """The process id."""
        ...

    @property
    def returncode(self) -> int | None:
        """The exit code once it has been waited for."""
        ...

    async def wait(self) -> int:
        """Wait for its end; return its exit code, negative for a signal."""
        ...


@dataclass(slots=True)
class ServerProcess:
    """A server and its operating-system process, which leads a session and a process group of its own."""

    instance: ServerInstance
    process: OwnProcess

    @classmethod
    async def start(
        cls, block: ServerBlock, *, log_file: Path, environment: Mapping[str, str], death_pipe: int
    ) -> ServerProcess:
        """Start `cd <directory>; python <entrypoint>`; its output goes to `log_file`. Does not wait until it serves."""
        assert block.directory is not None
        assert block.port is not None
        with log_file.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "nemo_gym.engine.local.child",
                block.entrypoint,
                cwd=block.directory,
                env=dict(environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(death_pipe,),
                start_new_session=True,
            )
        return cls.of(block, process, log_file=log_file)

    @classmethod
    def of(cls, block: ServerBlock, process: OwnProcess, *, log_file: Path) -> ServerProcess:
        """Return the server of `block`, which `process` has just begun to run."""
        assert block.directory is not None
        assert block.port is not None
        instance = ServerInstance(
            name=block.name,
            kind=block.kind,
            implementation=block.implementation,
            directory=block.directory,
            entrypoint=block.entrypoint,
            host=block.host,
            port=block.port,
            pid=process.pid,
            start_time=time.time(),
            log_file=log_file,
        )
        return cls(instance, process)

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self.process.returncode

    def signal_group(self, number: int) -> None:
        """Send a signal to the server and all that stayed in its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    async def stop(self, grace_s: float) -> None:
        """End the process group: SIGTERM, SIGKILL after `grace_s`. Returns when the process itself is reaped."""
        self.signal_group(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self.process.wait()
        except TimeoutError:
            self.signal_group(signal.SIGKILL)
            await self.process.wait()

    def describe_exit(self) -> str:
        """Say how the process ended."""
        code = self.exit_code
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-code).name}"
        return f"exited with code {code}"


def log_tail(log_file: Path, lines: int = TAIL_LINES) -> list[str]:
    """Return the last lines of a log, without line ends; [] when there is none."""
    try:
        with log_file.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-lines:]

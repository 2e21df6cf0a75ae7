"""One process per rollout, in a process group of its own, with a deadline; nothing of it outlives the rollout."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nemo_gym.sandbox.providers.processes import MARK_ENV, end_marked

STDOUT_BYTES = 16 * 1024**2
STDERR_TAIL_BYTES = 8 * 1024
REPORT_BYTES = 256 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended. `exit_code` is negative for a signal; times are UTC Unix seconds and milliseconds.

    `stdout` is the first 16 MiB of what it printed, `stderr_tail` the last 8 KiB of its other output.
    """

    exit_code: int
    timed_out: bool
    stdout: str
    stderr_tail: str
    started_at: float
    duration_ms: float

    @property
    def succeeded(self) -> bool:
        """Whether it came to an end by itself, with exit code 0."""
        return self.exit_code == 0 and not self.timed_out

    def describe(self) -> str:
        """Say how it ended."""
        if self.timed_out:
            return f"was ended after {self.duration_ms / 1000:.0f} s, its deadline"
        if self.exit_code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-self.exit_code).name}"
        return f"ended with exit code {self.exit_code}"


async def run_process(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], mark: str, timeout_s: float, grace_s: float
) -> Ended:
    """Run a program to its end, or to its deadline; raises OSError when it cannot be started.

    At the deadline the group gets SIGTERM, and `grace_s` seconds to write down what it knows. A cancelled caller ends
    it at once. Whatever it started is ended with it, also what left the group: `mark` is in the environment of all.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started_at, begun, timed_out = time.time(), time.monotonic(), False
        try:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                cwd=cwd,
                env={**env, MARK_ENV: mark},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                timed_out = await _wait(process, timeout_s, grace_s)
            finally:
                _signal_group(process.pid, signal.SIGKILL)
        finally:
            # Here and not in a thread: a cancelled rollout must leave nothing either.
            end_marked(mark)
        exit_code = await process.wait()
        duration_ms = (time.monotonic() - begun) * 1000
        stdout, tail = await asyncio.to_thread(lambda: (_head(out, STDOUT_BYTES), _tail(err, STDERR_TAIL_BYTES)))
    return Ended(
        exit_code=exit_code,
        timed_out=timed_out,
        stdout=stdout,
        stderr_tail=tail,
        started_at=started_at,
        duration_ms=duration_ms,
    )


async def _wait(process: asyncio.subprocess.Process, timeout_s: float, grace_s: float) -> bool:
    """Wait for the end, or ask for it when the time is up; return whether it was."""
    try:
        async with asyncio.timeout(timeout_s):
            await process.wait()
    except TimeoutError:
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await process.wait()
        return True
    return False


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _head(file: IO[bytes], size: int) -> str:
    file.seek(0)
    return file.read(size).decode("utf-8", "replace")


def _tail(file: IO[bytes], size: int) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - size))
    return file.read().decode("utf-8", "replace")


def report_lines(path: Path) -> list[bytes]:
    """Return the lines of a report file; [] when there is none.

    A program may put anything there: what is no plain file is not opened, and of a huge one the first 256 MiB are read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return []
    with os.fdopen(descriptor, "rb") as file:
        return file.read(REPORT_BYTES).split(b"\n")

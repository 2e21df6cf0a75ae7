"""One process per rollout, in a process group of its own, with a deadline; nothing of it outlives the rollout."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nemo_gym.sandbox.providers.processes import MARK_ENV, end_marked

STDOUT_BYTES = 16 * 1024**2
STDERR_TAIL_BYTES = 8 * 1024
REPORT_BYTES = 256 * 1024**2
_TRIM_EVERY_S = 0.25
"""How often output that nobody will read is taken off the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended. `exit_code` is negative for a signal; times are UTC Unix seconds and milliseconds.

    `stdout` is the first 16 MiB of what it printed, `stderr_tail` the last 8 KiB of its other output. What is beyond
    takes no room on the disk for long.
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
            return f"was ended by signal {-self.exit_code}"
        return f"ended with exit code {self.exit_code}"


async def run_process(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], mark: str, timeout_s: float, grace_s: float
) -> Ended:
    """Run a program to its end, or to its deadline; raises OSError when it cannot be started.

    At the deadline the group gets SIGTERM, and `grace_s` seconds to write down what it knows. A cancelled caller ends
    it at once. Whatever it started is ended with it, also what left the group: `mark` is in the environment of all.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        for file in (out, err):  # shared with the program: it goes on at the end of what is left
            fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
        started_at, begun, timed_out, cut = time.time(), time.monotonic(), False, bytearray()
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
            trimming = asyncio.create_task(_keep_trimming(out, err, cut))
            try:
                timed_out = await _wait(process, timeout_s, grace_s)
            finally:
                trimming.cancel()
                _signal_group(process.pid, signal.SIGKILL)
        finally:
            # Here and not in a thread: a cancelled rollout must leave nothing either.
            end_marked(mark)
        exit_code = await process.wait()
        duration_ms = (time.monotonic() - begun) * 1000
        stdout, tail = await asyncio.to_thread(
            lambda: (_head(out, STDOUT_BYTES), _tail(err, STDERR_TAIL_BYTES, bytes(cut)))
        )
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


async def _keep_trimming(out: IO[bytes], err: IO[bytes], tail: bytearray) -> None:
    """Keep a program that writes without end from filling the disk; `tail` gets the end of what was cut from `err`."""
    with contextlib.suppress(OSError):  # what cannot be cut stays
        while True:
            await asyncio.sleep(_TRIM_EVERY_S)
            if os.fstat(out.fileno()).st_size > STDOUT_BYTES:
                os.ftruncate(out.fileno(), STDOUT_BYTES)
            size = os.fstat(err.fileno()).st_size
            if size > STDOUT_BYTES:
                # What the program says between the two is lost; its last words are after them.
                tail[:] = os.pread(err.fileno(), STDERR_TAIL_BYTES, size - STDERR_TAIL_BYTES)
                os.ftruncate(err.fileno(), 0)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _head(file: IO[bytes], size: int) -> str:
    file.seek(0)
    return file.read(size).decode("utf-8", "replace")


def _tail(file: IO[bytes], size: int, before: bytes) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - size))
    return (before + file.read())[-size:].decode("utf-8", "replace")


def report_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a report file; none when there is no file.

    A program may put anything there: what is no plain file is not opened, and of a huge one the first 256 MiB are
    read. Raises ValueError in the end when there is more.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return
    with os.fdopen(descriptor, "rb") as file:
        room = REPORT_BYTES
        while room > 0 and (line := file.readline(room)):
            room -= len(line)
            yield line
        if room == 0 and file.read(1):
            raise ValueError(f"the report is longer than {REPORT_BYTES} bytes; the rest of it was not read")

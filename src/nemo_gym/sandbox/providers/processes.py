"""Runs one shell command in a process group of its own, and ends whatever it started.

Every process carries a mark in its environment, so one that left the group is found as well (on Linux).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from nemo_gym.sandbox.spec import SandboxExecResult

MARK_ENV = "NEMO_GYM_SANDBOX_COMMAND"
TIMEOUT_CODE = 124
TIMEOUT = "timeout"

_PROC = Path("/proc")
_ROUNDS = 100
_POLL_S = 0.01


async def run(
    command: str,
    *,
    cwd: Path,
    env: Mapping[str, str],
    mark: str,
    timeout_s: float | None,
    preserve_background: bool,
) -> SandboxExecResult:
    """Run `command` with `/bin/sh -c` and return how it ended, with all of its output.

    When the time is up everything that it started is ended. So is, when it ended by itself, what it left in the
    background, unless `preserve_background`. The output goes through files: what is left in the background may hold
    them open, and nobody waits for it.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            cwd=cwd,
            env={**env, MARK_ENV: mark},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        timed_out, ended = False, False
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
            ended = True
        except TimeoutError:
            timed_out = True
        finally:
            if not (ended and preserve_background):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                # Here and not in a thread: a cancelled command must leave nothing either.
                end_marked(mark)
        code = await process.wait()
        stdout, stderr = await asyncio.to_thread(lambda: (_text(out), _text(err)))
    if timed_out:
        return SandboxExecResult(stdout, stderr, TIMEOUT_CODE, TIMEOUT)
    return SandboxExecResult(stdout, stderr, code)


def end_marked(mark: str) -> None:
    """Kill every process whose mark is `mark`, or begins with it and a slash; returns when none is left."""
    for _ in range(_ROUNDS):
        if not (left := marked(mark)):
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def marked(mark: str) -> list[int]:
    """Return the ids of the running processes of a command or of a whole sandbox. Zombies do not count."""
    exact, below = f"{MARK_ENV}={mark}".encode(), f"{MARK_ENV}={mark}/".encode()
    found = []
    try:
        entries = [entry for entry in _PROC.iterdir() if entry.name.isdigit()]
    except OSError:
        return []
    for entry in entries:
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(variable == exact or variable.startswith(below) for variable in variables):
            found.append(int(entry.name))
    return found


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")

"""Finds and ends every process of a launch, however far it moved from the process that started it.

Each server gets the launch's id in its environment, and so does whatever it starts: a process that left the session and
the process group, or whose parent is gone, still carries it. Linux only; elsewhere nothing is found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

LAUNCH_ID_ENV = "NEMO_GYM_LAUNCH_ID"
DEATH_PIPE_ENV = "NEMO_GYM_DEATH_PIPE"
"""Only a server is started with it, and hands it to nobody: it tells servers from what they started."""

_PROC = Path("/proc")
_POLL_S = 0.02
_KILL_ROUNDS = 50

Pids = Callable[[], list[int]]


def marked_processes(launch_id: str) -> list[int]:
    """Return the ids of the running processes that carry the launch id in their environment. Zombies do not count."""
    return [pid for pid, _ in _marked(launch_id)]


def end_marked_processes(launch_id: str, *, grace_s: float) -> None:
    """End every process of a launch whose servers have ended: SIGTERM, SIGKILL after `grace_s`."""
    _end(lambda: marked_processes(launch_id), grace_s)


def end_launch_from_inside(launch_id: str, *, grace_s: float) -> None:
    """End every process of a launch but the calling server.

    All servers of the launch may be doing this at the same moment, and two that ended each other would leave the rest
    behind. So what servers started goes first, and then the server with the lowest id ends the others. One that gets
    nowhere, because it is stuck, is killed by the next.
    """
    own = os.getpid()

    def started_by_servers() -> list[int]:
        return [pid for pid, is_server in _marked(launch_id) if not is_server and pid != own]

    def other_servers() -> list[int]:
        return [pid for pid, is_server in _marked(launch_id) if is_server and pid != own]

    _end(started_by_servers, grace_s)
    deadline = time.monotonic() + 2 * grace_s
    while lower := [pid for pid in other_servers() if pid < own]:
        if time.monotonic() >= deadline:
            _signal(lower, signal.SIGKILL)
            break
        time.sleep(_POLL_S)
    _end(other_servers, grace_s)
    _end(started_by_servers, grace_s)


def _marked(launch_id: str) -> list[tuple[int, bool]]:
    """Return (id, whether it is a server) of each process of the launch."""
    mark = f"{LAUNCH_ID_ENV}={launch_id}".encode()
    found = []
    try:
        entries = [entry for entry in _PROC.iterdir() if entry.name.isdigit()]
    except OSError:
        return []
    for entry in entries:
        pid = int(entry.name)
        try:
            # Empty for a zombie, not readable for a process of somebody else.
            environment = (entry / "environ").read_bytes().split(b"\0")
            if mark in environment:
                has_pipe = any(variable.startswith(f"{DEATH_PIPE_ENV}=".encode()) for variable in environment)
                # A forked copy of a server shows the server's environment, but leads no session.
                found.append((pid, has_pipe and os.getsid(pid) == pid))
        except OSError:
            continue
    return found


def _end(pids: Pids, grace_s: float) -> None:
    """SIGTERM to each process once, SIGKILL to what is there after `grace_s`.

    A process may be starting another one while it is looked for, so this looks until nothing is left.
    """
    deadline = time.monotonic() + grace_s
    asked: set[int] = set()
    while left := pids():
        _signal([pid for pid in left if pid not in asked], signal.SIGTERM)
        asked |= set(left)
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_S)
    for _ in range(_KILL_ROUNDS):
        if not (left := pids()):
            return
        _signal(left, signal.SIGKILL)
        time.sleep(_POLL_S)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)

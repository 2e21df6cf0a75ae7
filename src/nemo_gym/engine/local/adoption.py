"""Servers forked by one process that has imported what they need, and adopted by this one when that process ends.

A fork server that stayed would be one process more, and the parent of all servers; so it ends, and the kernel gives its
children to the nearest ancestor that adopts orphans (PR_SET_CHILD_SUBREAPER), this process, for as long as that takes.
Linux only: `can_adopt` says whether it is possible, and servers are started one by one where it is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37
_UNKNOWN_EXIT = 255
"""The exit code of a process whose end somebody else waited for, as in asyncio."""


class _Adopting:
    """Whether this process adopts orphans: on while anybody wants it, and left as it was found."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self._was_on = False

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        with self._lock:
            if not self._wanted:
                self._was_on = _adopts()
                _prctl(_SET_CHILD_SUBREAPER, 1)
            self._wanted += 1
        try:
            yield
        finally:
            with self._lock:
                self._wanted -= 1
                if not self._wanted and not self._was_on:
                    _prctl(_SET_CHILD_SUBREAPER, 0)


_ADOPTING = _Adopting()


def can_adopt() -> bool:
    """Return whether this system lets a process adopt orphans and wait for them on an event loop."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
        _adopts()
    except OSError:
        return False
    return True


class AdoptedProcess:
    """A process that another one forked; the part of `asyncio.subprocess.Process` that a server needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._pidfd = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._reap)

    async def wait(self) -> int:
        """Wait until the process has ended; return its exit code, negative for a signal."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def _reap(self) -> None:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid:
                return
            self.returncode = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            self.returncode = _UNKNOWN_EXIT
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set()


class ForkServer:
    """Starts servers as copies of one process. Made at once, since its imports take a while; used once."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(
        cls, modules: Sequence[str], *, directory: Path, environment: Mapping[str, str], inherited: int
    ) -> ForkServer:
        """Start importing `modules`. `directory` is any folder; `inherited` is a descriptor that all servers get."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "nemo_gym.engine.local.forkserver",
            *modules,
            cwd=directory,
            env=dict(environment),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(inherited,),
            start_new_session=True,
        )
        return cls(process)

    async def fork(self, servers: Sequence[Mapping[str, str]]) -> list[AdoptedProcess] | None:
        """Return one process for each of `servers`, the arguments of `forkserver._become`; None when nothing started.

        Cancelling it ends the fork server; what that had forked carries the mark of the launch.
        """
        try:
            with _ADOPTING.on():
                answer, _ = await self._process.communicate(json.dumps(list(servers)).encode())
        finally:
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
        if self._process.returncode != 0 or not answer:
            return None
        return [AdoptedProcess(pid) for pid in json.loads(answer)]


def _prctl(option: int, argument: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _adopts() -> bool:
    found = ctypes.c_int(0)
    _prctl(_GET_CHILD_SUBREAPER, ctypes.addressof(found))
    return bool(found.value)

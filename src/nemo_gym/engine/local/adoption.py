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
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        self._loop = asyncio.get_running_loop()
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended, and somebody else has waited for it
            self.returncode = _UNKNOWN_EXIT
            self._ended.set()
            return
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
    """Starts servers as copies of one process. Made at once, since its imports take a while; used once.

    A process of `subprocess` and a thread that waits for it, not one of the event loop: a loop may leave descriptors
    open in what it starts (uvloop does), and then the end of the answer never comes.
    """

    def __init__(
        self, modules: Sequence[str], *, directory: Path, environment: Mapping[str, str], inherited: int
    ) -> None:
        """Start importing `modules` in `directory`, not from it. All servers get the descriptor `inherited`."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "nemo_gym.engine.local.forkserver", *modules],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(inherited,),
            start_new_session=True,
        )

    async def fork(self, servers: Sequence[Mapping[str, str]]) -> list[AdoptedProcess] | None:
        """Return one process for each of `servers`, the arguments of `forkserver._become`; None when nothing runs.

        However it ends, the fork server is gone, and so is every copy that is not returned: copies tell of themselves
        before anything else, and the answer ends when the last one has.
        """
        request = json.dumps(list(servers)).encode()
        with _ADOPTING.on():
            answering = asyncio.ensure_future(asyncio.to_thread(self._process.communicate, request))
            cancelled: asyncio.CancelledError | None = None
            while not answering.done():
                try:
                    await asyncio.wait([answering])
                except asyncio.CancelledError as error:
                    cancelled = error
                    self._process.kill()
            pids = dict(json.loads(line) for line in answering.result()[0].splitlines())
            if cancelled is None and len(pids) == len(servers):
                try:
                    return [AdoptedProcess(pids[index]) for index in range(len(servers))]
                except OSError:  # no descriptor is left for another process
                    _end(pids.values())
                    raise
            _end(pids.values())
        if cancelled is not None:
            raise cancelled
        return None


def _end(pids: Iterable[int]) -> None:
    """Kill what was forked, and what that may have started, and wait for it."""
    for pid in pids:
        for kill in (os.killpg, os.kill):  # it may lead no group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _prctl(option: int, argument: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _adopts() -> bool:
    found = ctypes.c_int(0)
    _prctl(_GET_CHILD_SUBREAPER, ctypes.addressof(found))
    return bool(found.value)

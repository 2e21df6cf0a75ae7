"""Calls that have begun and have no durable record yet, as every process can see them.

Each process that captures keeps one file of fixed-width slots in `<root>/.open-calls/`, locked as long as it lives. A
slot is filled when a call begins, and used again once its record is durable. So a collector can wait until nothing is
outstanding for a rollout, a call that died with its process is named instead of missing silently, and clearing a
rollout can tell a running server not to record what began before (the slot's `void` field names that call). The first
slot is no call: its `void` field changes whenever another one's does, so that a server need not look at each.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from nemo_gym.capture import files, process

DIRECTORY = ".open-calls"
_SUFFIX = ".slots"
_SLOT = struct.Struct("<32s32sd200s?15x")  # call id, void call id, started_at, rollout id, lost
_VOID_OFFSET, _VOID_END = 32, 64
_LOST_OFFSET = 272
_ROLLOUT_WIDTH = 200
_FREE = bytes(32)
_LOOK_S = 1.0
"""How often a process looks whether its file is still there, or can be made by now."""


class OpenCall(NamedTuple):
    """A call that was announced. `alive` says whether the process that serves it still runs, `lost` that the call has
    ended and could be written nowhere.
    """

    rollout_id: str
    model_call_id: str
    started_at: float
    alive: bool
    lost: bool = False

    @property
    def served(self) -> bool:
        """Whether its record may still come."""
        return self.alive and not self.lost

    @property
    def why_missing(self) -> str:
        """Why it has no record."""
        if self.lost:
            return "not written, nor could the marker be"
        return "still being served" if self.alive else "its server process died"


Slot: TypeAlias = tuple[int, int]
"""Where a call is announced: the opening of the ledger, and the place in its file."""


class OpenCallLedger:
    """This process's own slots. `begin` and `end` cost one small write each; neither raises.

    Without a file (full or read-only disk) calls are not announced until it can be made. A file that is removed is made
    again, with the calls that are still being served.
    """

    def __init__(self, root: Path) -> None:
        self._directory = root / DIRECTORY
        self._lock = threading.Lock()
        self._pid = 0
        self._fd = -1
        self._path: Path | None = None
        self._free: list[int] = []
        self._slots = 0
        self._openings = 0
        self._look_at = 0.0
        self._header: mmap.mmap | None = None
        self._sign = _FREE
        self._void: frozenset[bytes] = frozenset()

    def begin(self, rollout_id: str, model_call_id: str, started_at: float) -> Slot | None:
        """Announce a call; returns its slot, or None when it could not be announced."""
        if self._pid != process.pid or time.monotonic() >= self._look_at:
            self._look()
        try:
            record = _SLOT.pack(model_call_id.encode(), _FREE, started_at, rollout_id.encode(), False)
        except struct.error:
            return None
        with self._lock:
            if self._fd < 0:
                return None
            place = self._free.pop() if self._free else self._slots + 1  # the first is no call
            try:
                os.pwrite(self._fd, record, place * _SLOT.size)
            except OSError:
                if place <= self._slots:
                    self._free.append(place)
                return None
            self._slots = max(self._slots, place)
            return self._openings, place

    def end(self, slot: Slot | None) -> None:
        """Take back an announcement."""
        if slot is None or slot[0] != self._openings:
            return
        with self._lock:
            try:
                os.pwrite(self._fd, _FREE, slot[1] * _SLOT.size)
            except OSError:
                return  # the slot is lost for this process; readers find the record and ignore the announcement
            self._free.append(slot[1])

    def lose(self, slot: Slot | None) -> None:
        """Say that the call has ended without a record: nobody need wait for it. Writes where there is room already."""
        if slot is None or slot[0] != self._openings:
            return
        with self._lock, contextlib.suppress(OSError):
            os.pwrite(self._fd, b"\1", slot[1] * _SLOT.size + _LOST_OFFSET)

    def recycle(self, slot: Slot | None) -> None:
        """Let the slot of a recorded call be used again, without the write that `end` costs.

        Until then the file still announces the call; readers see its record and know better.
        """
        if slot is not None and slot[0] == self._openings:
            self._free.append(slot[1])

    def is_void(self, slot: Slot | None, model_call_id: str) -> bool:
        """Return whether the rollout was cleared after this call began."""
        if slot is None or slot[0] != self._openings:
            return False
        return self.has_void_calls() and model_call_id.encode() in self._void

    def has_void_calls(self) -> bool:
        """Return whether any rollout was cleared while a call of this process was served."""
        sign = _FREE if self._header is None else self._header[_VOID_OFFSET:_VOID_END]
        if sign != self._sign:
            self._look_for_void_calls(sign)
        return bool(self._void)

    def close(self) -> None:
        """Remove this process's file when nothing is outstanding in it."""
        with self._lock:
            if self._fd < 0 or self._pid != process.pid:
                return
            if len(self._free) == self._slots and self._path is not None:
                self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd, self._pid, self._free, self._slots = -1, 0, [], 0
            self._header = None

    def _look_for_void_calls(self, sign: bytes) -> None:
        try:
            data = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        except OSError:
            return
        fields = (data[start : start + 32] for start in range(_SLOT.size + _VOID_OFFSET, len(data), _SLOT.size))
        self._void = frozenset(field for field in fields if field != _FREE)
        self._sign = sign

    def _look(self) -> None:
        """See to it that this process has a file, as far as that can be: its own, and one that others see."""
        self._look_at = time.monotonic() + _LOOK_S
        try:
            if self._pid != process.pid or self._fd < 0:
                self._open()
            elif not os.fstat(self._fd).st_nlink:
                self._make_again()
        except OSError:
            return  # full, read-only, or out of descriptors: the next look may find it better

    def _open(self) -> None:
        """Make this process's file; a forked child gets its own."""
        self._lock = threading.Lock()  # a forked child may have inherited a held one
        if self._fd >= 0:
            os.close(self._fd)  # the parent's: holding it would keep the parent's calls alive after its death
        self._openings += 1
        self._pid, self._fd, self._free, self._slots = process.pid, -1, [], 0
        made = self._make(bytes(_SLOT.size))
        if made is None:
            self._look_at = math.inf  # no look finds locks where the file system has none
            return
        self._header, self._sign, self._void = made[2], _FREE, frozenset()
        self._fd, self._path, _ = made

    def _make_again(self) -> None:
        """Put what a removed file announces into a new one: unseen, a call would miss silently if it died."""
        with self._lock:
            made = self._make(os.pread(self._fd, os.fstat(self._fd).st_size, 0))
            if made is None:
                return
            fd, self._path, self._header = made
            os.dup2(fd, self._fd, inheritable=False)
            os.close(fd)

    def _make(self, data: bytes) -> tuple[int, Path, mmap.mmap] | None:
        """Return a new locked file that holds `data`; None where files cannot be locked. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{os.uname().nodename[:60]}-{process.pid}-{os.urandom(4).hex()}{_SUFFIX}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, files.FILE_MODE)
        try:
            if files.try_lock(fd):  # without locks nobody could tell a running process from a dead one
                os.pwrite(fd, data, 0)
                return fd, path, mmap.mmap(fd, _SLOT.size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            _drop(fd, path)
            raise OSError(f"`{path}` cannot be written") from error
        _drop(fd, path)
        return None


def _drop(fd: int, path: Path) -> None:
    os.close(fd)
    path.unlink(missing_ok=True)


def open_calls(root: Path, rollout_id: str | None = None) -> list[OpenCall]:
    """Return the announced calls, of one rollout or of all, of running and of dead processes.

    A call may have a durable record already: `recycle` does not take the announcement back.
    """
    return [call for _, _, call in _announced(root, rollout_id)]


def void_open_calls(root: Path, rollout_id: str) -> None:
    """Tell running servers not to record what began before this moment; forget what dead ones left."""
    for path, slot, call in _announced(root, rollout_id):
        offset = slot * _SLOT.size
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if call.alive:
                os.pwrite(fd, call.model_call_id.encode(), offset + _VOID_OFFSET)
                os.pwrite(fd, os.urandom(32), _VOID_OFFSET)
            else:
                os.pwrite(fd, _FREE, offset)
        finally:
            os.close(fd)


def take_dead_calls(root: Path) -> Iterator[OpenCall]:
    """Yield the calls that died with their process, removing each dead process's file after its calls were taken."""
    for path in _ledger_files(root):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            size = os.fstat(fd).st_size
            if size and files.try_lock(fd):  # an empty file may be one that its owner has not locked yet
                yield from (call for _, call in _parse(os.pread(fd, size, 0), None, alive=False))
                Path(path).unlink(missing_ok=True)
        finally:
            os.close(fd)


def _announced(root: Path, rollout_id: str | None) -> Iterator[tuple[str, int, OpenCall]]:
    for path in _ledger_files(root):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # gone, or not ours to read
            continue
        try:
            data = os.pread(fd, os.fstat(fd).st_size, 0)
            calls = list(_parse(data, rollout_id, alive=True))
            if calls and files.try_lock(fd):
                calls = list(_parse(data, rollout_id, alive=False))
        finally:
            os.close(fd)
        for slot, call in calls:
            yield path, slot, call


def _ledger_files(root: Path) -> list[str]:
    folder = f"{root}{os.sep}{DIRECTORY}{os.sep}"
    try:
        names = os.listdir(folder)  # noqa: PTH208 - asked several times for each rollout
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(folder + name for name in names if name.endswith(_SUFFIX))


def _parse(data: bytes, rollout_id: str | None, *, alive: bool) -> Iterator[tuple[int, OpenCall]]:
    wanted = None if rollout_id is None else rollout_id.encode().ljust(_ROLLOUT_WIDTH, b"\0")
    if wanted is not None and wanted not in data:  # the common answer, without looking at each slot
        return
    for slot in range(1, len(data) // _SLOT.size):
        call_id, void, started_at, rollout, lost = _SLOT.unpack_from(data, slot * _SLOT.size)
        if call_id in (_FREE, void) or (wanted is not None and rollout != wanted):
            continue
        yield slot, OpenCall(rollout.rstrip(b"\0").decode(), call_id.decode(), started_at, alive, lost)

"""Syncing many files at once without threads: the kernel's own workers do it and ring an eventfd (Linux AIO).

A thread per sync costs several switches between threads per call, most of them to hand the interpreter over; that is
what durability costs in CPU. Where the kernel does not offer this, `KernelSync.open` returns None and threads sync.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
import threading
import weakref
from collections.abc import Sequence

MAX_IN_FLIGHT = 128
_FDSYNC = 3
_HAS_EVENTFD = 1
_IOCB = struct.Struct("=QIIHhIQQqQII")
_IOCB_HEAD = struct.Struct("=QIIHhI")
"""What differs from one sync to the next: its number and the file descriptor."""
_EVENT = struct.Struct("=QQqq")
_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""System call numbers of io_setup, io_destroy, io_getevents and io_submit, which the C library does not wrap."""


class KernelSync:
    """Syncs in flight, each under a number of the caller's. Thread-safe; belongs to the process that opened it."""

    def __init__(self, context: int, eventfd: int, numbers: tuple[int, int, int, int]) -> None:
        self.eventfd = eventfd
        self._lock = threading.Lock()
        self._context = context
        _, destroy, self._getevents_number, self._submit_number = numbers
        self._syscall = _syscall()
        self._control = (ctypes.c_char * (_IOCB.size * MAX_IN_FLIGHT))()
        self._events = (ctypes.c_char * (_EVENT.size * MAX_IN_FLIGHT))()
        start = ctypes.addressof(self._control)
        pointers = [start + index * _IOCB.size for index in range(MAX_IN_FLIGHT)]
        self._pointers = (ctypes.c_uint64 * MAX_IN_FLIGHT)(*pointers)
        self._submitted, self._reported = ctypes.addressof(self._pointers), ctypes.addressof(self._events)
        for at in range(0, len(self._control), _IOCB.size):
            _IOCB.pack_into(self._control, at, 0, 0, 0, _FDSYNC, 0, 0, 0, 0, 0, 0, _HAS_EVENTFD, eventfd)
        self._no_time = (ctypes.c_int64 * 2)(0, 0)
        self._in_flight = 0
        weakref.finalize(self, _close, self._syscall, destroy, context, eventfd, os.getpid())

    @classmethod
    def open(cls) -> KernelSync | None:
        """Return a new one, or None where the kernel or its limits do not allow it."""
        numbers = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
        if numbers is None or ctypes.sizeof(ctypes.c_void_p) != 8:
            return None
        try:
            eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:  # as many files are open as may be, and a sync needs none
            return None
        context = ctypes.c_uint64(0)
        if _syscall()(numbers[0], MAX_IN_FLIGHT, ctypes.addressof(context), 0, 0, 0) != 0:
            os.close(eventfd)
            return None
        return cls(context.value, eventfd, numbers)

    def start(self, syncs: Sequence[tuple[int, int]]) -> int:
        """Start an fdatasync for each (file descriptor, number); returns how many, from the front, were started.

        A descriptor may be closed as soon as this returns.
        """
        with self._lock:
            count = min(len(syncs), MAX_IN_FLIGHT - self._in_flight)
            for index in range(count):
                fd, number = syncs[index]
                _IOCB_HEAD.pack_into(self._control, index * _IOCB.size, number, 0, 0, _FDSYNC, 0, fd)
            if not count:
                return 0
            started = max(int(self._syscall(self._submit_number, self._context, count, self._submitted, 0, 0)), 0)
            self._in_flight += started
            return started

    def finished(self, wait_s: float = 0.0) -> list[tuple[int, OSError | None]]:
        """Return the numbers of the syncs that have ended since, each with its error; waits for one when asked to."""
        try:
            os.eventfd_read(self.eventfd)
        except BlockingIOError:
            if not wait_s:
                return []
        timeout = (ctypes.c_int64 * 2)(int(wait_s), int(wait_s % 1 * 1e9)) if wait_s else self._no_time
        least = 1 if wait_s else 0
        with self._lock:
            if not self._in_flight:
                return []
            count = self._syscall(
                self._getevents_number, self._context, least, MAX_IN_FLIGHT, self._reported, ctypes.addressof(timeout)
            )
            found = [_EVENT.unpack_from(self._events, index * _EVENT.size) for index in range(max(int(count), 0))]
            self._in_flight -= len(found)
        return [(number, _error_of(result)) for number, _, result, _ in found]


def _error_of(result: int) -> OSError | None:
    # A file that cannot be synced at all (EINVAL) is one of a file system that keeps nothing back.
    return None if result >= 0 or result == -errno.EINVAL else OSError(-result, os.strerror(-result))


def _syscall() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype, function.argtypes = ctypes.c_long, [ctypes.c_long] * 6
    return function


def _close(syscall: ctypes._NamedFuncPointer, destroy: int, context: int, eventfd: int, pid: int) -> None:
    if pid == os.getpid():  # a forked child has its own copy of the descriptor, and no such context
        syscall(destroy, context, 0, 0, 0, 0)
    os.close(eventfd)

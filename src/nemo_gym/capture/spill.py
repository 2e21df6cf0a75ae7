"""Lines that memory has no room for wait in a temporary file until the disk of the captures keeps up."""

from __future__ import annotations

import os
import tempfile
import threading
from typing import IO, NamedTuple


class Spilled(NamedTuple):
    """Where a line waits."""

    offset: int
    length: int


class Spill:
    """An unnamed temporary file of lines; it is emptied whenever nothing waits in it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._end = self._waiting = 0

    def put(self, line: bytes) -> Spilled:
        """Write a line; raises OSError when that cannot be done."""
        with self._lock:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="capture-spill-", buffering=0)  # noqa: SIM115
            place = Spilled(self._end, len(line))
            rest = memoryview(line)
            while rest:
                rest = rest[os.pwrite(self._file.fileno(), rest, place.offset + len(line) - len(rest)) :]
            self._end += len(line)
            self._waiting += 1
        return place

    def take(self, place: Spilled) -> bytes:
        """Return a line, once; raises OSError when it cannot be read."""
        with self._lock:
            assert self._file is not None
            line = bytearray()
            while len(line) < place.length:
                piece = os.pread(self._file.fileno(), place.length - len(line), place.offset + len(line))
                if not piece:
                    raise OSError("a line that was set aside is gone from the temporary folder")
                line += piece
            self._waiting -= 1
            if not self._waiting:
                self._file.truncate(0)
                self._end = 0
        return bytes(line)

"""JSON lines: reading complete lines with their position, appending whole lines, repairing a cut tail.

A writer appends one newline-terminated line with one write; a kill can therefore cut at most the last line. Readers
take what ends in a newline, and a last line without one only when it is JSON.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import msgspec

from nemo_gym.errors import DataError
from nemo_gym.records.codec import JsonObject, decode_object
from nemo_gym.store.atomic import is_at
from nemo_gym.store.loop_sync import LoopSync
from nemo_gym.store.page_cache import WrittenPages

_TAIL_BLOCK = 1 << 20


class Line(NamedTuple):
    """One physical line without its newline: 1-based number, 0-based byte offset, whether a newline ended it."""

    number: int
    offset: int
    data: bytes
    complete: bool


def read_lines(path: str | Path) -> Iterator[Line]:
    """Yield the non-blank lines of a file in bounded memory; a missing file raises FileNotFoundError."""
    with Path(path).open("rb", buffering=1 << 20) as file:
        try:
            yield from lines_of(file)
        except OSError as error:
            error.filename = error.filename or str(path)  # a failing read does not say of what
            raise


def lines_of(file: BinaryIO) -> Iterator[Line]:
    """Yield the non-blank lines of an open binary file; only `\\n` separates lines."""
    offset = 0
    for number, raw in enumerate(file, start=1):
        data = raw.rstrip(b"\r\n")
        if data.strip():
            yield Line(number, offset, data, raw.endswith(b"\n"))
        offset += len(raw)


def decode_line(line: Line, path: str | Path, *, hint: str = "") -> JsonObject:
    """Return the object on a line; raises DataError naming file, line and byte."""
    try:
        return decode_object(line.data)
    except ValueError as error:
        raise DataError(f"not a JSON object: {error}", path=path, line=line.number, byte=line.offset, hint=hint) from (
            error
        )


def read_objects(
    path: str | Path, *, on_cut_tail: Callable[[Line], None] | None = None, hint: str = ""
) -> Iterator[JsonObject]:
    """Yield the objects of a JSON-lines file.

    An unreadable line raises DataError. A last line that lacks its newline and is not JSON was cut by a kill or is
    being written: it is skipped, and reported to `on_cut_tail`. So is a last one whose JSON breaks off, although other
    writers put a newline or blank lines behind it.
    """
    cut: tuple[Line, DataError] | None = None
    for line in read_lines(path):
        if cut is not None:
            raise cut[1]
        try:
            value = decode_line(line, path, hint=hint)
        except DataError as error:
            if line.complete and not _breaks_off(line.data):
                raise
            cut = line, error
            continue
        yield value
    if cut is not None and on_cut_tail is not None:
        on_cut_tail(cut[0])


def repair_tail(path: str | Path) -> Literal["completed", "dropped"] | None:
    """Make the last line whole after a kill; return what was done, or None when nothing was needed.

    A last line without a newline gets one when it is a JSON object, and is cut off otherwise; so is one whose JSON
    breaks off although other writers put a newline or blank lines behind it. A missing file needs nothing.
    """
    path = Path(path)
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return None
    with file:
        size = file.seek(0, os.SEEK_END)
        start, tail = _last_line(file, size)
        if not tail.strip():
            return None
        terminated = b"\n" in tail  # blanks without a newline may stand behind it
        try:
            decode_object(tail)
        except ValueError:
            if terminated and not _breaks_off(tail):
                return None  # damaged in another way: who reads it says so
            file.truncate(start)
            outcome: Literal["completed", "dropped"] = "dropped"
        else:
            if terminated:
                return None
            file.seek(size)
            file.write(b"\n")
            outcome = "completed"
        file.flush()
        os.fsync(file.fileno())
    return outcome


def _last_line(file: BinaryIO, size: int) -> tuple[int, bytes]:
    """Return offset and bytes of the last line that is not blank, with what follows it."""
    later: list[bytes] = []  # blocks that are read, the last one first
    content = False
    position = size
    while position > 0:
        step = min(_TAIL_BLOCK, position)
        position -= step
        file.seek(position)
        block = file.read(step)
        end = len(block) if content else len(block.rstrip())
        newline = block.rfind(b"\n", 0, end)
        if newline >= 0:
            return position + newline + 1, b"".join([block[newline + 1 :], *reversed(later)])
        content = content or end > 0
        later.append(block)
    return 0, b"".join(reversed(later))


def _breaks_off(line: bytes) -> bool:
    """Return whether the line is the beginning of JSON and nothing else."""
    try:
        msgspec.json.decode(line.rstrip())
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    except RecursionError:
        pass
    return False


class LineAppender:
    """Appends whole lines to one file. Not thread-safe; one process at a time, held off by the run's lock.

    `append` hands each line to the operating system before it returns, so a kill of this process loses nothing;
    `sync` makes the lines so far survive a kill of the machine. A write that fails part-way is taken back, so that
    the file stays whole. `sync_by` and `close` raise FileNotFoundError when the file was removed meanwhile, and its
    lines with it.
    """

    def __init__(self, path: str | Path, *, truncate: bool = False) -> None:
        self.path = Path(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_TRUNC if truncate else 0)
        self._fd = os.open(self.path, flags, 0o666)
        self._pages = WrittenPages(self._fd)
        self._appended = 0
        self._synced = 0

    @property
    def unsynced(self) -> int:
        """How many appended lines are not known to be durable."""
        return self._appended - self._synced

    def append(self, line: bytes) -> None:
        """Write one newline-terminated line; raises OSError with the file unchanged."""
        written = os.write(self._fd, line)
        if written != len(line):
            self._write_rest(line, written)
        self._appended += 1

    def _write_rest(self, line: bytes, written: int) -> None:
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError:
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            raise

    def sync(self) -> None:
        """Make every line appended before this call durable; another thread may append meanwhile."""
        mark = self._appended
        os.fdatasync(self._fd)
        self._synced = max(self._synced, mark)

    async def sync_by(self, syncs: LoopSync) -> None:
        """Do the same without holding up the loop."""
        mark, end = self._appended, os.fstat(self._fd).st_size
        await syncs.sync(self._fd)
        self._check_there()
        self._synced = max(self._synced, mark)
        self._pages.durable_until(end)

    def close(self) -> None:
        """Sync and close; idempotent."""
        if self._fd < 0:
            return
        try:
            if self.unsynced:
                self.sync()
            if self._appended:
                self._check_there()
        finally:
            os.close(self._fd)
            self._fd = -1

    def _check_there(self) -> None:
        # Some file systems count no links.
        if not os.fstat(self._fd).st_nlink and not is_at(self._fd, self.path):
            raise FileNotFoundError(errno.ENOENT, "it was removed while it was written", str(self.path))

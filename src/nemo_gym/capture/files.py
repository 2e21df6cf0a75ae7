"""Durable appends to a file that several processes share, and reads that see whole lines only.

A batch is one lock, one write and one fdatasync. A line is never glued to what a crash left behind, a failed write
never leaves half a line, and a file that was deleted meanwhile is made anew (C3, C5).
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF})
_OPEN_EXISTING = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
_OPEN_APPEND = _OPEN_EXISTING | os.O_CREAT
_TRY_LOCK = fcntl.LOCK_EX | fcntl.LOCK_NB
FILE_MODE = 0o600


class Written(NamedTuple):
    """Bytes that are in a file and not yet durable."""

    fd: int
    path: str
    born: bool

    def make_durable(self) -> None:
        """Sync the bytes, and the directory's entry when the file is new. Raises OSError. Closes in any case."""
        try:
            os.fdatasync(self.fd)
            if self.born:
                sync_directory(os.path.dirname(self.path))  # noqa: PTH120 - a str on the hot path
        finally:
            os.close(self.fd)


def append_durably(path: str | Path, data: bytes | Callable[[], bytes]) -> None:
    """Append newline-terminated `data`; when this returns it survives a power cut. Raises OSError.

    A callable is asked under the lock, and may return b"" to have nothing appended.
    """
    written = append(path, data)
    if written is not None:
        written.make_durable()


def append(path: str | Path, data: bytes | Callable[[], bytes], *, wait: bool = True) -> Written | None:
    """Append as `append_durably` does, without the sync; None when there was nothing to append.

    Raises OSError and leaves the file unchanged; BlockingIOError when somebody else has the lock and `wait` is False.
    """
    path = str(path)
    operation = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        fd = _open_for_append(path)
        written: Written | None = None
        try:
            _lock(fd, operation)
            status = os.fstat(fd)
            if status.st_nlink == 0:  # deleted between open and lock: nobody would ever read this inode
                continue
            size = status.st_size
            lines = data if isinstance(data, bytes) else data()
            if not lines:
                if size == 0:
                    os.unlink(path)  # noqa: PTH108
                return None
            if size and os.pread(fd, 1, size - 1) != b"\n":
                lines = b"\n" + lines  # a crash cut the last line: keep the damage to that line
            _write_all(fd, lines, size)
            if size:
                _lock(fd, fcntl.LOCK_UN)  # other writers need not wait for the sync, but for a new file's entry
            written = Written(fd, path, size == 0)
            return written
        finally:
            if written is None:
                os.close(fd)  # releases the lock


class OpenFiles:
    """Files that are appended to again and again, kept open. Every append is as careful as `append`."""

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._open: dict[str, tuple[int, int]] = {}

    def append(self, path: str, data: Callable[[], bytes]) -> int | None:
        """Append what `data` returns under the lock; returns the descriptor to sync, None when there was nothing.

        The descriptor stays open at least until the next append. Never waits: raises BlockingIOError when somebody
        else has the lock, FileNotFoundError when the file must be made; other OSErrors leave it unchanged.
        """
        try:
            fd, known_end = self._open.pop(path)
        except KeyError:
            fd, known_end = os.open(path, _OPEN_EXISTING), -1
        end = -1
        try:
            fcntl.flock(fd, _TRY_LOCK)
            status = os.fstat(fd)
            size = status.st_size
            if not status.st_nlink or not size:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            lines = data()
            if lines and size != known_end and os.pread(fd, 1, size - 1) != b"\n":
                lines = b"\n" + lines
            if lines:
                _write_all(fd, lines, size)
            fcntl.flock(fd, fcntl.LOCK_UN)
            end = size + len(lines)
        finally:
            if end < 0:
                os.close(fd)  # releases the lock
        self._open[path] = fd, end
        if len(self._open) > self._limit:
            os.close(self._open.pop(next(iter(self._open)))[0])
        return fd if lines else None

    def close(self) -> None:
        """Close them all."""
        while self._open:
            os.close(self._open.popitem()[1][0])


@contextmanager
def locked(path: str | Path) -> Iterator[bool]:
    """Keep every append out of `path` during the block; yields False when there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        _lock(fd, fcntl.LOCK_EX)
        yield os.fstat(fd).st_nlink > 0
    finally:
        os.close(fd)


def delete(path: str | Path) -> None:
    """Remove `path` while no append is under way in it; nothing happens without it."""
    if not os.access(path, os.F_OK):  # the usual case, for one look
        return
    with locked(path) as present:
        if present:
            Path(path).unlink(missing_ok=True)


def read_whole(path: str | Path, *, lock: bool = True, unless: str | None = None) -> bytes | None:
    """Return the bytes of `path`, or None when there is no such file. `lock`: while no append is under way.

    Also None when there is a file `unless` while `path` is locked, or `path` was deleted before that.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if lock:
            _lock(fd, fcntl.LOCK_SH)
        status = os.fstat(fd)
        if unless is not None and (not status.st_nlink or os.access(unless, os.F_OK)):
            return None
        pieces = [os.read(fd, status.st_size + 1)]
        while len(pieces[-1]) > 0 and sum(map(len, pieces)) != status.st_size:
            pieces.append(os.read(fd, max(1 << 16, status.st_size)))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    finally:
        os.close(fd)


def identity_of(path: str | Path, *, lock: bool = True) -> tuple[int, int] | None:
    """Return inode and time of change of the file at `path`, None without one. `lock`: while nobody has it locked."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if lock:
            _lock(fd, fcntl.LOCK_SH)
        status = os.fstat(fd)
        return (status.st_ino, status.st_mtime_ns) if status.st_nlink else None
    finally:
        os.close(fd)


def replace_durably(path: Path, data: bytes) -> None:
    """Put a file of `data` in the place of `path`, whole or not at all. Raises OSError and leaves nothing behind.

    The caller holds the lock of the rollout, so what a killed process left half-written is overwritten.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def try_lock(fd: int) -> bool:
    """Take the exclusive lock of `fd` if nobody holds it; False when somebody does, or locks are not supported."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sync_directory(path: str | Path) -> None:
    """Make the entries of a directory durable; file systems that cannot are left alone."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(fd)


def _open_for_append(path: str | Path) -> int:
    try:
        return os.open(path, _OPEN_APPEND, FILE_MODE)
    except FileNotFoundError:  # the whole directory was removed under a running server
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, _OPEN_APPEND, FILE_MODE)


def _lock(fd: int, operation: int) -> None:
    try:
        fcntl.flock(fd, operation)
    except OSError as error:
        if error.errno not in _NO_LOCKS:  # without locks an O_APPEND write of one buffer is the best there is
            raise


def _write_all(fd: int, data: bytes, size_before: int) -> None:
    written = os.write(fd, data)
    if written == len(data):
        return
    try:
        rest = memoryview(data)[written:]
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        os.ftruncate(fd, size_before)  # the lock is held: no other writer's bytes are behind ours
        raise

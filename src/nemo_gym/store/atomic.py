"""Files that appear whole or not at all: temp file, fsync, rename, fsync of the folder."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from nemo_gym.errors import ConfigError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def write_atomic(path: str | Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` by `data`; a reader sees the old content or the new one. Raises OSError, leaving the old one.

    `durable=False` leaves out both fsyncs: still atomic against a kill of the process.
    """
    with staged(path, durable=durable) as file:
        file.write(data)


@contextmanager
def staged(path: str | Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a file to write; it takes the place of `path` when the block ends without an exception.

    Nothing takes the place of a device or a pipe, such as `/dev/stdout`: what is written goes there at once.
    """
    path = Path(path)
    if is_written_through(path):
        try:
            with path.open("wb") as file:
                yield file
        except OSError as error:
            _name(error, path, path)
            raise
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb", buffering=1 << 20) as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        if isinstance(error, OSError):
            _name(error, path, temporary)
        with suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def is_written_through(path: Path) -> bool:
    """Return whether a path stands for something that is open elsewhere, which a rename would take away from everyone.

    `/dev/stdout` is a link, and may lead to a plain file.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    if stat.S_ISREG(mode):
        return path.is_symlink() and path.absolute().parts[:2] in (("/", "dev"), ("/", "proc"))
    return not stat.S_ISDIR(mode)


def _name(error: OSError, path: Path, temporary: Path) -> None:
    """Let an error name the file that was to be written: its temporary name says nothing to anybody."""
    if error.filename == str(temporary) or (error.filename is None and error.errno in _NO_ROOM):
        error.filename = str(path)
        if error.filename2 is not None:
            error.filename2 = None


@contextmanager
def writing(what: str, *paths: str | Path, instead: str) -> Iterator[None]:
    """Raise ConfigError for an OSError about one of `paths`, or a folder of theirs: what was to be written, where, why.

    `instead` is a sentence about what to do.
    """
    try:
        yield
    except OSError as error:
        places = {place for path in map(Path, paths) for place in (path, *path.parents)}
        if error.filename is None or Path(os.fsdecode(error.filename)) not in places:
            raise
        reason = error.strerror or type(error).__name__
        raise ConfigError(
            f"{what} cannot be written: `{error.filename}`: {reason[:1].lower()}{reason[1:]}. {instead}"
        ) from error


def is_at(fd: int, path: Path) -> bool:
    """Return whether an open file is the one that has the name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), path.stat())
    return False


def sync_folder(folder: str | Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""Files that appear whole or not at all: temp file, fsync, rename, fsync of the folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def write_atomic(path: str | Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` by `data`; a reader sees the old content or the new one. Raises OSError, leaving the old one.

    `durable=False` leaves out both fsyncs: still atomic against a kill of the process.
    """
    with staged(path, durable=durable) as file:
        file.write(data)


@contextmanager
def staged(path: str | Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a file to write; it takes the place of `path` when the block ends without an exception."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb", buffering=1 << 20) as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: str | Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

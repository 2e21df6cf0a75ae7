"""Lines of large files, in ranges that several processes can take: each line belongs to the range it begins in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nemo_gym.errors import ConfigError, ConfigFileNotFoundError

BLOCK_BYTES = 256 << 10
MAX_LINE_BYTES = 256 << 20
"""A longer line is no record; it is passed over without being held."""


_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zX": "xz",
    b"PK\x03\x04": "zip",
}


class FileRange(NamedTuple):
    """The lines of `path` that begin in [start, end), bytes."""

    path: Path
    start: int
    end: int


def refuse_unreadable(path: Path) -> None:
    """Raise ConfigFileNotFoundError or ConfigError, saying what to do, when `path` gives no lines."""
    if path.is_symlink() and not path.exists():
        raise ConfigFileNotFoundError(f"`{path}` is a link to a file that is not there: mend or remove it")
    if not path.exists():
        raise ConfigFileNotFoundError(f"there is no rollouts file `{path}`")
    if not path.is_file():
        raise ConfigError(f"`{path}` is not a file: name a rollouts file, or the folder that holds some")
    try:
        with path.open("rb") as file:
            head = file.read(4)
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror}") from error
    for mark, name in _COMPRESSED.items():
        if head.startswith(mark):
            raise ConfigError(f"`{path}` is compressed with {name}: unpack it first")


def iter_lines(part: FileRange) -> Iterator[memoryview | None]:
    """Yield each line of a range without its newline; None for one beyond `MAX_LINE_BYTES`.

    A view is valid until the next line is asked for. Memory is that of the longest line. What is appended to the file
    while it is read, after `end`, is only read to finish a line that began before.
    """
    buffer = bytearray(BLOCK_BYTES)
    filled, at, position = 0, 0, max(part.start - 1, 0)
    skipping = part.start > 0  # up to the newline that ends the line of the range before
    too_long = False
    with part.path.open("rb", buffering=0) as file:
        file.seek(position)
        while True:
            newline = buffer.find(b"\n", at, filled)
            if newline < 0:
                if at == 0 and filled == len(buffer):
                    if skipping or too_long or filled >= MAX_LINE_BYTES:
                        too_long = not skipping
                        position += filled
                        filled = 0
                    else:
                        buffer = buffer + bytearray(len(buffer))
                elif at:
                    buffer[: filled - at] = buffer[at:filled]
                    position, filled, at = position + at, filled - at, 0
                count = file.readinto(memoryview(buffer)[filled:])
                filled += count or 0
                if count:
                    continue
                if (filled > at or too_long) and not skipping:
                    yield None if too_long else memoryview(buffer)[at:filled]
                return
            if not skipping:
                yield None if too_long else memoryview(buffer)[at:newline]
            skipping = too_long = False
            at = newline + 1
            if position + at >= part.end:
                return


def is_blank(line: memoryview) -> bool:
    """Return whether a line holds only white space."""
    return len(line) == 0 or (line[0] <= 0x20 and not bytes(line).strip())


def split(files: list[tuple[Path, int]], parts: int) -> list[list[FileRange]]:
    """Return `parts` lists of ranges that together are all lines of `files` (path, size), in order, about equal."""
    total = sum(size for _, size in files)
    share = max(1, -(-total // parts))
    lists: list[list[FileRange]] = [[]]
    room = share
    for path, size in files:
        start = 0
        while start < size:
            take = min(size - start, room)
            lists[-1].append(FileRange(path, start, start + take))
            start, room = start + take, room - take
            if room == 0:
                lists.append([])
                room = share
    return [ranges for ranges in lists if ranges]

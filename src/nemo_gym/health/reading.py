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


def iter_lines(part: FileRange) -> Iterator[bytes | None]:
    """Yield each line of a range without its newline; None for one beyond `MAX_LINE_BYTES`.

    Memory is twice that of the longest line. What is appended to the file while it is read, after `end`, is only read
    to finish a line that began before.
    """
    position = max(part.start - 1, 0)
    skipping = part.start > 0  # up to the newline that ends the line of the range before
    begun: list[bytes | memoryview] = []  # blocks of a line whose end is not read yet; each byte is copied once more
    length = 0
    with part.path.open("rb", buffering=0) as file:
        file.seek(position)
        while block := file.read(BLOCK_BYTES):
            at = 0
            while (newline := block.find(b"\n", at)) >= 0:
                if skipping:
                    skipping = False
                elif length + newline - at > MAX_LINE_BYTES:
                    yield None
                elif begun:
                    begun.append(memoryview(block)[:newline])
                    yield b"".join(begun)
                else:
                    yield block[at:newline]
                begun.clear()
                length, at = 0, newline + 1
                if position + at >= part.end:
                    return
            if not skipping:
                length += len(block) - at
                if length > MAX_LINE_BYTES:
                    begun.clear()
                elif at < len(block):
                    begun.append(block[at:] if at else block)
            position += len(block)
    if length > MAX_LINE_BYTES:
        yield None
    elif begun:
        yield b"".join(begun)


def is_blank(line: bytes) -> bool:
    """Return whether a line holds only white space."""
    return not line or line.isspace()


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

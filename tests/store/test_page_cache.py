"""What a run has written leaves memory, the end of it excepted, and is whole on disk."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_gym.store import page_cache
from nemo_gym.store.jsonl import LineAppender
from nemo_gym.store.loop_sync import LoopSync
from nemo_gym.store.page_cache import WrittenPages

MEBI = 1 << 20
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which pages are in memory")


@pytest.fixture
def keep(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Say how many MiB of a file stay in memory."""
    return lambda mebibytes: monkeypatch.setattr(page_cache, "KEPT_BYTES", mebibytes * MEBI)


def resident(path: Path) -> list[bool]:
    """Say of each MiB of a file whether any of it is in memory."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        held = (ctypes.c_ubyte * pages)()
        start = ctypes.addressof(anchor := ctypes.c_char.from_buffer(mapped))
        done = ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), held)
        del anchor
    assert done == 0
    each = MEBI // mmap.PAGESIZE
    return [any(page & 1 for page in held[at : at + each]) for at in range(0, pages, each)]


def written(path: Path, mebibytes: int) -> int:
    """Write a durable file; return its descriptor. Skips where files live in memory only."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    for number in range(mebibytes):
        os.write(fd, bytes([number + 1]) * MEBI)
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, MEBI, os.POSIX_FADV_DONTNEED)
    if resident(path)[0]:
        pytest.skip("this file system keeps its files in memory only")
    os.pread(fd, MEBI, 0)
    return fd


def test_what_is_far_behind_leaves_memory_and_the_end_stays(tmp_path: Path, keep: Callable[[int], None]) -> None:
    keep(16)
    path = tmp_path / "long.jsonl"
    fd = written(path, 40)
    WrittenPages(fd).durable_until(40 * MEBI)
    assert resident(path) == [False] * 24 + [True] * 16
    assert path.read_bytes() == b"".join(bytes([number + 1]) * MEBI for number in range(40))
    os.close(fd)


def test_a_file_no_longer_than_what_is_kept_stays_whole(tmp_path: Path, keep: Callable[[int], None]) -> None:
    path = tmp_path / "short.jsonl"
    fd = written(path, 20)
    WrittenPages(fd).durable_until(20 * MEBI)
    keep(20)
    WrittenPages(fd).durable_until(20 * MEBI)
    assert all(resident(path))
    os.close(fd)


def test_a_long_file_that_is_carried_on_is_released_piece_by_piece(tmp_path: Path, keep: Callable[[int], None]) -> None:
    keep(8)
    path = tmp_path / "resumed.jsonl"
    fd = written(path, 104)
    pages = WrittenPages(fd)
    pages.durable_until(104 * MEBI)
    assert resident(path) == [False] * 64 + [True] * 40
    pages.durable_until(104 * MEBI)
    assert resident(path) == [False] * 96 + [True] * 8
    os.close(fd)


async def test_an_appender_releases_what_its_syncs_made_durable(tmp_path: Path, keep: Callable[[int], None]) -> None:
    os.close(written(tmp_path / "probe", 1))
    path, syncs = tmp_path / "run.jsonl", LoopSync()
    keep(8)
    appender = LineAppender(path)
    line = b"x" * (MEBI - 1) + b"\n"
    for _ in range(24):
        appender.append(line)
    assert all(resident(path)), "nothing is released before it is durable"
    await appender.sync_by(syncs)
    assert resident(path) == [False] * 16 + [True] * 8
    appender.append(line)
    appender.close()
    syncs.close()
    assert path.read_bytes() == line * 25

"""Syncs by the kernel, and from an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from pathlib import Path

import pytest

from nemo_gym.store.jsonl import LineAppender
from nemo_gym.store.kernel_sync import MAX_IN_FLIGHT, KernelSync
from nemo_gym.store.loop_sync import LoopSync

needs_kernel = pytest.mark.skipif(KernelSync.open() is None, reason="this kernel has no asynchronous sync")


@needs_kernel
def test_each_sync_is_reported_once_also_when_its_file_was_closed(tmp_path: Path) -> None:
    kernel = KernelSync.open()
    assert kernel is not None
    wanted = set(range(20))
    fds = [os.open(tmp_path / str(number), os.O_CREAT | os.O_WRONLY) for number in wanted]
    for fd in fds:
        os.write(fd, b"x")
    assert kernel.start(list(zip(fds, wanted, strict=True))) == 20
    for fd in fds:
        os.close(fd)
    ended = []
    while len(ended) < 20:
        found = kernel.finished(5.0)
        assert found
        ended += found
    assert sorted(ended) == [(number, None) for number in sorted(wanted)]
    assert kernel.finished() == []


@needs_kernel
def test_more_than_fits_is_refused_from_the_end_and_a_bad_file_is_not_taken(tmp_path: Path) -> None:
    kernel = KernelSync.open()
    assert kernel is not None
    fd = os.open(tmp_path / "x", os.O_CREAT | os.O_WRONLY)
    started = kernel.start([(fd, number) for number in range(MAX_IN_FLIGHT + 5)])
    assert 0 < started <= MAX_IN_FLIGHT
    left = started
    while left:
        left -= len(kernel.finished(5.0))
    os.close(fd)
    assert kernel.start([(fd, 1)]) == 0


@pytest.fixture(params=["kernel", "threads"])
def syncs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LoopSync:
    if request.param == "threads":
        monkeypatch.setattr(KernelSync, "open", classmethod(lambda cls: None))
    elif KernelSync.open() is None:
        pytest.skip("this kernel has no asynchronous sync")
    return LoopSync()


async def test_a_loop_has_many_files_synced_at_once_and_again_after_closing(tmp_path: Path, syncs: LoopSync) -> None:
    appenders = [LineAppender(tmp_path / f"{number}.jsonl") for number in range(MAX_IN_FLIGHT + 5)]
    for _ in range(2):
        for appender in appenders:
            appender.append(b"{}\n")
        assert all(appender.unsynced == 1 for appender in appenders)
        await asyncio.gather(*(appender.sync_by(syncs) for appender in appenders))
        assert all(appender.unsynced == 0 for appender in appenders)
        syncs.close()
    for appender in appenders:
        appender.close()


async def test_with_as_many_files_open_as_may_be_threads_sync(tmp_path: Path) -> None:
    """A run has most connections open when its first rows are to be synced, and a sync needs no file of its own."""
    appender, syncs = LineAppender(tmp_path / "x.jsonl"), LoopSync()
    appender.append(b"{}\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        await appender.sync_by(syncs)
        await appender.sync_by(syncs)
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert appender.unsynced == 0
    syncs.close()
    appender.close()


async def test_what_is_appended_during_a_sync_is_not_called_durable(tmp_path: Path, syncs: LoopSync) -> None:
    appender = LineAppender(tmp_path / "x.jsonl")
    appender.append(b"{}\n")
    syncing = asyncio.ensure_future(appender.sync_by(syncs))
    await asyncio.sleep(0)
    appender.append(b"{}\n")
    await syncing
    assert appender.unsynced == 1
    syncs.close()
    appender.close()


async def test_a_sync_that_fails_raises_and_a_cancelled_one_disturbs_no_other(tmp_path: Path, syncs: LoopSync) -> None:
    with pytest.raises(OSError, match="descriptor"):
        await syncs.sync(10_000)
    appender = LineAppender(tmp_path / "x.jsonl")
    appender.append(b"{}\n")
    given_up = asyncio.ensure_future(appender.sync_by(syncs))
    await asyncio.sleep(0)
    given_up.cancel()
    await appender.sync_by(syncs)
    assert given_up.cancelled()
    assert appender.unsynced == 0
    syncs.close()
    appender.close()

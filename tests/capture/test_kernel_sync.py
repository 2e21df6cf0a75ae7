"""Syncs by the kernel, and what the writer does where it has none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.capture import writer
from nemo_gym.capture.kernel_sync import MAX_IN_FLIGHT, KernelSync

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


async def test_without_kernel_syncs_threads_do_them(captured: Any, tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer.KernelSync, "open", classmethod(lambda cls: None))
    app = captured(tools.json_app(b"{}"))
    for _ in range(5):
        answer = await app.call("/ng-rollout/0-0/v1/responses")
        assert app.store.read("0-0")[-1]["model_call_id"] == answer.headers["x-ng-model-call-id"]
    assert app.writer.counters.written == 5


async def test_after_slow_writes_threads_write(captured: Any, tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SLOW_WRITE_S", -1.0)
    app = captured(tools.json_app(b"{}"))
    for _ in range(8):
        await app.call("/ng-rollout/0-0/v1/responses")
    assert app.writer._direct_from > 0
    assert len(app.lines()) == 8

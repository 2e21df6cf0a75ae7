"""What the writer does where the kernel syncs nothing, and after slow writes."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.capture import writer


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

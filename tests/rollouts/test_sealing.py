"""`model_call_capture_archive: zstd` seals a rollout's capture once its record is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_gym.capture import CaptureStore
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.capture_settings import reconciled
from nemo_gym.rollouts.evidence import EvidencePolicy

ROW = {"_ng_task_index": 0, "_ng_rollout_index": 0}


def test_the_servers_or_the_collectors_setting_asks_for_it(tmp_path: Path) -> None:
    servers = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path)}
    assert not reconciled(servers, {}).archive
    assert reconciled({**servers, "model_call_capture_archive": "zstd"}, {}).archive
    assert reconciled(servers, {"model_call_capture_archive": "zstd"}).archive
    assert not reconciled(
        {**servers, "model_call_capture_archive": "zstd"}, {"model_call_capture_archive": "none"}
    ).archive
    with pytest.raises(ConfigError, match="`none` or `zstd`"):
        reconciled({**servers, "model_call_capture_archive": "gzip"}, {})


async def test_a_rollout_is_sealed_and_reads_as_before(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    store.record("0-0", {"model_call_id": "a"})
    await EvidencePolicy(capture_dirs=[tmp_path], seal_captures=True).seal_after(ROW)
    assert [path.name for path in tmp_path.iterdir()] == ["0-0.capture.jsonl.zst"]
    assert store.read("0-0") == [{"model_call_id": "a"}]

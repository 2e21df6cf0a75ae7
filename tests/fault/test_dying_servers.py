"""A server that dies under a run ends it, says how it goes on, and what was done is done once."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

GYM = [sys.executable, "-m", "nemo_gym.cli.main"]
SCRIPT = """
scripts:
  - name: ledger_transfer
    steps:
      - {calls: [{name: list_accounts}], delay_s: 0.1}
      - {text: done, delay_s: 0.1}
"""
ROWS = 40


def _eventually(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("victim", ["ledger", "ledger_simple_agent", "policy_model"])
def test_a_server_that_dies_ends_the_run_and_the_command_it_names_does_the_rest(tmp_path: Path, victim: str) -> None:
    (tmp_path / "slow.yaml").write_text(SCRIPT)
    settings = [
        f"+nemo_gym_log_dir={tmp_path / 'logs'}",
        "+policy_model.responses_api_models.scripted_model.scripts_fpath=slow.yaml",
        "+observability_enabled=true",
        f"+model_call_capture_dir={tmp_path / 'calls'}",
    ]
    environment = {**os.environ, "HOME": str(tmp_path)}
    made = [*GYM, "dataset", "make", "ledger", "-o", "rows.jsonl", "--size", str(ROWS)]
    subprocess.run(made, cwd=tmp_path, env=environment, check=True, capture_output=True)
    words = ["--resources-server", "ledger", "--model-type", "scripted_model", "-i", "rows.jsonl", "-o", "r.jsonl"]
    process = subprocess.Popen(
        [*GYM, "eval", "run", *words, "--concurrency", "4", *settings],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        results = tmp_path / "r.jsonl"
        done = random.Random(victim).randint(1, ROWS // 2)
        _eventually(lambda: results.exists() and results.read_bytes().count(b"\n") >= done)
        family = psutil.Process(process.pid).children(recursive=True)
        [pid] = [server.pid for server in family if Path(f"/proc/{server.pid}/fd/1").readlink().name == f"{victim}.log"]
        os.kill(pid, signal.SIGKILL)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert not any(child.is_running() for child in family)
    assert f"Error: server `{victim}` " in said
    assert "was ended by SIGKILL" in said
    before = [record["_ng_task_index"] for record in _lines(results)]
    assert len(before) >= done
    offered = shlex.split(said.strip().splitlines()[-1])
    assert offered[0] == "gym"
    assert offered[-1] == "--resume"
    subprocess.run([*GYM, *offered[1:]], cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=120)
    records = _lines(results)
    assert [record["_ng_task_index"] for record in records[: len(before)]] == before, "what is done is not done again"
    assert sorted(record["_ng_task_index"] for record in records) == list(range(ROWS))
    assert {len(record["ng_trajectory"]["model_calls"]) for record in records} == {2}

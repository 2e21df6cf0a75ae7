"""`examples/training_loop.py`: shards of one folder from several processes at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from nemo_gym.rollouts import RolloutStore
from nemo_gym.rollouts.run_progress import read_progress

EXAMPLE = Path(__file__).parents[2] / "examples" / "training_loop.py"


def train(tmp_path, *words):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NEMO_GYM_")}
    return subprocess.run(
        [sys.executable, str(EXAMPLE), "--output", "runs/policy", *words], cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=True, env={**environment, "XDG_STATE_HOME": str(tmp_path / "state")},
    ).stdout  # fmt: skip


def test_it_trains_against_servers_that_run_and_a_replayed_step_duplicates_nothing(servers, tmp_path):
    rows = [{"responses_create_params": {"input": str(n)}, "q": n} for n in range(9)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    servers.behaviours["agent_a"] = lambda row: (500, "x") if row["q"] == 4 else {**row, "reward": 0.5}
    words = ["--head-port", str(servers.head_port), "--input", "tasks.jsonl", "--agent", "agent_a", "--workers", "2"]
    for steps in ("1", "2"):
        out = train(tmp_path, *words, "--steps", steps)
        assert "step 0: mean reward 0.500 over 16 rollouts, 2 failed" in out
    shards = read_progress(tmp_path / "runs" / "policy")
    assert len(shards) == 4, "two steps of two workers"
    assert sum(shard.status.counts.succeeded for shard in shards) == 32
    assert len({row["_ng_rollout_id"] for row in servers.received}) == len(servers.received) == 54
    store = RolloutStore(tmp_path / "runs" / "policy", read_only=True)
    assert len(list(store.missing())) == 4


def test_rollouts_without_a_number_as_their_reward_train_nothing_and_end_nothing(servers, tmp_path):
    given = [0.5, 1, None, "1.0", [1.0], {"reward": 1.0}, "absent"]
    rows = [{"responses_create_params": {"input": str(n)}, "q": n} for n in range(len(given))]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    servers.behaviours["agent_a"] = lambda row: (
        row if given[row["q"]] == "absent" else {**row, "reward": given[row["q"]]}
    )
    words = ["--head-port", str(servers.head_port), "--input", "tasks.jsonl", "--agent", "agent_a", "--workers", "2"]
    out = train(tmp_path, *words, "--steps", "1", "--repeats", "1")
    assert "step 0: mean reward 0.750 over 2 rollouts, 0 failed" in out


def test_it_starts_an_environment_and_every_record_has_its_evidence(tmp_path):
    out = train(tmp_path, "--steps", "1")
    assert "step 0: mean reward 1.000 over 12 rollouts, 0 failed" in out
    folder = tmp_path / "runs" / "policy"
    results = list(RolloutStore(folder, read_only=True).results())
    assert len(results) == 12
    assert all(row["ng_perf"]["token_observability_coverage"] == 1.0 for row in results)
    assert json.loads((folder / "quality_summary.json").read_text())["run"]["verdicts"]["healthy"] == 12
    [entry] = json.loads((folder / "all_aggregate_metrics.json").read_text())
    assert entry["key_metrics"]["mean/reward"] == 1.0

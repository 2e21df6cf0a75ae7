from __future__ import annotations

import json
from typing import Any

import pytest

from nemo_gym.analysis import RewardProfiler


def _inputs(tasks: int, repeats: int) -> list[dict[str, Any]]:
    return [
        {"_ng_task_index": task, "_ng_rollout_index": rollout, "question": f"q{task}", "agent_ref": {"name": "a"}}
        for task in range(tasks)
        for rollout in range(repeats)
    ]


def _results(inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**{key: row[key] for key in ("_ng_task_index", "_ng_rollout_index", "agent_ref")}, "reward": float(n % 2)}
        for n, row in enumerate(inputs)
    ]


def test_a_profile_has_one_line_per_task_with_the_input_as_sample() -> None:
    inputs = _inputs(2, 2)
    profiler = RewardProfiler()
    profile = profiler.profile_from_data(inputs, list(reversed(_results(inputs))))
    files = profiler.files(profile, "run/rollouts.jsonl")
    assert [str(path.relative_to("run")) for path in files] == [
        "rollouts_reward_profiling.jsonl",
        "rollouts_agent_metrics.json",
        "rollouts_repeat_level_metrics.json",
    ]
    profiling, agents, repeats = files.values()
    lines = [json.loads(line) for line in profiling.splitlines()]
    assert [line["sample"] for line in lines] == [{"question": f"q{n}", "agent_ref": {"name": "a"}} for n in range(2)]
    assert lines[0]["mean/reward"] == 0.5
    assert json.loads(agents)[0]["agent_ref"] == {"name": "a"}
    assert len(json.loads(repeats)) == 2


def test_partial_rollouts_need_leave_and_lower_the_completion() -> None:
    inputs = _inputs(2, 2)
    results = _results(inputs)[:-1]
    with pytest.raises(ValueError, match=r"`1:1`"):
        RewardProfiler().profile_from_data(inputs, results)
    profile = RewardProfiler().profile_from_data(inputs, results, allow_partial_rollouts=True)
    assert profile.group_level_metrics[1]["missing_num_rollouts"] == 1
    assert profile.group_level_metrics[1]["reward_profile_completion_pct"] == 50


def test_results_without_input_and_repeated_keys_are_refused() -> None:
    inputs = _inputs(1, 1)
    stray = {"_ng_task_index": 9, "_ng_rollout_index": 0, "reward": 1}
    with pytest.raises(ValueError, match="no materialized input"):
        RewardProfiler().profile_from_data(inputs, [*_results(inputs), stray])
    with pytest.raises(ValueError, match="occur twice"):
        RewardProfiler().profile_from_data(inputs, _results(inputs) * 2)


def test_fan_out_profiles_each_task_per_agent_and_masked_pairs_count_as_coverage() -> None:
    inputs = _inputs(1, 1) + [{**row, "agent_ref": {"name": "b"}} for row in _inputs(1, 1)]
    results = _results(inputs)
    results[1]["mask_sample"] = True
    profile = RewardProfiler().profile_from_data(inputs, results)
    assert [group["agent_ref"]["name"] for group in profile.group_level_metrics] == ["a"]
    first, second = profile.agent_metrics
    assert first["mean/reward"] == 0.0
    assert "coverage/masked_rollouts" not in first
    assert second["coverage/masked_rollouts"] == 1

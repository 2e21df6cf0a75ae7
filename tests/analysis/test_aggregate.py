from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.analysis import AggregateMetricsMixin, compute_aggregate_metrics, coverage_by_agent, select_measured


def _row(task: int, rollout: int, reward: float | None, **fields: Any) -> dict[str, Any]:
    row = {"_ng_task_index": task, "_ng_rollout_index": rollout, **fields}
    return row if reward is None else {**row, "reward": reward}


def test_no_rows_give_the_five_keys_empty() -> None:
    assert compute_aggregate_metrics([]) == {
        "group_level_metrics": [],
        "agent_metrics": {},
        "key_metrics": {},
        "perf_summary": None,
        "repeat_level_metrics": [],
    }


def test_every_numeric_top_level_field_and_usage_is_described() -> None:
    rows = [
        _row(
            0, 0, 1.0, ok=True, note="text", deep={"n": 1}, _hidden=3, response={"usage": {"input_tokens": 10, "d": {}}}
        ),
        _row(1, 0, 0.0, ok=False, response={"usage": {"input_tokens": 30}}),
    ]
    metrics = compute_aggregate_metrics(rows)["agent_metrics"]
    assert metrics["mean/reward"] == 0.5
    assert metrics["std/reward"] == pytest.approx(0.5**0.5)
    assert metrics["mean/ok"] == 0.5
    assert metrics["max/input_tokens"] == 30
    assert metrics["median/input_tokens"] == 20
    assert not any(name.endswith(("/note", "/deep", "/_hidden", "/mask_sample")) for name in metrics)
    assert next(iter(metrics)) == "mean/reward"


def test_a_missing_field_is_averaged_over_the_rows_that_have_it() -> None:
    metrics = compute_aggregate_metrics([_row(0, 0, 1.0), _row(1, 0, None), _row(2, 0, None, extra=5)])["agent_metrics"]
    assert metrics["mean/reward"] == 1.0
    assert metrics["mean/extra"] == 5
    assert metrics["std/reward"] == 0.0


def test_a_column_with_one_value_lacks_a_deviation_only_beside_columns_that_have_one() -> None:
    metrics = compute_aggregate_metrics([_row(0, 0, 1.0, once=2), _row(1, 0, 0.0)])["agent_metrics"]
    assert "std/reward" in metrics
    assert "std/once" not in metrics


def test_groups_list_their_rollouts_in_order() -> None:
    rows = [_row(10, 0, 0.0), _row(2, 1, 1.0), _row(2, 0, 0.0)]
    groups = compute_aggregate_metrics(rows)["group_level_metrics"]
    assert [group["_ng_task_index"] for group in groups] == [2, 10]
    assert groups[0]["num_rollouts"] == groups[0]["expected_num_rollouts"] == 2
    assert groups[0]["missing_num_rollouts"] == 0
    assert groups[0]["reward_profile_completion_pct"] == 100
    assert [info["rollout_id"] for info in groups[0]["rollout_infos"]] == ["2:0", "2:1"]
    assert groups[0]["rollout_infos"][1]["reward"] == 1.0
    assert groups[0]["sample"] == {"agent_ref": {"name": "agent"}}


def test_masked_rows_count_in_coverage_and_performance_alone() -> None:
    perf = {"num_turns": 1, "token_observability_coverage": 1.0}
    rows = [_row(0, 0, 1.0), _row(0, 1, 0.0, mask_sample=True, ng_perf=perf), _row(1, 0, 0.0, mask_sample=True)]
    result = compute_aggregate_metrics(rows)
    assert result["agent_metrics"]["mean/reward"] == 1.0
    expected = {
        "coverage/measured_rollouts": 1,
        "coverage/masked_rollouts": 2,
        "coverage/measured_tasks": 1,
        "coverage/fully_masked_tasks": 1,
    }
    for metrics in (result["agent_metrics"], result["key_metrics"]):
        assert {key: value for key, value in metrics.items() if key.startswith("coverage/")} == expected
    assert result["perf_summary"]["overall_observability_coverage"] == pytest.approx(1 / 3)


def test_a_run_that_is_masked_as_a_whole_has_only_coverage() -> None:
    result = compute_aggregate_metrics([_row(0, 0, 1.0, mask_sample=True)])
    assert set(result["agent_metrics"]) == set(result["key_metrics"])
    assert all(key.startswith("coverage/") for key in result["agent_metrics"])
    assert result["group_level_metrics"] == []


def test_coverage_is_absent_when_nothing_is_masked() -> None:
    result = compute_aggregate_metrics([_row(0, 0, 1.0, mask_sample=False)])
    assert not any(key.startswith("coverage/") for key in result["agent_metrics"])
    assert "mean/mask_sample" not in result["agent_metrics"]


def test_repeats_are_described_and_compared() -> None:
    rows = [_row(task, rollout, float((task + rollout) % 2)) for task in range(3) for rollout in range(2)]
    result = compute_aggregate_metrics(rows[:-1])
    first, second = result["repeat_level_metrics"]
    assert (first["_ng_rollout_index"], first["sample_count"], first["missing_count"]) == (0, 3, 0)
    assert (second["sample_count"], second["missing_count"]) == (2, 1)
    assert first["mean/reward"] == pytest.approx(1 / 3)
    assert (first["p25/reward"], first["p75/reward"]) == (0, 0.5)
    assert first["sem/reward"] == pytest.approx(1 / 3)
    assert first["ci_high_95/reward"] == pytest.approx(1 / 3 + 4.302652729911275 / 3)
    metrics = result["agent_metrics"]
    assert metrics["num_repeats"] == 2
    assert metrics["mean_across_repeats/mean/reward"] == pytest.approx((1 / 3 + 0.5) / 2)
    assert metrics["se_across_repeats/mean/reward"] == pytest.approx(1 / 12)
    assert metrics["ci_low_95_across_repeats/mean/reward"] == pytest.approx(5 / 12 - 12.706204736432095 / 12)
    assert not any("across_repeats/max/" in key or "sample_count" in key for key in metrics)


def test_one_repeat_has_no_repeat_metrics() -> None:
    result = compute_aggregate_metrics([_row(0, 0, 1.0), _row(1, 0, 0.0)])
    assert result["repeat_level_metrics"] == []
    assert result["agent_metrics"]["num_repeats"] == 1
    assert not any("across_repeats" in key for key in result["agent_metrics"])


def test_intervals_without_width_collapse_with_one_warning_for_all() -> None:
    rows = [_row(task, rollout, 1.0) for task in range(2) for rollout in range(2)]
    with pytest.warns(RuntimeWarning, match="without width, of equal values: `reward`, `mean/reward`$") as caught:
        result = compute_aggregate_metrics(rows)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert result["agent_metrics"]["ci_low_95_across_repeats/mean/reward"] == 1.0


def test_hooks_run_in_their_order_and_see_sorted_tasks() -> None:
    seen: list[Any] = []

    class Server(AggregateMetricsMixin):
        def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
            seen.append([[row["_ng_rollout_index"] for row in task] for task in tasks])
            return {"custom": 7, "bad": float("nan"), "per_task_metrics": [{"_ng_task_index": 1, "hard": True}]}

        def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
            seen.append("num_repeats" in agent_metrics)
            return {"custom": agent_metrics["custom"]}

        def compute_repeat_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
            value = sum(row["reward"] for task in tasks for row in task)
            return {"mean/reward": value, "total": value, "sometimes": value if value else None}

    server = Server()
    rows = [_row(1, 1, 1.0), _row(1, 0, 0.0), _row(0, 1, 1.0), _row(0, 0, 0.0), _row(5, 0, 9.0, mask_sample=True)]
    result = compute_aggregate_metrics(
        rows, server.compute_metrics, server.get_key_metrics, server.compute_repeat_metrics
    )
    assert seen == [[[0, 1], [0, 1]], True]
    assert result["key_metrics"]["custom"] == 7
    assert "bad" not in result["agent_metrics"]
    assert [group.get("hard") for group in result["group_level_metrics"]] == [None, True]
    assert [entry["mean/reward"] for entry in result["repeat_level_metrics"]] == [0.0, 2.0]
    assert result["agent_metrics"]["mean_across_repeats/total"] == 1.0
    assert not any("sometimes" in key for key in result["agent_metrics"])


def test_default_hooks_change_nothing() -> None:
    server = AggregateMetricsMixin()
    rows = [_row(0, 0, 1.0), _row(0, 1, 0.0)]
    hooked = compute_aggregate_metrics(
        rows, server.compute_metrics, server.get_key_metrics, server.compute_repeat_metrics
    )
    assert hooked == compute_aggregate_metrics(rows)
    assert list(hooked["key_metrics"]) == ["mean/reward"]


def test_the_result_is_json_whatever_the_rows_hold() -> None:
    rows = [
        {"reward": float("inf"), "x": 10**400},
        {"_ng_task_index": "text", "_ng_rollout_index": None, "reward": None, "response": "no object"},
        {"_ng_task_index": 3, "reward": 1, "response": {"usage": [1]}, "ng_perf": {"num_turns": "many"}},
    ]
    json.dumps(compute_aggregate_metrics(rows), allow_nan=False)


def test_coverage_by_agent_names_only_agents_with_masked_rows() -> None:
    rows = [
        {"_ng_task_index": 0, "agent_ref": {"name": "a"}},
        {"_ng_task_index": 0, "agent_ref": {"name": "b"}, "mask_sample": True},
    ]
    assert list(coverage_by_agent(rows)) == ["b"]
    measured = select_measured(rows)
    assert measured.results == rows[:1]
    assert measured.coverage["coverage/fully_masked_tasks"] == 0


def test_the_command_line_warns_of_no_interval(tmp_path: Path) -> None:
    """A run of which every rollout succeeds is the best there is."""
    rows = [json.dumps(_row(task, rollout, 1.0)) for task in range(2) for rollout in range(2)]
    (tmp_path / "rollouts.jsonl").write_text("\n".join(rows) + "\n")
    command = "from nemo_gym.cli.main import main; main()"
    words = ["eval", "aggregate", "-i", "rollouts.jsonl", "-o", "all.jsonl", "--json", "--no-health-check"]
    done = subprocess.run([sys.executable, "-c", command, *words], cwd=tmp_path, capture_output=True, text=True)
    assert '"ci_low_95_across_repeats/mean/reward"' in done.stdout
    assert (done.returncode, "Warning" in done.stderr) == (0, False)

from __future__ import annotations

import pytest

from nemo_gym.analysis import (
    add_avg_sample_std_dev,
    compute_pass_majority_metrics,
    compute_subset_metrics,
    highest_k_metrics,
)


def _tasks() -> list[list[dict[str, object]]]:
    rewards = [[1.0, 0.0, 1.0], [0.0, 0.5]]
    answers = [["x", "y", "x"], [None, "z"]]
    return [
        [{"reward": reward, "answer": answer} for reward, answer in zip(*pair, strict=True)]
        for pair in zip(rewards, answers, strict=True)
    ]


def test_the_executed_example_of_the_contract_comes_out() -> None:
    metrics, scores, names, max_k = compute_pass_majority_metrics(_tasks(), answer_key="answer")
    expected = {
        "pass@1/accuracy": 100 / 3,
        "pass@2/accuracy": 75,
        "pass@3/accuracy": 100,
        "pass@1[avg-of-3]/accuracy": 100 * (2 / 3 + 0.25) / 2,
        "majority@1/accuracy": 50,
        "majority@3/accuracy": 75,
        "pass@1/no_answer": 25,
    }
    for key, value in expected.items():
        assert metrics[key] == pytest.approx(value, abs=1e-9), key
    assert metrics["per_sample_aggregate"]["accuracy"] == pytest.approx([50, 25, 100], abs=1e-9)
    assert (names, max_k) == (["accuracy", "no_answer"], 3)
    assert scores[1] == [{"accuracy": 0.0, "no_answer": 1}, {"accuracy": 0.5, "no_answer": 0}]


def test_deviation_across_runs_is_that_of_the_first_k_run_means() -> None:
    metrics, *_ = compute_pass_majority_metrics(_tasks())
    assert metrics["pass@1[avg-of-2]/accuracy/std_dev_across_runs"] == pytest.approx(25 / 2**0.5)
    assert metrics["pass@1[avg-of-2]/accuracy/std_err_across_runs"] == pytest.approx(12.5)
    assert "pass@1[avg-of-1]/accuracy/std_dev_across_runs" not in metrics
    assert not any(key.startswith("majority@") for key in metrics)


def test_no_tasks_give_nothing() -> None:
    assert compute_pass_majority_metrics([]) == ({}, [], [], 0)


def test_majority_averages_ties_and_counts_no_answer_as_zero() -> None:
    tie = [[{"reward": 1, "a": "x"}, {"reward": 0, "a": "y"}], [{"reward": 1, "a": None}, {"reward": 1}]]
    metrics, *_ = compute_pass_majority_metrics(tie, answer_key="a")
    assert metrics["majority@2/accuracy"] == pytest.approx(25)


def test_answers_may_be_any_json_value() -> None:
    task = [{"reward": 1, "a": [1, {"b": 2}]}, {"reward": 1, "a": [1, {"b": 2}]}, {"reward": 0, "a": "z"}]
    metrics, *_ = compute_pass_majority_metrics([task], answer_key="a")
    assert metrics["majority@3/accuracy"] == 100


def test_booleans_are_scores_and_names_are_free() -> None:
    tasks = [[{"ok": True}, {"ok": False}]]
    metrics, scores, names, _ = compute_pass_majority_metrics(tasks, lambda row: {"solved": row["ok"], "note": "text"})
    assert names == ["solved"]
    assert scores == [[{"solved": 1}, {"solved": 0}]]
    assert metrics["pass@1/solved"] == 50
    assert metrics["pass@2/solved"] == 100


def test_a_missing_reward_is_not_a_zero() -> None:
    metrics, *_ = compute_pass_majority_metrics([[{"reward": 1}, {}]])
    assert metrics["pass@1/accuracy"] == 100
    assert "pass@2/accuracy" not in metrics


def test_sample_deviation_is_the_mean_over_tasks_and_no_percentage() -> None:
    metrics, scores, names, max_k = compute_pass_majority_metrics(_tasks())
    add_avg_sample_std_dev(metrics, scores, names, max_k)
    assert metrics["pass@1[avg-of-2]/accuracy/avg_sample_std_dev"] == pytest.approx((0.5**0.5 + 0.125**0.5) / 2)
    assert "pass@1[avg-of-1]/accuracy/avg_sample_std_dev" not in metrics


def test_subsets_are_prefixed_and_tasks_without_one_are_skipped() -> None:
    tasks = [
        [{"reward": 1, "level": "easy"}],
        [{"reward": 0, "level": ""}, {"reward": 1, "level": "hard"}],
        [{"reward": 1}],
    ]
    metrics = compute_subset_metrics(tasks, "level")
    assert metrics["easy/pass@1/accuracy"] == 100
    assert metrics["hard/pass@1/accuracy"] == 50
    assert {key.split("/")[0] for key in metrics} == {"easy", "hard"}
    assert not any("per_sample_aggregate" in key for key in metrics)


def test_highest_k_keeps_the_largest_k_and_no_deviation() -> None:
    metrics, scores, names, max_k = compute_pass_majority_metrics(_tasks(), answer_key="answer")
    add_avg_sample_std_dev(metrics, scores, names, max_k)
    assert set(highest_k_metrics(metrics, "pass@{k}")) == {"pass@3/accuracy", "pass@3/no_answer"}
    averages = highest_k_metrics(metrics, "pass@1[avg-of-{k}]", score_names=["accuracy"])
    assert list(averages) == ["pass@1[avg-of-3]/accuracy"]
    assert list(highest_k_metrics(metrics, "majority@{k}", exclude_names=["no_answer"])) == ["majority@3/accuracy"]
    assert highest_k_metrics(metrics, "nothing@{k}") == {}

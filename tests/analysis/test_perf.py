from __future__ import annotations

import pytest

from nemo_gym.analysis import compute_perf_summary


def test_the_verified_numbers_of_the_contract_come_out_a28() -> None:
    rows = [
        {"ng_perf": {"num_turns": 1, "token_observability_coverage": 1.0, "completion_tokens": 10}},
        {"ng_perf": {"num_turns": 3, "token_observability_coverage": 0.0}},
        {},
        {"mask_sample": True},
    ]
    summary = compute_perf_summary(rows)
    assert summary is not None
    assert summary["overall_observability_coverage"] == 0.5
    assert summary["token_observability_coverage"] == 0.25
    assert summary["std_num_turns"] == 1.0
    assert summary["p90_num_turns"] == pytest.approx(2.8)
    assert (summary["min_num_turns"], summary["max_num_turns"], summary["mean_num_turns"]) == (1, 3, 2)
    assert summary["mean_tokens_per_turn"] == summary["median_tokens_per_turn"] == 10


def test_absent_counts_have_no_key_and_are_not_zero() -> None:
    summary = compute_perf_summary([{"ng_perf": {"num_turns": 2, "prompt_tokens": 4}}, {"ng_perf": {"num_turns": 2}}])
    assert summary is not None
    assert summary["total_prompt_tokens"] == summary["mean_prompt_tokens"] == 4
    assert not any("reasoning" in key or "latency" in key or "per_turn" in key for key in summary)


def test_latency_percentiles_interpolate() -> None:
    rows = [{"ng_perf": {"total_latency_ms": value}} for value in (100.0, 200.0, 300.0)]
    summary = compute_perf_summary(rows)
    assert summary is not None
    assert summary["total_latency_p50_ms"] == 200
    assert summary["total_latency_p90_ms"] == pytest.approx(280)
    assert summary["total_latency_p99_ms"] == pytest.approx(298)
    assert summary["total_latency_mean_ms"] == 200


def test_no_ng_perf_gives_no_summary() -> None:
    assert compute_perf_summary([]) is None
    assert compute_perf_summary([{"reward": 1}, {"ng_perf": None}]) is None


def test_details_add_up_under_one_key_and_leave_the_others_alone() -> None:
    tools = [
        {"tool_name": "bash", "count": 2, "failures": 1, "durations_ms": [10.0, 30.0], "p50_ms": 20.0, "p95_ms": 29.0},
        {"tool_name": None, "count": 1, "failures": 0},
    ]
    first = {
        "time": {"model_calls_timed": 2, "tool_calls_timed": 2, "model_ms": 100.0, "tool_ms": 40.0, "idle_ms": 5.0},
        "ttft_ms": {"values": [1.0, 3.0], "p50": 2.0, "p95": 2.9},
        "cached_share": 0.5,
        "failed_calls": {"count": 1, "prompt_tokens": 7},
        "retries": {"count": 1, "prompt_tokens": 7, "completion_tokens": 2},
        "tools": tools,
    }
    second = {"time": {"model_calls_timed": 0, "tool_calls_timed": 0}, "failed_calls": {"count": 0}, "tools": tools[:1]}
    rows = [{"ng_perf": {"num_turns": 1}, "ng_perf_detail": detail} for detail in (first, second)]
    summary = compute_perf_summary([*rows, {"ng_perf": {"num_turns": 1}}])
    assert summary is not None
    detail = summary.pop("detail")
    assert summary == compute_perf_summary([{"ng_perf": {"num_turns": 1}}] * 3)
    assert detail["rollouts"] == 2
    assert detail["model_ms"] == {"count": 1, "mean": 100.0, "p50": 100.0, "p95": 100.0, "total": 100.0}
    assert "overlap_ms" not in detail
    assert detail["ttft_ms"]["p95"] == pytest.approx(2.9)
    assert detail["cached_share"] == {"mean": 0.5, "rollouts": 1}
    assert detail["failed_calls"] == {"rollouts": 2, "count": 1, "prompt_tokens": 7}
    assert detail["retries"] == {"rollouts": 1, "count": 1, "prompt_tokens": 7, "completion_tokens": 2}
    bash, nameless = detail["tools"]
    assert (bash["tool_name"], bash["count"], bash["failures"]) == ("bash", 4, 2)
    assert (bash["duration_ms"]["count"], bash["duration_ms"]["p50"]) == (4, 20.0)
    assert nameless == {"tool_name": None, "count": 1, "failures": 0}


@pytest.mark.parametrize("odd", [{}, {"time": 3, "tools": [1, {"tool_name": 4}], "ttft_ms": {"values": "x"}}])
def test_a_detail_of_another_shape_costs_nothing_but_itself(odd: dict) -> None:
    summary = compute_perf_summary([{"ng_perf": {"num_turns": 1}, "ng_perf_detail": odd}])
    assert summary is not None
    assert summary["detail"]["rollouts"] == 1

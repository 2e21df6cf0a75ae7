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

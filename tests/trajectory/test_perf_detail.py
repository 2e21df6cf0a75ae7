"""`ng_perf_detail`: where time and tokens went; what nobody observed has no key."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.trajectory import build_perf_detail


def call(call_id, start=None, end=None, *, request="q", **metadata):
    tokens = {key: metadata.pop(key) for key in list(metadata) if key.endswith("_tokens")}
    return {
        "model_call_id": call_id,
        "started_at": start,
        "completed_at": end,
        "request": {"input": request},
        "response_metadata": metadata,
        "token_stats": tokens,
    }


def trajectory_of(make, calls, tools=(), **changes):
    refs = [{"model_call_id": one["model_call_id"]} for one in calls if one["model_call_id"]]
    return make.trajectory(
        invocations=[make.invocation("root", *refs)], model_calls=calls, tool_calls=list(tools), **changes
    )


def test_time_is_the_union_of_intervals_and_idle_is_what_is_left(make):
    """Two calls at once count once; a tool that runs while the model does overlaps."""
    calls = [call("a", 0.0, 2.0), call("b", 1.0, 3.0), call("c", 6.0, 7.0)]
    tools = [make.tool("root", "t", started_at=2.5, completed_at=4.0)]
    time = build_perf_detail(trajectory_of(make, calls, tools))["time"]
    assert time == {
        "model_calls_timed": 3, "tool_calls_timed": 1, "model_ms": 4000.0, "tool_ms": 1500.0,
        "busy_ms": 5000.0, "overlap_ms": 500.0, "span_ms": 7000.0, "idle_ms": 2000.0,
    }  # fmt: skip


def test_what_is_not_timed_leaves_idle_and_overlap_unknown(make):
    calls = [call("a", 0.0, 2.0), call("b")]
    time = build_perf_detail(trajectory_of(make, calls))["time"]
    assert time == {"model_calls_timed": 1, "tool_calls_timed": 0, "model_ms": 2000.0}
    assert build_perf_detail(trajectory_of(make, []))["time"] == {"model_calls_timed": 0, "tool_calls_timed": 0}


def test_a_bound_follows_from_the_other_one_and_the_duration(make):
    tools = [
        make.tool("root", "t", started_at=1.0, duration_ms=500.0),
        make.tool("root", "u", completed_at=3.0, duration_ms=500.0),
        make.tool("root", "v", duration_ms=500.0),
    ]
    assert build_perf_detail(trajectory_of(make, [], tools))["time"] == {
        "model_calls_timed": 0, "tool_calls_timed": 2, "tool_ms": 1000.0,
    }  # fmt: skip


def test_retries_are_calls_that_send_again_what_failed(make):
    calls = [
        call("a", request="x", status_code=429),
        call("b", request="x", status_code=500, prompt_tokens=3),
        call("c", request="x", status_code=200, prompt_tokens=3, completion_tokens=1, cached_tokens=1),
        call("d", request="y", status_code=200, prompt_tokens=9, cached_tokens=3),
    ]
    detail = build_perf_detail(trajectory_of(make, calls))
    assert detail["failed_calls"] == {"count": 2, "prompt_tokens": 3}
    assert detail["retries"] == {"count": 2, "prompt_tokens": 6, "completion_tokens": 1}
    assert detail["cached_share"] == pytest.approx(4 / 12)
    calls[0]["request"] = None
    assert "retries" not in build_perf_detail(trajectory_of(make, calls))


def test_tools_are_counted_by_name_with_percentiles_of_what_was_measured(make):
    tools = [
        make.tool("root", f"t{n}", tool_name="bash", duration_ms=float(n), status="completed") for n in range(1, 6)
    ]
    tools += [
        make.tool("root", "f", tool_name="bash", status="failed"),
        make.tool("root", "g", tool_name="bash", status="timeout"),
        make.tool("root", "n"),
        make.tool("gone", "x", tool_name="bash"),
    ]
    assert build_perf_detail(trajectory_of(make, [], tools))["tools"] == [
        {
            "tool_name": "bash", "count": 7, "failures": 2,
            "durations_ms": [1.0, 2.0, 3.0, 4.0, 5.0], "p50_ms": 3.0, "p95_ms": pytest.approx(4.8),
        },
        {"tool_name": None, "count": 1, "failures": 0},
    ]  # fmt: skip


def test_first_bytes_are_listed_and_unowned_calls_count_for_nothing(make):
    calls = [call("a", latency_ttft_ms=30.0), call("b", latency_ttft_ms=10.0)]
    alone = make.trajectory(invocations=[make.invocation("root", {"model_call_id": "a"})], model_calls=calls)
    assert build_perf_detail(alone)["ttft_ms"] == {"values": [30.0], "p50": 30.0, "p95": 30.0}


@pytest.mark.parametrize("trajectory", [None, {}, {"task_id": "t", "rollout_id": "r"}])
def test_there_is_none_where_there_is_no_perf(trajectory):
    assert build_perf_detail(trajectory) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_parts_of_the_time_never_add_up_to_more_than_the_whole(make, seed):
    rng = random.Random(seed)
    spans = [sorted((rng.uniform(0, 9), rng.uniform(0, 9))) for _ in range(rng.randint(1, 9))]
    calls = [call(str(n), *span) for n, span in enumerate(spans)]
    tools = [
        make.tool("root", f"t{n}", started_at=start, completed_at=end)
        for n, (start, end) in enumerate(
            sorted((rng.uniform(0, 9), rng.uniform(0, 9))) for _ in range(rng.randint(0, 5))
        )
    ]
    time = build_perf_detail(trajectory_of(make, calls, tools))["time"]
    tool_ms = time.get("tool_ms", 0.0)
    assert time["busy_ms"] + time["idle_ms"] == pytest.approx(time["span_ms"])
    assert max(time["model_ms"], tool_ms) <= time["busy_ms"] + 1e-6
    assert time["model_ms"] + tool_ms - time["overlap_ms"] == pytest.approx(time["busy_ms"])

"""`ng_perf`: what is counted, and what is absent because nobody measured it."""

from __future__ import annotations

import math

import pytest

from nemo_gym.trajectory import build_perf


def call(call_id, **tokens):
    return {"model_call_id": call_id, "token_stats": tokens}


def test_turns_are_explicit_ones_then_owned_calls_then_one_per_invocation(make):
    """A27."""
    perf = build_perf(
        make.trajectory(
            invocations=[
                make.invocation("root", {"model_call_id": "a"}),
                make.invocation("sub", {"model_call_id": "b"}, {"model_call_id": "c"}),
                make.invocation("idle"),
            ],
            turns=[make.turn(1), make.turn(2), make.turn(3), make.turn(1, invocation_id="nobody")],
            model_calls=[call("a"), call("b"), call("c")],
        )
    )
    assert perf == {"num_turns": 3 + 2 + 1, "num_tool_calls": 0, "token_observability_coverage": 3 / 6}


def test_coverage_never_exceeds_one(make):
    """A27: two calls in one turn."""
    perf = build_perf(
        make.trajectory(
            invocations=[make.invocation("root", {"model_call_id": "a"}, {"model_call_id": "b"})],
            turns=[make.turn(1)],
            model_calls=[call("a"), call("b")],
        )
    )
    assert perf["token_observability_coverage"] == 1.0


def test_tokens_are_summed_over_owned_calls_that_report_them(make):
    """A27: an unknown count is neither zero nor a key."""
    perf = build_perf(
        make.trajectory(
            invocations=[make.invocation("root", {"model_call_id": "a"}, {"model_call_id": "b"})],
            model_calls=[
                call("a", prompt_tokens=10, completion_tokens=0, cached_tokens=4),
                call("b", prompt_tokens=5, total_tokens=9),
                call("unowned", prompt_tokens=1000, reasoning_tokens=7),
            ],
        )
    )
    assert perf == {
        "num_turns": 2,
        "num_tool_calls": 0,
        "token_observability_coverage": 1.0,
        "prompt_tokens": 15,
        "cached_prompt_tokens": 4,
        "completion_tokens": 0,
    }


def test_a_call_is_counted_once_however_often_it_is_named(make):
    refs = [{"model_call_id": "a"}, make.pair("r")]
    calls = [
        {"model_call_id": "a", "response_metadata": make.pair("r"), "token_stats": {"prompt_tokens": 3}},
    ]
    perf = build_perf(
        make.trajectory(invocations=[make.invocation("root", *refs), make.invocation("sub", *refs)], model_calls=calls)
    )
    assert perf["prompt_tokens"] == 3
    assert perf["num_turns"] == 2
    assert perf["token_observability_coverage"] == 0.5


def test_tools_count_when_their_invocation_is_listed(make):
    """The same tool-call id in two invocations is two tools; one of an unknown invocation is none."""
    tools = [make.tool("root", "t"), make.tool("sub", "t"), make.tool("root", "u"), make.tool("gone", "t")]
    perf = build_perf(make.trajectory(invocations=[make.invocation("root"), make.invocation("sub")], tool_calls=tools))
    assert perf["num_tool_calls"] == 3


@pytest.mark.parametrize("trajectory", [None, {}, {"task_id": "t"}, [], {"task_id": "t", "rollout_id": "r"}])
def test_there_is_none_without_a_valid_trajectory_that_has_an_invocation(trajectory):
    """A28."""
    assert build_perf(trajectory, rollout_latency_ms=5) is None


@pytest.mark.parametrize(
    ("latency", "shown"), [(910.0, True), (0, True), (None, False), (math.nan, False), (-1, False), (True, False)]
)
def test_latency_is_there_when_it_was_measured(make, latency, shown):
    """A28."""
    perf = build_perf(make.trajectory(invocations=[make.invocation("root")]), rollout_latency_ms=latency)
    assert ("total_latency_ms" in perf) is shown

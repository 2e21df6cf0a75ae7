"""The projection: one trajectory out of captured calls, observations and the producer's own records."""

from __future__ import annotations

import copy

import pytest

from nemo_gym.records.evidence import dump
from nemo_gym.records.identity import TrajectoryIdentity
from nemo_gym.trajectory import build_perf, join_observations, project_record, project_trajectory

IDENTITY = TrajectoryIdentity("t", "0-0", False)


def project(identity=IDENTITY, **inputs):
    return dump(project_trajectory(identity=identity, **inputs))


def attachment(*calls, gaps=None):
    capture = {"rollout_id": "0-0", "metrics": {"num_calls": len(calls)}, "calls": list(calls)}
    return capture if gaps is None else {**capture, "gaps": gaps}


def codes(trajectory):
    return [gap["code"] for gap in trajectory["gaps"]]


def test_no_turn_is_made_from_calls_or_conversations(make):
    """A23, D1."""
    bundle = make.bundle(
        make.invocation("root", {"model_call_id": "c1"}, conversation=[{"role": "user", "content": "q"}])
    )
    trajectory = project(capture=attachment(make.call("c1", response={"output": []})), observations=bundle)
    assert trajectory["turns"] == []
    assert codes(trajectory) == ["turns_unavailable"]


def test_a_valid_producer_trajectory_without_turns_is_a_statement(make):
    trajectory = project(capture=attachment(make.call("c1")), producer=make.trajectory())
    assert codes(trajectory) == ["conversation_unavailable"]


def test_producer_turns_are_kept_restamped_and_sorted(make):
    """A23."""
    turns = [
        make.turn(2, task_id="x", rollout_id="y", timestamp=5.0),
        make.turn(1, task_id="x", rollout_id="y", timestamp=5.0),
        make.turn(1, task_id="x", rollout_id="y", timestamp=9.0, invocation_id="a"),
        make.turn(3, task_id="x", rollout_id="y", timestamp=1.0),
    ]
    producer = {"task_id": "x", "rollout_id": "y", "turns": turns}
    trajectory = project(producer=producer)
    assert [(turn["invocation_id"], turn["turn_no"]) for turn in trajectory["turns"]] == [
        ("root", 3),
        ("root", 1),
        ("root", 2),
        ("a", 1),
    ]
    assert {(turn["task_id"], turn["rollout_id"]) for turn in trajectory["turns"]} == {("t", "0-0")}
    assert trajectory["gaps"][0] == make.gap("producer_trajectory_identity_mismatch", None, "task_id,rollout_id")


@pytest.mark.parametrize(
    ("ids", "detail"),
    [({"task_id": "x"}, "task_id"), ({"rollout_id": "x"}, "rollout_id"), ({}, None)],
)
def test_only_the_ids_that_differ_are_named(make, ids, detail):
    gaps = project(producer={**make.trajectory(), **ids})["gaps"]
    assert [g["detail"] for g in gaps if g["code"] == "producer_trajectory_identity_mismatch"] == (
        [detail] if detail else []
    )


def test_an_invalid_identity_override_is_a_gap():
    """D10."""
    assert codes(project(TrajectoryIdentity("t", "0-0", True), capture=attachment()))[0] == (
        "trajectory_identity_invalid"
    )


def test_gaps_stand_in_the_order_of_their_sources(make):
    producer = {"task_id": "x", "rollout_id": "0-0", "gaps": [make.gap("p"), make.gap("shared")]}
    bundle = make.bundle(gaps=[make.gap("b"), make.gap("shared")])
    capture = attachment(gaps=[{"code": "c"}, {"kode": 1}, 5])
    assert codes(project(capture=capture, observations=bundle, producer=producer)) == [
        "producer_trajectory_identity_mismatch",
        "p",
        "shared",
        "b",
        "c",
        "model_call_capture_gap_invalid",
        "model_calls_unavailable",
        "conversation_unavailable",
    ]


def test_the_producers_invocation_stays_and_gets_the_joined_references(make):
    stated = make.invocation("root", make.pair("r1"), make.pair("gone"), status="failed")
    calls = make.calls(make.call("c1", "r1"))
    bundle = join_observations(
        make.bundle(make.invocation("extra"), make.invocation("root", {"model_call_id": "c1"}, status="completed")),
        calls,
    )
    trajectory = project(
        capture=attachment(*calls), observations=bundle, producer=make.trajectory(invocations=[stated])
    )
    root, extra = trajectory["invocations"]
    assert (root["status"], extra["invocation_id"]) == ("failed", "extra")
    assert root["model_calls"] == [make.full("c1", "r1"), {**make.pair("gone"), "model_call_id": None}]


def test_an_output_joins_its_tool_through_invocation_and_call_id(make):
    """A9, A21: the same id in two invocations is two tools; the later item wins."""
    bundle = make.bundle(
        make.tool("root", "t"),
        make.tool("sub", "t"),
        make.tool("gone", "t"),
        make.invocation("root", conversation=[make.output("t", "old"), make.output("t", "new")]),
        make.invocation("sub", conversation=[make.output("t", "sub's")]),
    )
    trajectory = project(observations=bundle)
    assert [(tool["invocation_id"], tool["output"]) for tool in trajectory["tool_calls"]] == [
        ("root", "new"),
        ("sub", "sub's"),
        ("gone", None),
    ]
    assert build_perf(trajectory)["num_tool_calls"] == 2


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call_output", "call_id": "t", "output": "x"},
        {"call_id": "t", "output": "x"},
        {"type": "custom_tool_call_output", "call_id": "t", "output": "x"},
        {"type": "local_shell_call_output", "id": "t", "output": "x"},
        {"type": "shell_call_output", "call_id": "t", "output": "x"},
        {"type": "apply_patch_call_output", "call_id": "t", "output": "x"},
        {"type": "computer_call_output", "call_id": "t", "output": "x"},
        {"type": "mcp_call", "id": "t", "name": "f", "arguments": "{}", "output": "x"},
    ],
)
def test_every_kind_of_tool_result_is_joined(make, item):
    """D7."""
    bundle = make.bundle(make.tool("root", "t"), make.invocation("root", conversation=[item]))
    assert project(observations=bundle)["tool_calls"][0]["output"] == "x"


def test_a_producers_tool_without_output_is_filled_from_the_conversation(make):
    """D9: also when nothing was observed; an output that the producer gave stays."""
    stated = [make.tool("root", "t"), make.tool("root", "u", output="own")]
    conversation = [make.output("t", "seen"), make.output("u", "other")]
    producer = make.trajectory(tool_calls=stated, invocations=[make.invocation("root", conversation=conversation)])
    assert [tool["output"] for tool in project(producer=producer)["tool_calls"]] == ["seen", "own"]


def test_an_observation_overlays_the_producers_tool_but_unknown_never_replaces_a_known_status(make):
    stated = make.tool("root", "t", status="failed", output="kept", tool_name="old", error_type="e")
    bundle = make.bundle(make.tool("root", "t", tool_name="bash", duration_ms=5.0), make.tool("root", "u"))
    first, second = project(observations=bundle, producer=make.trajectory(tool_calls=[stated]))["tool_calls"]
    assert (first["status"], first["output"], first["tool_name"], first["duration_ms"], first["error_type"]) == (
        "failed",
        "kept",
        "bash",
        5.0,
        "e",
    )
    assert second["tool_call_id"] == "u"


def test_a_later_observation_of_one_tool_overlays_the_earlier_one(make):
    bundle = make.bundle(
        make.tool("root", "t", started_at=1.0, status="completed"), make.tool("root", "t", completed_at=2.0)
    )
    (tool,) = project(observations=bundle)["tool_calls"]
    assert (tool["started_at"], tool["completed_at"], tool["status"]) == (1.0, 2.0, "completed")


def test_times_that_contradict_each_other_cost_the_end_and_not_the_trajectory(make):
    stated = make.tool("root", "t", started_at=1.0, completed_at=2.0)
    trajectory = project(
        observations=make.bundle(make.tool("root", "t", started_at=5.0)),
        producer=make.trajectory(tool_calls=[stated]),
    )
    assert trajectory["tool_calls"][0]["completed_at"] is None
    assert make.gap("tool_timing_invalid", "root", "t") in trajectory["gaps"]


def test_captured_values_win_and_what_only_the_producer_knows_survives(make):
    stated = {
        "model_call_id": "c1",
        "request": "PRODUCER",
        "started_at": 1.0,
        "token_stats": {"reasoning_tokens": 5, "prompt_tokens": 1},
        "response_metadata": {"finish_reason": "stop", "model": "mine"},
    }
    captured = make.call("c1", "r1", tokens_in=10, request={"input": "x"}, model="real", latency_total_ms=7)
    producer = make.trajectory(model_calls=[{"request": "no id"}, stated])
    trajectory = project(capture=attachment(make.call("c0"), captured), producer=producer)
    nameless, merged, appended = trajectory["model_calls"]
    assert (nameless["request"], appended["model_call_id"]) == ("no id", "c0")
    assert (merged["request"], merged["started_at"], merged["duration_ms"]) == ({"input": "x"}, 1.0, 7.0)
    assert merged["token_stats"]["prompt_tokens"] == 10
    assert merged["token_stats"]["reasoning_tokens"] == 5
    assert merged["response_metadata"]["model"] == "real"
    assert merged["response_metadata"]["finish_reason"] == "stop"


def test_raw_bodies_stand_in_for_missing_ones_and_a_body_status_for_a_missing_status(make):
    calls = (
        make.call("c1", request_raw="{oops", response={"status": "incomplete"}),
        make.call("c2", response_status="completed", response={"status": "queued"}),
        make.call("c3", response={"status": 5}),
    )
    first, second, third = project(capture=attachment(*calls))["model_calls"]
    assert first["request"] == "{oops"
    statuses = [call["response_metadata"]["response_status"] for call in (first, second, third)]
    assert statuses == ["incomplete", "completed", None]


@pytest.mark.parametrize("count", [True, -1, 1.5, "3", None])
def test_only_true_counts_are_token_counts(make, count):
    (call,) = project(capture=attachment(make.call("c1", tokens_in=count)))["model_calls"]
    assert call["token_stats"]["prompt_tokens"] is None


def test_a_captured_value_that_its_field_cannot_hold_is_unknown_and_leaves_a_gap(make):
    capture = attachment(make.call("c1", "r1", latency_total_ms=-1, status_code="200", started_at=1, call_index=4))
    trajectory = project(capture=capture)
    (call,) = trajectory["model_calls"]
    assert (call["duration_ms"], call["started_at"], call["response_metadata"]["status_code"]) == (None, 1.0, None)
    assert call["response_metadata"]["response_id"] == "r1"
    details = [gap["detail"] for gap in trajectory["gaps"] if gap["code"] == "model_call_field_invalid"]
    assert sorted(details) == ["call_index=4:duration_ms", "call_index=4:status_code"]


def test_a_repeated_call_id_costs_the_later_call_its_id(make):
    """D6: both calls stay, and a reference that gave the full identity still means its call."""
    calls = make.calls(make.call("c1", "r1", tokens_in=1), make.call("c1", "r2", tokens_in=2), make.call("c1", "r3"))
    bundle = join_observations(make.bundle(make.invocation("root", make.pair("r1"), make.pair("r2"))), calls)
    trajectory = project(capture=attachment(*calls), observations=bundle)
    assert [call["model_call_id"] for call in trajectory["model_calls"]] == ["c1", None, None]
    assert codes(trajectory).count("model_call_identity_duplicate") == 1
    assert trajectory["invocations"][0]["model_calls"] == [
        make.full("c1", "r1"),
        {**make.pair("r2"), "model_call_id": None},
    ]
    assert build_perf(trajectory)["prompt_tokens"] == 3


def test_a_reference_by_a_repeated_id_stays_ambiguous_in_perf(make):
    calls = make.calls(make.call("c1", "r1", tokens_in=1), make.call("c1", "r2", tokens_in=2))
    bundle = join_observations(make.bundle(make.invocation("root", {"model_call_id": "c1"})), calls)
    perf = build_perf(project(capture=attachment(*calls), observations=bundle))
    assert perf["token_observability_coverage"] == 0.0
    assert "prompt_tokens" not in perf


def test_a_producers_call_absorbs_one_captured_call_only(make):
    calls = (make.call("c1", "r1", tokens_in=1), make.call("c1", "r2", tokens_in=2))
    producer = make.trajectory(model_calls=[{"model_call_id": "c1"}])
    first, second = project(capture=attachment(*calls), producer=producer)["model_calls"]
    assert (first["token_stats"]["prompt_tokens"], second["token_stats"]["prompt_tokens"]) == (1, 2)
    assert second["model_call_id"] is None


def test_compactions_and_sandboxes_are_not_in_the_trajectory(make):
    """A11."""
    bundle = make.bundle(
        make.invocation("root"),
        make.compaction("root", summary="secret"),
        {"kind": "sandbox", "role": "agent", "sandbox_id": "secret"},
    )
    assert "secret" not in str(project(observations=bundle))


def test_invalid_evidence_is_left_out_with_the_name_of_the_error(make):
    trajectory = project(
        capture=attachment(make.call("c1")),
        observations=make.bundle(make.invocation("x"), make.invocation("x")),
        producer={**make.trajectory(), "surprise": 1},
    )
    assert trajectory["gaps"][:2] == [
        make.gap("producer_trajectory_invalid", None, "ValidationError"),
        make.gap("agent_observations_invalid", None, "ValidationError"),
    ]
    assert len(trajectory["model_calls"]) == 1


def test_success_removes_the_bodies_from_the_capture_and_keeps_the_rest(make):
    """A10, C18."""
    call = make.call("c1", request={"a": 1}, response={"b": 2}, request_raw="x", response_raw="y", tool_calls=[])
    result = {"reward": 1.0, "response": {"id": "r"}, "ng_model_call_capture": attachment(call)}
    project_record(result, identity=IDENTITY)
    (left,) = result["ng_model_call_capture"]["calls"]
    assert set(left) == {"model_call_id", "model_ref", "response_id", "tool_calls"}
    assert result["ng_trajectory"]["model_calls"][0]["request"] == {"a": 1}
    assert (result["reward"], result["response"]) == (1.0, {"id": "r"})


def test_kept_payloads_are_the_same_objects(make):
    request = {"a": 1}
    result = {"ng_model_call_capture": attachment(make.call("c1", request=request))}
    project_record(result, identity=IDENTITY, keep_captured_payloads=True)
    assert result["ng_model_call_capture"]["calls"][0]["request"] is request
    assert result["ng_trajectory"]["model_calls"][0]["request"] is request


def test_without_payloads_the_producers_bodies_go_too(make):
    producer = make.trajectory(model_calls=[{"model_call_id": "c1", "request": "x", "response": "y"}])
    (call,) = project(producer=producer, include_payloads=False)["model_calls"]
    assert (call["request"], call["response"]) == (None, None)


BROKEN = {"rollout_id": "0-0", "calls": ["not a call", {"request": "kept"}]}


def test_failure_removes_the_trajectory_keeps_payloads_and_says_so_on_the_capture(make):
    """A10."""
    result = {"ng_model_call_capture": copy.deepcopy(BROKEN), "ng_trajectory": make.trajectory()}
    assert project_record(result, identity=IDENTITY) is None
    assert "ng_trajectory" not in result
    assert result["ng_model_call_capture"] == {
        **BROKEN,
        "gaps": [make.gap("trajectory_projection_failed", None, "ValidationError")],
    }


def test_failure_is_said_on_the_bundle_when_the_capture_cannot_take_it(make):
    result = {"ng_model_call_capture": "broken", "ng_agent_observations": make.bundle(make.invocation("root"))}
    project_record(result, identity=IDENTITY)
    assert [gap["code"] for gap in result["ng_agent_observations"]["gaps"]] == ["trajectory_projection_failed"]
    assert "ng_trajectory" not in result


def test_failure_makes_a_minimal_trajectory_when_nothing_else_can_take_it(make):
    result = {"ng_model_call_capture": "broken"}
    project_record(result, identity=IDENTITY)
    assert result["ng_trajectory"]["gaps"] == [make.gap("trajectory_projection_failed", None, "ValidationError")]
    assert (result["ng_trajectory"]["task_id"], result["ng_trajectory"]["rollout_id"]) == ("t", "0-0")


def test_a_result_without_evidence_stays_as_it_is():
    result = {"reward": 1.0, "ng_trajectory": None}
    assert project_record(result, identity=IDENTITY) is None
    assert result == {"reward": 1.0, "ng_trajectory": None}


def test_projecting_twice_changes_nothing(make):
    calls = make.calls(make.call("c1", "r1", tokens_in=1, request={"x": 1}))
    bundle = join_observations(
        make.bundle(make.invocation("root", make.pair("r1")), make.tool("root", "t", duration_ms=1)), calls
    )
    inputs = {"capture": attachment(*calls), "observations": bundle}
    once = project(**inputs)
    assert project(**inputs) == once
    again = project(**inputs, producer=once)
    assert again == once

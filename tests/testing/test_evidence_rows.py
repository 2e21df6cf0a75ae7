"""The nine rows on one saved record: a record that lacks something, or claims too much, is told where."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from nemo_gym.testing import NOTHING_REPORTED, ROWS, WhatHappened, check_record, check_scenario, scenarios

POLICY = {"type": "responses_api_models", "name": "policy"}
SCENARIOS = {scenario.name: scenario for scenario in scenarios(subagent_tool="delegate")}


def call(number: int) -> dict[str, Any]:
    return {
        "model_call_id": f"c{number}",
        "started_at": float(number),
        "completed_at": number + 0.5,
        "request": {"input": [{"role": "user", "content": f"question {number}"}]},
        "response": {"id": f"r{number}", "output": []},
        "response_metadata": {
            "response_id": f"r{number}",
            "model_ref": POLICY,
            "dialect": "responses",
            "status_code": 200,
            "response_status": "completed",
        },
        "token_stats": {"prompt_tokens": 3, "completion_tokens": 2},
    }


def turn(number: int) -> dict[str, Any]:
    return {
        "invocation_id": "root",
        "task_id": "t",
        "rollout_id": "0-0",
        "turn_no": number,
        "timestamp": float(number),
        "answer": "yes",
        "resolved": None,
        "step_count": 1,
        "model_calls": [{"model_call_id": f"c{number}"}],
    }


def record() -> dict[str, Any]:
    """A record of two calls and one tool that fulfils every row."""
    conversation = [
        {"type": "function_call", "call_id": "success-1", "name": "lookup", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "success-1", "output": "found"},
    ]
    trajectory = {
        "task_id": "t",
        "rollout_id": "0-0",
        "invocations": [
            {
                "kind": "agent_invocation",
                "invocation_id": "root",
                "model_calls": [{"model_call_id": "c1"}, {"model_call_id": "c2"}],
                "conversation": conversation,
            }
        ],
        "turns": [turn(1), turn(2)],
        "model_calls": [call(1), call(2)],
        "tool_calls": [
            {
                "kind": "tool_call",
                "invocation_id": "root",
                "tool_call_id": "success-1",
                "tool_name": "lookup",
                "status": "completed",
                "output": "found",
            }
        ],
        "gaps": [],
    }
    usage = {"input_tokens": 6, "output_tokens": 4}
    return {"reward": 1.0, "mask_sample": False, "response": {"usage": usage}, "ng_trajectory": trajectory}


def happened() -> WhatHappened:
    """What the witnesses of `record` saw."""
    told = WhatHappened()
    for number in (1, 2):
        told.add(
            {
                "what": "model_call",
                "request": call(number)["request"],
                "status": 200,
                "finished": True,
                "response_id": f"r{number}",
                "reports_usage": True,
                "script": "tool_success",
                "cut": False,
                "timed_out": False,
            }
        )
    told.add({"what": "tool_started", "name": "lookup", "at": 1.6, "text": "a"})
    told.add({"what": "tool_ended", "name": "lookup", "at": 1.7, "status": 200, "output": "found"})
    told.add({"what": "verified", "reward": 1.0})
    return told


def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    value = copy.deepcopy(record())
    change(value)
    return value


def lacking(problems: dict[str, list[str] | None]) -> set[str]:
    return {row for row, found in problems.items() if found}


def test_a_complete_record_fulfils_every_row_and_agrees_with_its_witnesses() -> None:
    assert check_record(record()) == {row: [] for row in ROWS}
    assert lacking(check_scenario(SCENARIOS["tool_success"], record(), happened())) == set()


def trajectory_part(name: str, at: int, **values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda value: value["ng_trajectory"][name][at].update(values)


def metadata(at: int, **values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda value: value["ng_trajectory"]["model_calls"][at]["response_metadata"].update(values)


def every_id(value: dict[str, Any], **ids: str) -> None:
    for part in (value["ng_trajectory"], *value["ng_trajectory"]["turns"]):
        part.update(ids)


def observed(*records: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda value: value.update(ng_agent_observations={"source": "s", "records": list(records)})


def compacted(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return observed({"kind": "context_compaction", "invocation_id": "root", **values})


def gap(code: str) -> Callable[[dict[str, Any]], Any]:
    return lambda value: value["ng_trajectory"]["gaps"].append({"code": code})


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (lambda value: value.pop("ng_trajectory"), set(ROWS) - {"TE-6"}),
        (trajectory_part("model_calls", 0, completed_at=None), {"TE-1"}),
        (trajectory_part("model_calls", 0, response=None), {"TE-4", "TE-7"}),
        (trajectory_part("model_calls", 0, request={}), {"TE-4"}),
        (trajectory_part("model_calls", 1, request={"input": "x", "previous_response_id": "gone"}), {"TE-4"}),
        (trajectory_part("tool_calls", 0, status="unknown"), {"TE-5"}),
        (trajectory_part("tool_calls", 0, tool_name="other"), {"TE-5"}),
        (trajectory_part("tool_calls", 0, tool_call_id="t2"), {"TE-5"}),
        (trajectory_part("turns", 0, invocation_id="gone"), {"TE-3", "TE-9"}),
        (trajectory_part("turns", 0, model_calls=[]), {"TE-9"}),
        (trajectory_part("turns", 0, model_calls=[{"model_call_id": "c2"}]), {"TE-9"}),
        (trajectory_part("invocations", 0, model_calls=[{"model_call_id": "c1"}]), {"TE-8"}),
        (trajectory_part("invocations", 0, parent_invocation_id="root"), {"TE-8"}),
        (trajectory_part("invocations", 0, parent_invocation_id="gone"), {"TE-8"}),
        (gap("turns_unavailable"), {"TE-3"}),
        (gap("turn_model_call_scope_incomplete"), {"TE-9"}),
        (gap("model_call_ownership_unavailable"), {"TE-8"}),
        (gap("model_call_reference_unmatched"), {"TE-8"}),
        (gap("model_call_reference_unavailable"), {"TE-8"}),
        (gap("agent_observation_join_failed"), {"TE-1", "TE-4", "TE-7", "TE-8", "TE-9"}),
        (gap("model_call_capture_incomplete"), {"TE-1", "TE-4", "TE-7", "TE-8", "TE-9"}),
        (lambda value: value.pop("reward"), {"TE-6"}),
        (lambda value: value.update(reward=True), {"TE-6"}),
        (lambda value: value.pop("mask_sample"), {"TE-6"}),
        (lambda value: value.update(mask_sample=True, failure_kind=" "), {"TE-6"}),
        (trajectory_part("model_calls", 0, model_call_id=" "), {"TE-1", "TE-8", "TE-9"}),
        (metadata(0, response_id=" "), {"TE-1"}),
        (trajectory_part("tool_calls", 0, tool_name=" "), {"TE-5"}),
        (lambda value: value["ng_trajectory"]["turns"][1].pop("resolved"), {"TE-3"}),
        (lambda value: value["ng_trajectory"]["invocations"].append({"invocation_id": " "}), {"TE-8"}),
        (lambda value: every_id(value, task_id=""), {"TE-3"}),
        (observed({"kind": "sandbox", "role": "agent", "sandbox_id": "s", "outcome": "completed"}), set()),
        (observed({"kind": "sandbox", "role": "agent", "outcome": "completed"}), {"TE-6"}),
        (observed({"kind": "sandbox", "role": "verifier", "sandbox_id": "s"}), {"TE-6"}),
        (observed({"kind": "sandbox", "role": "agent", "sandbox_id": "s", "outcome": "oom"}), {"TE-6"}),
        (
            observed({"kind": "sandbox", "role": "agent", "sandbox_id": "s", "outcome": "oom", "error_type": "oom"}),
            set(),
        ),
        (compacted(before_model_call={"model_call_id": "c1"}, after_model_call={"model_call_id": "c2"}), set()),
        (compacted(before_model_call={"model_call_id": "gone"}), {"TE-9"}),
        (compacted(model_calls=[{"model_call_id": "gone"}]), {"TE-9"}),
        (compacted(model_calls=[{"model_call_id": "c1"}]), {"TE-9"}),
    ],
)
def test_what_a_record_lacks_shows_in_its_row(change: Callable[[dict[str, Any]], Any], rows: set[str]) -> None:
    assert lacking(check_record(changed(change))) == rows


@pytest.mark.parametrize(
    ("change", "row"),
    [
        (lambda told: told.model_calls.append({**told.model_calls[0], "response_id": "r3"}), "TE-1"),
        (lambda told: told.model_calls.append({**told.model_calls[0], "status": 429, "finished": False}), "TE-1"),
        (lambda told: told.model_calls[0].update(finished=False, response_id=None), "TE-1"),
        (lambda told: told.model_calls[0].update(reports_usage=False), "TE-2"),
        (lambda told: told.model_calls[0].update(request={"input": "another"}), "TE-7"),
        (lambda told: told.tools_started.append({"name": "lookup"}), "TE-5"),
        (lambda told: told.tools_ended[0].update(status=500), "TE-5"),
        (lambda told: told.tools_ended[0].update(output="something else"), "TE-5"),
        (lambda told: told.verdicts[0].update(reward=0.0), "TE-6"),
        (lambda told: told.verdicts[0].update(reward=None), "TE-6"),
        (lambda told: told.verdicts.clear(), "TE-6"),
    ],
)
def test_what_the_witnesses_saw_otherwise_shows_in_its_row(change: Callable[[WhatHappened], Any], row: str) -> None:
    told = happened()
    change(told)
    assert row in lacking(check_scenario(SCENARIOS["tool_success"], record(), told))


def test_a_subagent_without_an_invocation_of_its_own_is_found() -> None:
    assert "TE-8" in lacking(check_scenario(SCENARIOS["subagent"], record(), happened()))


def test_an_agent_that_never_asked_the_model_is_told_so() -> None:
    problems = check_scenario(SCENARIOS["usage_omitted"], record(), WhatHappened())
    assert problems["TE-1"] == ["the agent never asked the model of this run", "0 model calls happened, 2 are recorded"]
    failed = record() | {"failure_reason": "the program ended with exit code 7"}
    (first, *_) = check_scenario(SCENARIOS["usage_omitted"], failed, WhatHappened())["TE-1"] or [""]
    assert first.endswith("; its rollout failed: the program ended with exit code 7")


@pytest.mark.parametrize(
    "request_part",
    [
        {"input": [{"type": "function_call_output", "call_id": "success-1", "output": "another"}]},
        {"messages": [{"role": "tool", "tool_call_id": "success-1", "content": "another"}]},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "success-1",
                            "content": [{"type": "text", "text": "another"}],
                        }
                    ],
                }
            ]
        },
    ],
)
def test_an_output_that_the_model_was_not_given_is_found_in_every_dialect(request_part: dict[str, Any]) -> None:
    told, value = happened(), record()
    value["ng_trajectory"]["model_calls"][1]["request"] = told.model_calls[1]["request"]
    told.model_calls[1]["request"].update(request_part)
    problems = check_scenario(SCENARIOS["tool_success"], value, told)["TE-5"]
    assert problems == ["tool_calls[0]: the model was given another output"]
    text = json.dumps(request_part).replace("another", "found")
    told.model_calls[1]["request"].update(json.loads(text))
    assert check_scenario(SCENARIOS["tool_success"], value, told)["TE-5"] == []


def test_a_tool_call_that_the_model_never_asked_for_is_found() -> None:
    def invent(value: dict[str, Any]) -> None:
        trajectory = value["ng_trajectory"]
        trajectory["tool_calls"].append({**trajectory["tool_calls"][0], "tool_call_id": "made-up", "tool_name": "own"})
        call = {"type": "function_call", "call_id": "made-up", "name": "own", "arguments": "{}"}
        trajectory["invocations"][0]["conversation"].append(call)

    problems = check_scenario(SCENARIOS["tool_success"], changed(invent), happened())
    assert problems["TE-5"] == ["tool_calls[1]: the model never asked for it"]
    without = happened()
    without.tools_started.clear()
    without.tools_ended.clear()
    assert "TE-5" in lacking(check_scenario(SCENARIOS["usage_omitted"], record(), without))


@pytest.mark.parametrize(
    ("started_at", "completed_at", "source", "is_true"),
    [
        (1.59, 1.71, "executor", True),
        (1.0, 2.0, "executor", True),
        (1.8, 2.0, "executor", False),
        (1.0, 1.5, "executor", False),
        (1.8, 2.0, "artifact", True),
        (1.8, None, "executor", True),
    ],
)
def test_a_measured_time_holds_the_execution_that_was_witnessed(
    started_at: float, completed_at: float | None, source: str, is_true: bool
) -> None:
    times = {"started_at": started_at, "completed_at": completed_at, "timing_source": source}
    value = changed(trajectory_part("tool_calls", 0, **times))
    assert (check_scenario(SCENARIOS["tool_success"], value, happened())["TE-5"] == []) is is_true


def test_turns_of_an_agent_that_was_never_answered_are_found() -> None:
    told = happened()
    for call_ in told.model_calls:
        call_.update(finished=False, status=400, response_id=None)
    problems = check_scenario(SCENARIOS["model_error"], record(), told)
    assert problems["TE-3"] == ["turns are stated, though no call was answered"]


def test_a_program_that_reports_nothing_is_told_so_once_per_row() -> None:
    def silent(value: dict[str, Any]) -> None:
        value["ng_trajectory"].update(invocations=[], turns=[], tool_calls=[], gaps=[{"code": "turns_unavailable"}])
        gaps = [{"code": "agent_observations_not_reported"}]
        value["ng_agent_observations"] = {"source": "command_agent", "records": [], "gaps": gaps}

    problems = check_scenario(SCENARIOS["tool_success"], changed(silent), happened())
    assert lacking(problems) == {"TE-3", "TE-5", "TE-8", "TE-9"}
    assert {tuple(problems[row] or ()) for row in ("TE-3", "TE-5", "TE-8", "TE-9")} == {(NOTHING_REPORTED,)}

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from health_records import CASES, POLICY, call, record, ref, trajectory, turn, without

from nemo_gym.health import CHECK_REGISTRY, evaluate_line
from nemo_gym.health.checks import ROLLOUT_CHECKS
from nemo_gym.health.evaluate import Outcome


def evaluate(value: dict[str, Any], ignored: tuple[str, ...] = ()) -> Outcome:
    return evaluate_line(json.dumps(value).encode(), ignored)


def found(outcome: Outcome) -> list[str]:
    return [finding.check for finding in outcome.findings]


def of_trajectory(**changes: Any) -> dict[str, Any]:
    return record(ng_trajectory=trajectory(**changes))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_handed_cases_have_their_findings_and_unobserved_checks_a8(case: dict[str, Any]) -> None:
    row = {key: value for key, value in case["row"].items() if key.startswith("_ng_")}
    attachments = ("ng_agent_observations", "ng_model_call_capture", "ng_trajectory", "ng_perf")
    evidence = {key: case["expected"][key] for key in attachments if case["expected"].get(key) is not None}
    outcome = evaluate({**row, **case["result_fields"], **evidence})
    expected = case["expected"]["health"]
    rows = [
        {key: value for key, value in finding._asdict().items() if value is not None} for finding in outcome.findings
    ]
    assert rows == expected["findings"]
    assert outcome.unobserved == expected["unobserved"]


def test_a_complete_record_has_no_finding_and_nothing_unobserved() -> None:
    outcome = evaluate(record())
    assert (outcome.findings, outcome.unobserved) == ([], [])
    assert (outcome.model_calls, outcome.successful_model_calls) == (2, 2)


def test_a_record_without_trajectory_leaves_eight_checks_unobserved() -> None:
    outcome = evaluate(without(record(), "ng_trajectory"))
    assert outcome.unobserved == list(ROLLOUT_CHECKS)
    assert len(outcome.unobserved) == 8
    assert outcome.findings == []


def test_ignored_checks_neither_run_nor_are_unobserved() -> None:
    outcome = evaluate(without(record(), "ng_trajectory"), tuple(CHECK_REGISTRY))
    assert (outcome.findings, outcome.unobserved) == ([], [])


@pytest.mark.parametrize("answer", [None, "", "  \n\t ", [], {}, [{"type": "message", "content": []}], 7, True])
def test_a_turn_with_neither_answer_nor_reasoning_nor_tool_call_is_hollow(answer: Any) -> None:
    outcome = evaluate(of_trajectory(turns=[turn(1, answer=answer), turn(2)]))
    assert found(outcome) == ["agent_turn_hollow"]
    assert outcome.findings[0].locator == {"turn": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"reasoning_content": "because"},
        {"reasoning_content": [{"type": "summary_text", "text": "because"}]},
        {"answer": [[{"type": "shell_call"}]]},
        {"answer": {"role": "assistant", "tool_calls": [{"id": 1}]}},
        {"answer": {"refusal": "no"}},
        {"answer": "\\u00a0x"},
        {"answer": [{"type": "reasoning", "encrypted_content": "xyz"}]},
    ],
)
def test_reasoning_tool_calls_and_any_text_fill_a_turn(changes: dict[str, Any]) -> None:
    outcome = evaluate(of_trajectory(turns=[turn(1, **{"answer": None, **changes}), turn(2)]))
    assert outcome.findings == []


def test_turns_without_anything_are_missing_turns_a23() -> None:
    outcome = evaluate(of_trajectory(turns=[turn(1, answer=None, model_calls=[])]))
    assert found(outcome) == ["rollout_missing_agent_turns", "agent_turn_hollow"]
    assert found(evaluate(of_trajectory(turns=[]))) == ["rollout_missing_agent_turns"]


def test_unavailable_turns_leave_the_turn_checks_unobserved_a8() -> None:
    outcome = evaluate(of_trajectory(turns=[], gaps=[{"code": "turns_unavailable"}]))
    assert outcome.unobserved == ["rollout_missing_agent_turns", "agent_turn_hollow"]
    assert outcome.findings == []


@pytest.mark.parametrize(
    "gap",
    [
        "model_calls_unavailable",
        "model_call_capture_incomplete",
        "model_call_capture_records_unreadable",
        "model_call_capture_unreadable",
    ],
)
def test_a_capture_with_holes_leaves_the_call_checks_unobserved_a8(gap: str) -> None:
    outcome = evaluate(of_trajectory(gaps=[{"code": gap}]))
    assert "model_call_zero_completion_tokens" in outcome.unobserved
    assert "trajectory_capture_mismatch" in outcome.unobserved
    assert "rollout_ended_on_failed_model_call" in outcome.unobserved
    assert outcome.findings == []
    assert evaluate(of_trajectory(gaps=[{"code": "model_call_capture_no_records"}])).unobserved == []


def test_unknown_gaps_change_nothing() -> None:
    assert evaluate(of_trajectory(gaps=[{"code": "something_of_an_adapter"}])).unobserved == []


FAILED = {"status_code": 500, "response_status": None, "error_category": "upstream_error"}
NO_TOKENS = {"prompt_tokens": None, "completion_tokens": None}


def test_one_failed_call_that_was_retried_is_counted_and_no_finding_a22() -> None:
    failed = call(1, response=None, metadata=FAILED, tokens=NO_TOKENS)
    value = of_trajectory(model_calls=[failed, call(2)])
    value["response"]["usage"] = {"input_tokens": 10, "output_tokens": 2}
    outcome = evaluate(value)
    assert (outcome.findings, outcome.unobserved) == ([], [])
    assert outcome.errors_by_status == {"500": 1}
    assert not outcome.ended_on_error


def test_all_calls_failed_and_usage_zero_agree_a22() -> None:
    failed = [call(number, response=None, metadata=FAILED, tokens=NO_TOKENS) for number in (1, 2)]
    value = of_trajectory(model_calls=failed)
    value["response"]["usage"] = {"input_tokens": 0, "output_tokens": 0}
    outcome = evaluate(value)
    assert found(outcome) == ["rollout_ended_on_failed_model_call"]
    assert outcome.unobserved == []
    detail = outcome.findings[0].detail
    assert detail == {
        "model_ref": "responses_api_models/policy",
        "status": 500,
        "error_category": "upstream_error",
        "observed_calls": 2,
        "successful_calls": 0,
    }
    assert outcome.findings[0].locator == {"call_id": "c2"}


def test_the_last_call_is_last_by_start_not_by_position_a7() -> None:
    failed = call(1, started_at=9.0, response=None, metadata=FAILED, tokens=NO_TOKENS)
    outcome = evaluate(of_trajectory(model_calls=[failed, call(2)]), ("rollout_token_count_mismatch",))
    assert found(outcome) == ["rollout_ended_on_failed_model_call"]
    assert outcome.ended_on_error


def test_mixed_outcomes_without_times_say_nothing_about_the_last_call_a7() -> None:
    failed = call(2, started_at=None, response=None, metadata=FAILED, tokens=NO_TOKENS)
    outcome = evaluate(of_trajectory(model_calls=[call(1), failed]), ("rollout_token_count_mismatch",))
    assert outcome.findings == []
    untimed = [call(n, started_at=None, response=None, metadata=FAILED, tokens=NO_TOKENS) for n in (1, 2)]
    outcome = evaluate(of_trajectory(model_calls=untimed), ("rollout_token_count_mismatch",))
    assert found(outcome) == ["rollout_ended_on_failed_model_call"]


def test_each_model_server_has_its_own_last_call() -> None:
    judge = {"type": "responses_api_models", "name": "judge"}
    other = call(3, response=None, metadata={**FAILED, "model_ref": judge}, tokens=NO_TOKENS, started_at=0.5)
    nameless = call(4, response=None, metadata={**FAILED, "model_ref": None}, tokens=NO_TOKENS, started_at=0.1)
    outcome = evaluate(of_trajectory(model_calls=[call(1), call(2), other, nameless]))
    assert [finding.detail["model_ref"] for finding in outcome.findings] == ["responses_api_models/judge", None]


def test_zero_and_missing_token_counts_are_findings() -> None:
    calls = [call(1, tokens={"completion_tokens": 0}), call(2, tokens={"prompt_tokens": None})]
    outcome = evaluate(of_trajectory(model_calls=calls))
    assert found(outcome) == ["model_call_zero_completion_tokens", "model_call_missing_token_counts"]
    assert outcome.findings[1].detail == {"missing": ["prompt_tokens"]}
    assert outcome.unobserved == ["rollout_token_count_mismatch"]


def test_a_refused_context_owes_no_tokens() -> None:
    refused = {
        "status_code": 200,
        "response_status": "completed",
        "upstream_attempted": True,
        "upstream_status_code": 400,
        "local_response_reason": "context_length_exceeded",
    }
    calls = [call(1), call(2, metadata=refused, tokens={"completion_tokens": 0})]
    assert found(evaluate(of_trajectory(model_calls=calls), ("rollout_token_count_mismatch",))) == []
    not_asked = call(2, metadata={**refused, "upstream_attempted": False}, tokens={"completion_tokens": 0})
    outcome = evaluate(of_trajectory(model_calls=[call(1), not_asked]), ("rollout_token_count_mismatch",))
    assert found(outcome) == ["model_call_zero_completion_tokens"]


def test_a_failed_call_with_a_finished_response_owes_tokens() -> None:
    cut = call(2, metadata={"error_category": "stream_truncated"}, tokens={"completion_tokens": None})
    outcome = evaluate(of_trajectory(model_calls=[call(1), cut]))
    assert "model_call_missing_token_counts" in found(outcome)


def test_usage_that_is_not_the_sum_is_a_finding_and_lost_usage_is_unobserved_a22() -> None:
    outcome = evaluate(record(response={"usage": {"prompt_tokens": 20, "completion_tokens": 5}}))
    assert outcome.findings[0].detail == {
        "transcript_prompt": 20,
        "transcript_completion": 5,
        "capture_prompt": 20,
        "capture_completion": 4,
    }
    for response in (
        None,
        {},
        {"usage": None},
        {"usage": {"input_tokens": 20}},
        {"usage": {"input_tokens": "20"}},
        "x",
    ):
        assert evaluate(record(response=response)).unobserved == ["rollout_token_count_mismatch"]


def test_calls_that_only_an_invocation_owns_are_counted_once_d3() -> None:
    outcome = evaluate(of_trajectory(turns=[turn(1)]))
    assert (outcome.findings, outcome.unobserved) == ([], [])
    assert outcome.successful_model_calls == 1


def test_an_incomplete_turn_scope_leaves_the_token_comparison_unobserved() -> None:
    outcome = evaluate(of_trajectory(gaps=[{"code": "turn_model_call_scope_incomplete"}]))
    assert outcome.unobserved == ["rollout_token_count_mismatch"]
    assert not outcome.policy_calls_observed


def test_references_that_fit_nothing_several_or_contradict_are_mismatches_a6() -> None:
    calls = [
        call(1),
        call(2, model_call_id=None, metadata={"response_id": "same"}),
        call(3, model_call_id=None, metadata={"response_id": "same"}),
    ]
    references = [
        ref(1),
        {"model_call_id": "nope"},
        {"model_ref": POLICY, "response_id": "same"},
        {"model_call_id": "c1", "response_id": "another"},
    ]
    outcome = evaluate(of_trajectory(turns=[turn(1, model_calls=references)], model_calls=calls))
    mismatches = [(finding.locator["call_id"], finding.detail) for finding in outcome.findings if finding.locator]
    assert mismatches == [
        ("nope", {"kind": "missing_captured_call"}),
        ("same", {"kind": "duplicated_captured_call", "count": 2}),
        ("c1", {"kind": "missing_captured_call"}),
        ("c2", {"kind": "missing_captured_call"}),
    ]


def test_contradiction_gaps_are_reported_once_per_kind_and_id_a8() -> None:
    code = "model_call_reference_"
    gaps = [
        {"code": f"{code}conflict", "invocation_id": "root", "detail": "model_calls:c1"},
        {"code": f"{code}conflict", "invocation_id": "sub", "detail": "c1"},
        {"code": f"{code}unmatched", "invocation_id": "root", "detail": "before_model_call:zz"},
        {"code": f"{code}ambiguous"},
    ]
    outcome = evaluate(of_trajectory(gaps=gaps))
    assert [(finding.locator, finding.detail["kind"]) for finding in outcome.findings] == [
        ({"call_id": "c1"}, "conflicting_call_ownership"),
        ({"call_id": "zz"}, "missing_captured_call"),
        ({"call_id": "unknown"}, "duplicated_captured_call"),
    ]


def test_no_reference_and_no_contradiction_leave_the_mismatch_check_unobserved() -> None:
    value = trajectory()
    value["invocations"][0]["model_calls"] = []
    value["turns"] = [turn(1, model_calls=[])]
    outcome = evaluate(record(ng_trajectory=value))
    assert "trajectory_capture_mismatch" in outcome.unobserved
    assert "model_call_zero_completion_tokens" in outcome.unobserved


EMPTY_BODIES: list[Any] = [
    {"output": [], "output_text": " "},
    {"choices": [{"message": {"content": ""}, "finish_reason": "length"}]},
    {"content": []},
    "  ",
]
FULL_BODIES: list[Any] = [
    {"output_text": "x"},
    {"output": [{"type": "function_call", "name": "f"}]},
    {"choices": [{"text": "x"}]},
    {"choices": [{"message": {"tool_calls": [{"id": "1"}]}}]},
    {"choices": [{"message": {"reasoning_content": "hm"}}]},
    {"content": [{"type": "thinking", "thinking": "hm"}]},
    "data: partial",
]


@pytest.mark.parametrize("finish", ["length", "max_output_tokens", "max_tokens"])
@pytest.mark.parametrize("body", EMPTY_BODIES, ids=json.dumps)
def test_a_length_stop_with_nothing_to_show_is_runaway(finish: str, body: Any) -> None:
    outcome = evaluate(of_trajectory(model_calls=[call(1), call(2, response=body, metadata={"finish_reason": finish})]))
    assert [(f.check, f.locator, f.detail) for f in outcome.findings] == [
        ("model_call_runaway_generation", {"call_id": "c2"}, {"finish_reason": finish})
    ]


@pytest.mark.parametrize("body", FULL_BODIES, ids=json.dumps)
def test_a_length_stop_that_shows_something_is_not_runaway(body: Any) -> None:
    cut = call(2, response=body, metadata={"finish_reason": "length"})
    assert evaluate(of_trajectory(model_calls=[call(1), cut])).findings == []


def test_a_length_stop_without_a_saved_response_is_unobserved() -> None:
    calls = [call(1, response={}, metadata={"finish_reason": "length"}), call(2, metadata={"finish_reason": "length"})]
    calls[1]["response"] = None
    outcome = evaluate(of_trajectory(model_calls=calls))
    assert outcome.unobserved == ["model_call_runaway_generation"]


def test_zero_tokens_and_a_length_stop_give_both_findings() -> None:
    both = call(2, response={"output": []}, metadata={"finish_reason": "length"}, tokens={"completion_tokens": 0})
    value = of_trajectory(model_calls=[call(1), both])
    assert Counter(found(evaluate(value, ("rollout_token_count_mismatch",)))) == Counter(
        ["model_call_zero_completion_tokens", "model_call_runaway_generation"]
    )


def test_a_failed_projection_leaves_every_trajectory_check_unobserved() -> None:
    outcome = evaluate(of_trajectory(gaps=[{"code": "trajectory_projection_failed", "detail": "ValueError"}]))
    assert outcome.unobserved == list(ROLLOUT_CHECKS)
    assert outcome.model_calls == 0


def test_a_check_that_raises_is_a_finding_and_unobserved_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise KeyError("x")

    checks = {**ROLLOUT_CHECKS, "agent_turn_hollow": broken}
    monkeypatch.setattr("nemo_gym.health.evaluate.ROLLOUT_CHECKS", checks)
    outcome = evaluate(record())
    assert outcome.findings[0].check == "check_execution_error"
    assert outcome.findings[0].detail["failed_check"] == "agent_turn_hollow"
    assert outcome.findings[0].detail["error"] == "KeyError"
    assert outcome.unobserved == ["agent_turn_hollow"]
    ignored = evaluate(record(), ("check_execution_error",))
    assert (ignored.findings, ignored.unobserved) == ([], ["agent_turn_hollow"])


def test_replayed_calls_are_counted() -> None:
    twin = call(2, model_call_id=None, metadata={"response_id": "same"})
    outcome = evaluate(of_trajectory(model_calls=[call(1), twin, twin, twin]))
    assert outcome.duplicated_calls == 2

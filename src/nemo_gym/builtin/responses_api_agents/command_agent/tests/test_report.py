"""What a program may say, and what becomes of lines that do not fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nemo_gym.builtin.responses_api_agents.command_agent.report import (
    SHOWN_PROBLEMS,
    Report,
    observation_bundle,
    producer_trajectory,
    read_report,
)
from nemo_gym.rollout_observability import AgentInvocation

IDS = {"task_id": "t", "rollout_id": "0-0"}
TURN = {"kind": "turn", "invocation_id": "root", "turn_no": 1, "timestamp": 1.0, "step_count": 0}
TOOL = {"kind": "tool_call", "invocation_id": "root", "tool_call_id": "c1"}


def read(*lines: Any) -> Report:
    return read_report([line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines], **IDS)


def test_a_later_line_about_the_same_thing_replaces_the_earlier_one() -> None:
    report = read(
        {"kind": "agent_invocation", "invocation_id": "root", "status": "incomplete"},
        {**TOOL, "status": "incomplete"},
        {**TURN, "answer": "first"},
        {"kind": "answer", "text": "first"},
        b"",
        {"kind": "agent_invocation", "invocation_id": "root", "status": "completed"},
        {**TOOL, "status": "completed"},
        {**TURN, "answer": "second"},
        {"kind": "answer", "text": "second"},
    )
    assert report.problems == []
    assert [item.status for item in report.invocations.values()] == ["completed"]
    assert [item.status for item in report.tools.values()] == ["completed"]
    assert [item.answer for item in report.turns.values()] == ["second"]
    assert report.answer is not None
    assert report.answer.text == "second"


def test_a_report_whose_reading_ends_early_leaves_a_gap_that_says_why() -> None:
    def lines() -> Iterator[bytes]:
        yield b'{"kind": "answer", "text": "yes"}'
        raise ValueError("the rest was not read")

    report = read_report(lines(), **IDS)
    assert report.answer is not None
    assert report.problems == [(2, "the rest was not read")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"kind": "tool_call", "invocation_id": "root", "tool_ca', ""),
        (b"\xff\xfe", ""),
        (b"[1]", ""),
        ({"invocation_id": "root"}, "`kind` is not one of"),
        ({"kind": "thought"}, "`kind` is not one of"),
        ({**TOOL, "colour": "red"}, "colour: "),
        ({**TOOL, "duration_ms": -1}, "duration_ms: "),
        ({**TOOL, "duration_ms": "3"}, "duration_ms: "),
        ({**TOOL, "started_at": 2.0, "completed_at": 1.0}, ""),
        ({**TURN, "rollout_id": "another"}, "of another rollout"),
        ({**TURN, "turn_no": 0}, "turn_no: "),
        ({"kind": "answer"}, "either `text` or `output`"),
        ({"kind": "answer", "text": "a", "output": []}, "either `text` or `output`"),
        ({"kind": "answer", "output": [{"type": "unheard_of"}]}, "output.0"),
        ({"kind": "sandbox", "role": "bystander"}, "role"),
    ],
)
def test_a_line_that_does_not_fit_leaves_a_gap_and_the_others_stay(line: Any, reason: str) -> None:
    report = read(TOOL, line, TURN)
    bundle = observation_bundle(report, own=None)
    assert [(number, reason in said) for number, said in report.problems] == [(2, True)]
    assert [gap.code for gap in bundle.gaps] == ["agent_observation_line_invalid"]
    assert str(bundle.gaps[0].detail).startswith("line 2: ")
    assert len(bundle.records) == len(report.turns) == 1


def test_the_value_that_does_not_fit_is_not_repeated() -> None:
    report = read({**TOOL, "status": "my-secret-status"})
    assert "my-secret-status" not in report.problems[0][1]


def test_many_bad_lines_leave_a_bounded_number_of_gaps() -> None:
    bundle = observation_bundle(read(*[b"x"] * 1000), own=None)
    invalid = [gap.detail for gap in bundle.gaps if gap.code == "agent_observation_line_invalid"]
    assert len(invalid) == SHOWN_PROBLEMS + 1
    assert invalid[-1] == f"further lines: {1000 - SHOWN_PROBLEMS}"


@pytest.mark.parametrize("lines", [[], [{"kind": "answer", "text": "done"}], [b"{"]])
def test_a_program_that_reports_nothing_leaves_that_gap(lines: list[Any]) -> None:
    report = read(*lines)
    assert "agent_observations_not_reported" in [gap.code for gap in observation_bundle(report, own=None).gaps]
    assert producer_trajectory(report, **IDS) is None


def test_a_circle_of_parents_loses_the_records_and_not_the_bundle() -> None:
    report = read(
        {"kind": "agent_invocation", "invocation_id": "a", "parent_invocation_id": "b"},
        {"kind": "agent_invocation", "invocation_id": "b", "parent_invocation_id": "a"},
    )
    bundle = observation_bundle(report, own=None)
    assert bundle.records == []
    assert bundle.gaps[0].code == "agent_observation_line_invalid"


def test_the_process_stands_for_an_invocation_only_where_the_program_has_not_said_more() -> None:
    own = AgentInvocation(invocation_id="root", status="failed")
    assert observation_bundle(read(), own=own).records == [own]
    said = read({"kind": "agent_invocation", "invocation_id": "root", "status": "completed"})
    assert [record.status for record in observation_bundle(said, own=own).records] == ["completed"]


def test_only_the_verifiers_own_boolean_resolves_the_last_turn() -> None:
    lines = [TURN, {**TURN, "turn_no": 2}]
    turns = producer_trajectory(read(*lines), **IDS, resolved=True).turns
    assert [turn.resolved for turn in turns] == [None, True]
    assert [turn.resolved for turn in producer_trajectory(read(*lines), **IDS, resolved="yes").turns] == [None, None]


def test_gaps_that_the_program_states_are_kept() -> None:
    report = read({"kind": "gap", "code": "tool_timing_unavailable", "invocation_id": "root", "detail": "c1"}, TOOL)
    (gap,) = observation_bundle(report, own=None).gaps
    assert (gap.code, gap.invocation_id, gap.detail) == ("tool_timing_unavailable", "root", "c1")

"""A scenario shows something only when the witnesses saw its event."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.testing import (
    NOT_PROVOKED,
    ConformanceReport,
    ScenarioResult,
    WhatHappened,
    format_report,
    not_provoked,
    scenarios,
)
from nemo_gym.testing.comparison import ALL_ROWS

SCENARIOS = {scenario.name: scenario for scenario in scenarios(subagent_tool="delegate")}


def asked(script: str = "x", **facts: Any) -> dict[str, Any]:
    known = {"status": 200, "finished": True, "cut": False, "timed_out": False, "reports_usage": True, "request": {}}
    return {"what": "model_call", "script": script, **known, **facts}


def tool(name: str = "lookup", status: int = 200, output: str = "a-found", text: str = "a") -> list[dict[str, Any]]:
    return [
        {"what": "tool_started", "name": name, "text": text, "at": 1.0},
        {"what": "tool_ended", "name": name, "status": status, "output": output, "at": 1.1},
    ]


STARTED = tool()[0]
CUT_OFF = {"what": "cut_off"}
SEEN = {
    "tool_success": [asked(), *tool(), *tool(text="a-found")],
    "tool_failure": [asked(), *tool("fail", 500), *tool()],
    "parallel_tools": [asked(), *tool(), *tool()],
    "usage_omitted": [asked(reports_usage=False)],
    "retry_429": [asked(status=429, finished=False), asked()],
    "retry_500": [asked(status=500, finished=False)],
    "timeout": [asked(status=504, finished=False, timed_out=True)],
    "model_error": [asked(status=400, finished=False)],
    "stream_cut": [asked(finished=False, cut=True)],
    "verifier_failure": [asked(), {"what": "verified", "reward": None}],
    "cancel_mid_tool": [asked(), STARTED, CUT_OFF],
    "subagent": [asked("subagent"), asked("subagent:child")],
}
NOT_SEEN = [
    ("tool_success", [asked(), *tool()]),
    ("tool_success", [asked(), *tool(), *tool(text="b")]),
    ("tool_success", [asked(), STARTED, STARTED]),
    ("tool_failure", [asked(), *tool(), *tool()]),
    ("tool_failure", [asked(), *tool("fail", 500)]),
    ("parallel_tools", [asked(), *tool()]),
    ("usage_omitted", [asked(finished=False, reports_usage=False)]),
    ("retry_429", [asked(status=500, finished=False), asked()]),
    ("timeout", [asked(status=504, finished=False)]),
    ("stream_cut", [asked(finished=False)]),
    ("verifier_failure", [asked(), {"what": "verified", "reward": 1.0}]),
    ("verifier_failure", [asked()]),
    ("cancel_mid_tool", [asked(), STARTED]),
    ("cancel_mid_tool", [asked(), *tool(), CUT_OFF]),
    ("cancel_mid_tool", [asked(), CUT_OFF, STARTED]),
    ("subagent", [asked("subagent"), asked("subagent")]),
]


def told(events: list[dict[str, Any]]) -> WhatHappened:
    what = WhatHappened()
    for event in events:
        what.add(event)
    return what


def test_every_scenario_has_its_event() -> None:
    assert set(SEEN) == set(SCENARIOS)


@pytest.mark.parametrize("name", sorted(SEEN))
def test_an_event_that_was_seen_is_provoked(name: str) -> None:
    assert not_provoked(SCENARIOS[name], told(SEEN[name])) is None


@pytest.mark.parametrize("name", sorted(SEEN))
def test_an_ordinary_answer_alone_provokes_nothing(name: str) -> None:
    assert not_provoked(SCENARIOS[name], told([asked()]))


@pytest.mark.parametrize("name", sorted(SEEN))
def test_an_agent_that_never_asked_provokes_nothing(name: str) -> None:
    assert not_provoked(SCENARIOS[name], told([])) == "the agent never asked the model of this run"


@pytest.mark.parametrize(("name", "events"), NOT_SEEN)
def test_what_is_only_like_the_event_is_not_the_event(name: str, events: list[dict[str, Any]]) -> None:
    assert not_provoked(SCENARIOS[name], told(events))


def test_a_row_without_its_event_is_never_fulfilled() -> None:
    result = ScenarioResult(
        scenario="tool_failure",
        meaning="",
        model_calls=1,
        tool_executions=0,
        verdicts=1,
        problems={row: [] for row in ALL_ROWS},
        not_provoked="no tool ran",
    )
    report = ConformanceReport(agent="mine", scenarios=[result])
    assert {report.status(row) for row in ALL_ROWS} == {NOT_PROVOKED}
    assert not report.fulfilled
    text = format_report(report)
    assert "? tool_failure was not provoked, so nothing is shown: no tool ran" in text
    assert "--skip tool_failure" in text

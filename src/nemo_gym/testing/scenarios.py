"""The conformance scenarios: what the model is scripted to do, and the row that starts it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

CANCELLED = "cancel_mid_tool"
SUBAGENT = "subagent"
TOO_LATE_S = 600.0
"""An answer that takes this long runs into the model's deadline."""

_TOOL_PARAMETERS = {
    "type": "object",
    "properties": {"scenario": {"type": "string"}, "text": {"type": "string"}},
    "required": ["scenario", "text"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One scenario: `steps` of the model's script, `tools` that it calls, further `row` fields.

    `child_steps` are the script of the subagent. `cut_off`: the rollout is ended from outside, so that its agent
    cannot say anything.
    """

    name: str
    meaning: str
    steps: Sequence[dict[str, Any]]
    tools: Sequence[str] = ()
    row: dict[str, Any] = field(default_factory=dict)
    child_steps: Sequence[dict[str, Any]] = ()
    cut_off: bool = False

    @property
    def request(self) -> str:
        """The user message that the script recognises."""
        return f"Conformance scenario {self.name}: do what it takes."

    @property
    def child_request(self) -> str:
        """The message that the subagent is given."""
        return f"Conformance part of {self.name}: do this part."


def _call(name: str, scenario: str, text: str, call_id: str) -> dict[str, Any]:
    return {"name": name, "call_id": call_id, "arguments": {"scenario": scenario, "text": text}}


def _error(status: int, message: str) -> dict[str, Any]:
    return {"error": {"status": status, "message": message}}


_DONE = {"text": "Done."}

_SCENARIOS = (
    Scenario(
        name="tool_success",
        meaning="two tool calls; the second uses what the first found",
        steps=[
            {"calls": [_call("lookup", "tool_success", "a", "success-1")]},
            {"calls": [_call("lookup", "tool_success", "{tool.value}", "success-2")]},
            {"text": "It is {tool.value}."},
        ],
        tools=["lookup"],
    ),
    Scenario(
        name="tool_failure",
        meaning="a tool fails, another one works",
        steps=[
            {"calls": [_call("fail", "tool_failure", "a", "failure-1")]},
            {"calls": [_call("lookup", "tool_failure", "a", "failure-2")]},
            _DONE,
        ],
        tools=["fail", "lookup"],
    ),
    Scenario(
        name="parallel_tools",
        meaning="two tool calls in one answer",
        steps=[
            {
                "calls": [
                    _call("lookup", "parallel_tools", "a", "parallel-1"),
                    _call("lookup", "parallel_tools", "b", "parallel-2"),
                ]
            },
            _DONE,
        ],
        tools=["lookup"],
    ),
    Scenario(
        name="usage_omitted", meaning="the answer carries no token counts", steps=[{"text": "Done.", "usage": None}]
    ),
    Scenario(
        name="retry_429",
        meaning="the model refuses twice for its rate limit",
        steps=[{**_DONE, "attempts": [_error(429, "slow down"), _error(429, "slow down")]}],
    ),
    Scenario(
        name="retry_500",
        meaning="the model fails once",
        steps=[{**_DONE, "attempts": [_error(500, "the model broke")]}],
    ),
    Scenario(
        name="timeout",
        meaning="the model does not answer before its deadline, once",
        steps=[{**_DONE, "attempts": [{"text": "This comes too late.", "delay_s": TOO_LATE_S}]}],
    ),
    Scenario(
        name="model_error", meaning="the model refuses every request", steps=[_error(400, "this request is unusable")]
    ),
    Scenario(
        name="stream_cut",
        meaning="the answer ends in the middle, once",
        steps=[{**_DONE, "attempts": [{"text": "This is never read to its end.", "cut_after_events": 2}]}],
    ),
    Scenario(
        name="verifier_failure", meaning="the verifier cannot score", steps=[_DONE], row={"verifier_breaks": True}
    ),
    Scenario(
        name=CANCELLED,
        meaning="the rollout is cancelled while a tool runs",
        steps=[{"calls": [_call("slow", CANCELLED, "a", "cancelled-1")]}, _DONE],
        tools=["slow"],
        cut_off=True,
    ),
)


def scenarios(*, subagent_tool: str | None = None) -> list[Scenario]:
    """Return every scenario; that with a subagent only when the agent names the tool that starts one.

    The tool takes its task as `text`.
    """
    found = list(_SCENARIOS)
    if subagent_tool is not None:
        child = Scenario(name=SUBAGENT, meaning="", steps=[]).child_request
        found.append(
            Scenario(
                name=SUBAGENT,
                meaning="a tool call starts a subagent, which makes model calls of its own",
                steps=[{"calls": [_call(subagent_tool, SUBAGENT, child, "subagent-1")]}, _DONE],
                tools=[subagent_tool],
                child_steps=[_DONE],
            )
        )
    return found


def script_book(chosen: Sequence[Scenario]) -> dict[str, Any]:
    """Return the scripts of scenarios as `scripted_model` reads them; a subagent's is named `<scenario>:child`."""
    scripts: list[dict[str, Any]] = []
    for scenario in chosen:
        scripts.append(
            {"name": scenario.name, "match": f"^Conformance scenario {scenario.name}:", "steps": list(scenario.steps)}
        )
        if scenario.child_steps:
            match = f"^Conformance part of {scenario.name}:"
            scripts.append({"name": f"{scenario.name}:child", "match": match, "steps": list(scenario.child_steps)})
    return {"scripts": scripts}


def row_of(scenario: Scenario, position: int, *, agent: str) -> dict[str, Any]:
    """Return the row that starts a scenario on an agent's instance."""
    tools = [
        {"type": "function", "name": name, "description": name, "parameters": _TOOL_PARAMETERS, "strict": True}
        for name in scenario.tools
    ]
    return {
        "_ng_task_index": position,
        "_ng_rollout_index": 0,
        "task_id": scenario.name,
        "scenario": scenario.name,
        "agent_ref": {"type": "responses_api_agents", "name": agent},
        "responses_create_params": {"input": [{"role": "user", "content": scenario.request}], "tools": tools},
        **scenario.row,
    }

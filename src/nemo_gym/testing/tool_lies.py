"""What an agent says of its tool calls beside what the model asked for, was shown, and what the tools saw. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nemo_gym.records import codec
from nemo_gym.records.evidence import TrajectoryRecord, TrajectoryToolCall
from nemo_gym.testing.scenarios import Scenario
from nemo_gym.testing.witness import WhatHappened

CLOCK_S = 0.05
"""Clocks of one machine are read this far apart at most."""


def tool_lies(scenario: Scenario, trajectory: TrajectoryRecord, told: WhatHappened) -> list[str]:
    """Return what is said of tool calls that no witness saw: calls that nobody asked for, outputs that the model was
    not given, and measured times in which no tool ran."""
    asked = {call["call_id"] for step in (*scenario.steps, *scenario.child_steps) for call in step.get("calls", ())}
    shown = shown_outputs(told)
    problems = []
    for at, tool in enumerate(trajectory.tool_calls):
        where = f"tool_calls[{at}]"
        if tool.tool_call_id not in asked:
            problems.append(f"{where}: the model never asked for it")
        elif tool.output is not None and shown.get(tool.tool_call_id, plain(tool.output)) != plain(tool.output):
            problems.append(f"{where}: the model was given another output")
        if _is_measured(tool) and not _ran_inside(tool, told):
            problems.append(f"{where}: no tool of its name ran from its start to its end")
    return problems


def shown_outputs(told: WhatHappened) -> dict[str, str]:
    """Return the output that the model was given for each tool call, by call id, as a text."""
    found: dict[str, str] = {}
    for call in told.model_calls:
        for call_id, output in _results(call["request"]):
            found[call_id] = plain(output)
    return found


def _results(request: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (call id, output) of the tool results in a request of any dialect."""
    for key in ("input", "messages"):
        items = request.get(key)
        for item in items if isinstance(items, list) else ():
            if str(item.get("type", "")).endswith("_call_output"):
                yield item["call_id"], item.get("output")
            elif item.get("role") == "tool":
                yield item["tool_call_id"], item.get("content")
            elif isinstance(item.get("content"), list):
                for part in item["content"]:
                    if part.get("type") == "tool_result":
                        yield part["tool_use_id"], part.get("content")


def plain(output: Any) -> str:
    """Return a tool's output as a text, whether it is one, or parts with texts, or any other JSON."""
    if isinstance(output, str):
        return output
    parts = output if isinstance(output, list) else [None]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if all(isinstance(text, str) for text in texts):
        return "".join(map(str, texts))
    return codec.encode(output).decode()


def _is_measured(tool: TrajectoryToolCall) -> bool:
    return tool.timing_source == "executor" and tool.started_at is not None and tool.completed_at is not None


def _ran_inside(tool: TrajectoryToolCall, told: WhatHappened) -> bool:
    """Whether an execution of that tool was witnessed between its bounds; true for the agent's own tools, which nobody
    witnesses."""
    starts = [event["at"] for event in told.tools_started if event["name"] == tool.tool_name]
    ends = [event["at"] for event in told.tools_ended if event["name"] == tool.tool_name]
    assert tool.started_at is not None
    assert tool.completed_at is not None
    inside = [
        start
        for start, end in zip(starts, ends, strict=False)
        if tool.started_at - CLOCK_S <= start and end <= tool.completed_at + CLOCK_S
    ]
    return bool(inside) or not starts

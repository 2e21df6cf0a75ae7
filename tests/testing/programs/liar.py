"""Does its work truly, and reports something else: a different lie in each scenario."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HONEST = Path(__file__).parents[3] / "examples" / "programs" / "reporting_agent.py"
Lines = list[dict[str, Any]]


def of_kind(lines: Lines, kind: str) -> Lines:
    return [line for line in lines if line["kind"] == kind]


def another_output(lines: Lines) -> None:
    for item in of_kind(lines, "agent_invocation")[-1]["conversation"]:
        if item.get("type") == "function_call_output":
            item["output"] = '{"value": "something nicer"}'


def failed_tool_succeeded(lines: Lines) -> None:
    for tool in of_kind(lines, "tool_call"):
        tool["status"] = "completed"


def invented_tool_call(lines: Lines) -> None:
    call = {"type": "function_call", "call_id": "invented-1", "name": "lookup", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "invented-1", "output": "found"}
    of_kind(lines, "agent_invocation")[-1]["conversation"] += [call, output]
    tool = {"invocation_id": "root", "tool_call_id": "invented-1", "tool_name": "lookup", "status": "completed"}
    lines.append({"kind": "tool_call", **tool})


def another_time(lines: Lines) -> None:
    for tool in of_kind(lines, "tool_call"):
        tool["started_at"] -= 3600
        tool["completed_at"] -= 3600


def invented_model_call(lines: Lines) -> None:
    of_kind(lines, "agent_invocation")[-1]["model_calls"] = [{"model_call_id": "never-made"}]


def calls_of_somebody_else(lines: Lines) -> None:
    for line in lines:
        if line.get("invocation_id") == "root":
            line["invocation_id"] = "another"


def two_turns_of_one_answer(lines: Lines) -> None:
    lines.append({**of_kind(lines, "turn")[-1], "turn_no": 2})


def turn_without_an_answer(lines: Lines) -> None:
    turn = {"invocation_id": "root", "turn_no": 1, "timestamp": 1.0, "step_count": 0, "answer": "It went well."}
    lines += [{"kind": "turn", **turn}, {"kind": "answer", "text": "It went well."}]


def more_tokens(lines: Lines) -> None:
    usage = of_kind(lines, "answer")[-1]["usage"]
    usage["input_tokens"] += 1000
    usage["total_tokens"] += 1000


LIES: dict[str, Callable[[Lines], None]] = {
    "tool_success": another_output,
    "tool_failure": failed_tool_succeeded,
    "parallel_tools": another_time,
    "usage_omitted": invented_tool_call,
    "retry_429": invented_model_call,
    "retry_500": calls_of_somebody_else,
    "timeout": two_turns_of_one_answer,
    "model_error": turn_without_an_answer,
    "stream_cut": more_tokens,
}


def main() -> int:
    task = Path(os.environ["GYM_TASK_FILE"]).read_text(encoding="utf-8")
    truth = Path(os.environ["GYM_WORK_DIR"]) / "truth.jsonl"
    subprocess.run([sys.executable, HONEST], env={**os.environ, "GYM_REPORT_FILE": str(truth)}, check=False)
    lines = [json.loads(line) for line in truth.read_text(encoding="utf-8").splitlines()]
    found = re.search(r"Conformance scenario (\w+):", task)
    lie = LIES.get(found[1] if found else "")
    if lie is not None:
        lie(lines)
    Path(os.environ["GYM_REPORT_FILE"]).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return 0


sys.exit(main())

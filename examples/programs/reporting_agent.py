"""A program that runs a tool loop over plain HTTP, and reports what it did. It starts subagents with `delegate`.

gym conformance --command 'python examples/programs/reporting_agent.py' --subagent-tool delegate
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TRIES = 3
WORTH_A_RETRY = {408, 429, 500, 502, 503, 504}

TASK = json.loads(Path(os.environ["GYM_TASK_FILE"]).read_text(encoding="utf-8"))
USAGES: list[dict[str, Any] | None] = []


def report(kind: str, **fields: Any) -> None:
    """Append one line; a later line about the same thing replaces it."""
    with Path(os.environ["GYM_REPORT_FILE"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": kind, **fields}) + "\n")


def post(url: str, body: str) -> tuple[int, str, str | None]:
    """Return status, text, and the id that a model server gave the call; the key counts where a run has a token."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['GYM_API_KEY']}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers)) as answer:
            return answer.status, answer.read().decode(), answer.headers["x-ng-model-call-id"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), None
    except (OSError, http.client.HTTPException):
        return 503, "", None  # not reached, or cut in the middle


class Conversation:
    """One conversation, the root's or a subagent's. The URL names it, so each of its calls has an owner."""

    def __init__(self, name: str, prompt: list[dict[str, Any]], tools: list[dict[str, Any]], **parent: str) -> None:
        self.name, self.prompt, self.tools, self.parent = name, prompt, tools, parent
        self.url = os.environ["GYM_INVOCATION_URL"].replace("{invocation}", name) + "/v1/responses"
        self.produced: list[dict[str, Any]] = []

    def run(self) -> bool:
        """Work until the model calls no tool, and report; return whether it came to an answer."""
        turn_no, steps, wanted = 0, 0, [{}]
        while wanted:
            asked, started = [*self.prompt, *self.produced], time.time()
            answer = self.ask(asked)
            if answer is None:
                break
            output, call_id = answer
            wanted = [item for item in output if item["type"] == "function_call"]
            with ThreadPoolExecutor() as pool:
                self.produced += [*output, *pool.map(self.execute, wanted)]
            turn_no, steps = turn_no + 1, steps + len(wanted)
            report(
                "turn",
                invocation_id=self.name,
                turn_no=turn_no,
                timestamp=started,
                question=asked,
                answer=output,
                step_count=steps,
                model_calls=[{"model_call_id": call_id}],
            )
        report(
            "agent_invocation",
            invocation_id=self.name,
            status="failed" if wanted else "completed",
            conversation=[*self.prompt, *self.produced],
            **self.parent,
        )
        return not wanted

    def ask(self, asked: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str | None] | None:
        """Ask the model, again while that may help; return its output items and the id of the call."""
        body = json.dumps({"model": os.environ["GYM_MODEL"], "input": asked, "tools": self.tools})
        for attempt in range(TRIES):
            status, text, call_id = post(self.url, body)
            if status == 200:
                USAGES.append(json.loads(text).get("usage"))
                return json.loads(text)["output"], call_id
            if status not in WORTH_A_RETRY:
                return None
            time.sleep(0.05 * 2**attempt)
        return None

    def execute(self, item: dict[str, Any]) -> dict[str, Any]:
        """Run one tool call, measure and report it, and return what the model sees."""
        started, begun = time.time(), time.monotonic()
        if item["name"] == "delegate":
            task = [{"role": "user", "content": json.loads(item["arguments"])["text"]}]
            parent = {"parent_invocation_id": self.name, "spawned_by_tool_call_id": item["call_id"]}
            child = Conversation(f"{self.name}.{item['call_id']}", task, [], **parent)
            failed = not child.run()
            output = json.dumps(child.produced)
        else:
            status, output, _ = post(f"{os.environ['GYM_TOOLS_URL']}/{item['name']}", item["arguments"])
            failed = status >= 400
        report(
            "tool_call",
            invocation_id=self.name,
            tool_call_id=item["call_id"],
            tool_name=item["name"],
            started_at=started,
            completed_at=max(started, time.time()),
            duration_ms=(time.monotonic() - begun) * 1000,
            timing_source="executor",
            status="failed" if failed else "completed",
        )
        return {"type": "function_call_output", "call_id": item["call_id"], "output": output}


def usage() -> dict[str, Any] | None:
    """Return the sum over the answers; one without counts makes it unknown, and so are the details."""
    if not all(USAGES):
        return None
    counts = {
        key: sum(each[key] for each in USAGES if each) for key in ("input_tokens", "output_tokens", "total_tokens")
    }
    details = {"input_tokens_details": {"cached_tokens": None}, "output_tokens_details": {"reasoning_tokens": None}}
    return {**counts, **details}


root = Conversation("root", TASK["input"], TASK.get("tools") or [])
answered = root.run()
report("answer", output=root.produced, usage=usage())
sys.exit(0 if answered else 1)

"""A tool loop in each dialect, streaming or not, that reports what it did.

`any_dialect.py DIALECT [--stream]`, or `any_dialect.py mixed` for another one in each scenario. With `--family FILE`
the scenario that is cancelled has three processes, one in a session of its own and none heeding SIGTERM; FILE has their
ids.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

TASK = json.loads(Path(os.environ["GYM_TASK_FILE"]).read_text(encoding="utf-8"))
SCENARIO = re.findall(r"Conformance scenario (\w+):", json.dumps(TASK))[0]
MIXED = {
    "tool_success": ("chat", True),
    "tool_failure": ("messages", False),
    "parallel_tools": ("messages", True),
    "usage_omitted": ("messages", True),
    "retry_429": ("chat", True),
    "retry_500": ("responses", True),
    "timeout": ("messages", True),
    "model_error": ("chat", True),
    "stream_cut": ("messages", True),
    "verifier_failure": ("chat", False),
    "cancel_mid_tool": ("responses", True),
}
DIALECT, STREAM = MIXED[SCENARIO] if sys.argv[1] == "mixed" else (sys.argv[1], "--stream" in sys.argv)
PATHS = {"responses": "responses", "chat": "chat/completions", "messages": "messages"}


def report(kind: str, **fields: Any) -> None:
    with Path(os.environ["GYM_REPORT_FILE"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": kind, **fields}) + "\n")


def post(url: str, body: Any) -> tuple[int, str, str | None]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode(), answer.headers["x-ng-model-call-id"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), None
    except (OSError, http.client.HTTPException):
        return 503, "", None


def tools() -> list[dict[str, Any]]:
    found = []
    for tool in TASK.get("tools") or []:
        named = {"name": tool["name"], "description": tool["description"]}
        if DIALECT == "chat":
            found.append({"type": "function", "function": {**named, "parameters": tool["parameters"]}})
        elif DIALECT == "messages":
            found.append({**named, "input_schema": tool["parameters"]})
        else:
            found.append(tool)
    return found


def request_of(history: list[dict[str, Any]]) -> dict[str, Any]:
    key = "input" if DIALECT == "responses" else "messages"
    body: dict[str, Any] = {"model": os.environ["GYM_MODEL"], key: history, "stream": STREAM}
    if tools():
        body["tools"] = tools()
    if DIALECT == "messages":
        body["max_tokens"] = 1000
    if DIALECT == "chat" and STREAM:
        body["stream_options"] = {"include_usage": True}
    return body


def read(text: str) -> tuple[str, list[dict[str, str]]] | None:
    """Return (text, tool calls with id, name, arguments) of an answer; None when it was cut."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")] if STREAM else []
    if DIALECT == "responses":
        ends = [event["response"] for event in events if event["type"] == "response.completed"]
        whole = ends[0] if ends else None if STREAM else json.loads(text)
        return None if whole is None else responses_answer(whole)
    if DIALECT == "chat":
        if STREAM and "data: [DONE]" not in text:
            return None
        choices = [choice for event in events or [json.loads(text)] for choice in event["choices"]]
        return chat_answer([choice.get("delta") or choice.get("message") or {} for choice in choices])
    if not STREAM:
        return messages_answer(json.loads(text)["content"])
    return None if not any(event["type"] == "message_stop" for event in events) else streamed_messages(events)


def responses_answer(whole: dict[str, Any]) -> tuple[str, list[dict[str, str]]]:
    calls = [item for item in whole["output"] if item["type"] == "function_call"]
    texts = [part["text"] for item in whole["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(texts), [{"id": c["call_id"], "name": c["name"], "arguments": c["arguments"]} for c in calls]


def chat_answer(pieces: list[dict[str, Any]]) -> tuple[str, list[dict[str, str]]]:
    calls: dict[int, dict[str, str]] = {}
    for piece in pieces:
        for at, call in enumerate(piece.get("tool_calls") or []):
            known = calls.setdefault(call.get("index", at), {"id": "", "name": "", "arguments": ""})
            known["id"] += call.get("id") or ""
            known["name"] += call["function"].get("name") or ""
            known["arguments"] += call["function"].get("arguments") or ""
    return "".join(piece.get("content") or "" for piece in pieces), list(calls.values())


def messages_answer(content: list[dict[str, Any]]) -> tuple[str, list[dict[str, str]]]:
    calls = [part for part in content if part["type"] == "tool_use"]
    text = "".join(part["text"] for part in content if part["type"] == "text")
    return text, [{"id": c["id"], "name": c["name"], "arguments": json.dumps(c["input"])} for c in calls]


def streamed_messages(events: list[dict[str, Any]]) -> tuple[str, list[dict[str, str]]]:
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = {**event["content_block"], "json": ""}
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            block["json"] += delta.get("partial_json", "")
            block["text"] = block.get("text", "") + delta.get("text", "")
    for block in blocks.values():
        block["input"] = json.loads(block["json"] or "{}")
    return messages_answer(list(blocks.values()))


def continued(text: str, calls: list[dict[str, str]], outputs: list[str]) -> list[dict[str, Any]]:
    """Return what one turn adds to the history, in the dialect."""
    if DIALECT == "responses":
        return [*as_items(text, calls, outputs)]
    if DIALECT == "chat":
        made = [
            {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in calls
        ]
        results = [{"role": "tool", "tool_call_id": c["id"], "content": o} for c, o in zip(calls, outputs, strict=True)]
        return [{"role": "assistant", "content": text or None, "tool_calls": made}, *results]
    uses = [{"type": "tool_use", "id": c["id"], "name": c["name"], "input": json.loads(c["arguments"])} for c in calls]
    results = [
        {"type": "tool_result", "tool_use_id": c["id"], "content": [{"type": "text", "text": o}]}
        for c, o in zip(calls, outputs, strict=True)
    ]
    return [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]


def as_items(text: str, calls: list[dict[str, str]], outputs: list[str]) -> list[dict[str, Any]]:
    """Return a turn as items of the Responses API, which is what conversations are reported in."""
    items: list[dict[str, Any]] = [{"role": "assistant", "content": text}] if text else []
    items += [
        {"type": "function_call", "call_id": c["id"], "name": c["name"], "arguments": c["arguments"]} for c in calls
    ]
    return items + [
        {"type": "function_call_output", "call_id": c["id"], "output": o} for c, o in zip(calls, outputs, strict=False)
    ]


def execute(call: dict[str, str]) -> str:
    started = time.time()
    status, output, _ = post(f"{os.environ['GYM_TOOLS_URL']}/{call['name']}", json.loads(call["arguments"]))
    report(
        "tool_call",
        invocation_id="root",
        tool_call_id=call["id"],
        tool_name=call["name"],
        started_at=started,
        completed_at=time.time(),
        timing_source="executor",
        status="failed" if status >= 400 else "completed",
    )
    return output


def ask(history: list[dict[str, Any]]) -> tuple[str, list[dict[str, str]], str | None] | None:
    for _ in range(3):
        url = f"{os.environ['GYM_INVOCATION_URL'].replace('{invocation}', 'root')}/v1/{PATHS[DIALECT]}"
        status, text, call_id = post(url, request_of(history))
        answer = read(text) if status == 200 else None
        if answer is not None:
            return *answer, call_id
        if status == 400:
            return None
    return None


def start_family(file: str) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    children = [subprocess.Popen([sys.executable, "-c", deaf], start_new_session=own) for own in (False, True)]
    pids = [os.getpid(), *(child.pid for child in children)]
    Path(file).write_text(" ".join(map(str, pids)), encoding="utf-8")


def main() -> int:
    if "--family" in sys.argv and SCENARIO == "cancel_mid_tool":
        start_family(sys.argv[-1])
    prompt = [{"role": "user", "content": TASK["input"][0]["content"]}]
    history, conversation, turn_no, steps = list(prompt), list(prompt), 0, 0
    calls: list[dict[str, str]] = [{}]
    while calls:
        started, answer = time.time(), ask(history)
        if answer is None:
            break
        text, calls, call_id = answer
        outputs = [execute(call) for call in calls]
        history += continued(text, calls, outputs) if calls else []
        conversation += as_items(text, calls, outputs)
        turn_no, steps = turn_no + 1, steps + len(calls)
        report(
            "turn",
            invocation_id="root",
            turn_no=turn_no,
            timestamp=started,
            answer=as_items(text, calls, []),
            step_count=steps,
            model_calls=[{"model_call_id": call_id}],
        )
    status = "failed" if calls else "completed"
    report("agent_invocation", invocation_id="root", status=status, conversation=conversation)
    report("answer", text=conversation[-1].get("content") or "none")
    return 1 if calls else 0


sys.exit(main())

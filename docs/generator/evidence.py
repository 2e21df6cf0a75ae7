"""Small rollouts for the generated pages: each is made by the code that makes every record."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nemo_gym.rollouts.enrich import attach_evidence

JsonObject = dict[str, Any]

POLICY = {"type": "responses_api_models", "name": "policy_model"}
ROW: JsonObject = {"_ng_task_index": 0, "_ng_rollout_index": 0}
ROLLOUT = "0-0"
INCOMPLETE = f"{ROLLOUT}.capture.incomplete"


def exchange(number: int, **changes: Any) -> JsonObject:
    """Return one line of a capture: call `call-<number>`, answered with the text `42`."""
    line = {
        "model_call_id": f"call-{number}",
        "model_ref": POLICY,
        "dialect": "responses",
        "status_code": 200,
        "started_at": float(number),
        "request": {"input": "Look up the answer"},
        "response": response(number),
    }
    return {**line, **changes}


def response(number: int, **changes: Any) -> JsonObject:
    """Return the body of an answer."""
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "42"}]}
    body = {
        "id": f"resp-{number}",
        "status": "completed",
        "output": [message],
        "usage": {"input_tokens": 12, "output_tokens": 8},
    }
    return {**body, **changes}


def invocation(name: str, *calls: JsonObject, **changes: Any) -> JsonObject:
    """Return one conversation that names these calls."""
    said = [{"role": "user", "content": "Look up the answer"}]
    record = {"kind": "agent_invocation", "invocation_id": name, "model_calls": list(calls), "conversation": said}
    return {**record, **changes}


def bundle(*records: JsonObject, gaps: Sequence[JsonObject] = (), source: str = "my_agent") -> JsonObject:
    """Return what an agent observed."""
    return {"source": source, "records": list(records), "gaps": list(gaps)}


def turn(number: int, *calls: JsonObject, **changes: Any) -> JsonObject:
    """Return one turn of the root invocation, answered with the text `42`."""
    stated = {
        "invocation_id": "root",
        "task_id": "0",
        "rollout_id": ROLLOUT,
        "turn_no": number,
        "timestamp": float(number),
        "answer": "42",
        "step_count": 0,
        "model_calls": list(calls),
    }
    return {**stated, **changes}


def trajectory(*turns: JsonObject, **changes: Any) -> JsonObject:
    """Return the trajectory that an agent states: its turns."""
    return {"task_id": "0", "rollout_id": ROLLOUT, "turns": list(turns), **changes}


def call(number: int) -> JsonObject:
    """Return the reference to call `call-<number>`."""
    return {"model_call_id": f"call-{number}"}


def pair(number: int) -> JsonObject:
    """Return the reference to a call by its server and its response."""
    return {"model_ref": POLICY, "response_id": f"resp-{number}"}


def collected(
    *exchanges: JsonObject,
    observations: Any = None,
    producer: Any = None,
    usage: JsonObject | None = None,
    row: JsonObject | None = None,
    prepare: Callable[[Path], None] = lambda folder: None,
) -> JsonObject:
    """Return the record that collection makes when these calls were captured and the agent returned this.

    `prepare` may damage the capture directory before it is read.
    """
    result: JsonObject = {"reward": 1.0}
    if usage is not None:
        result["response"] = {"usage": usage}
    if observations is not None:
        result["ng_agent_observations"] = observations
    if producer is not None:
        result["ng_trajectory"] = producer
    with tempfile.TemporaryDirectory() as folder:
        if exchanges:
            lines = "".join(json.dumps(line) + "\n" for line in exchanges)
            (Path(folder) / f"{ROLLOUT}.capture.jsonl").write_text(lines, encoding="utf-8")
        prepare(Path(folder))
        record = attach_evidence(row or ROW, result, capture_dirs=[Path(folder)])
    return {**(row or ROW), **record}


def known(value: Any) -> Any:
    """Return a copy without the keys that hold null."""
    if isinstance(value, dict):
        return {key: known(inner) for key, inner in value.items() if inner is not None}
    return [known(inner) for inner in value] if isinstance(value, list) else value

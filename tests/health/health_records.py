"""Records that the health tests start from."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

POLICY = {"type": "responses_api_models", "name": "policy"}
CASES = json.loads((Path(__file__).parents[1] / "cases" / "evidence.json").read_text())


def ref(number: int) -> dict[str, Any]:
    return {"model_call_id": f"c{number}", "model_ref": POLICY, "response_id": f"r{number}"}


def call(number: int, **changes: Any) -> dict[str, Any]:
    """One finished call; `metadata` and `tokens` change those parts."""
    metadata = {"response_id": f"r{number}", "model_ref": POLICY, "status_code": 200, "response_status": "completed"}
    tokens = {"prompt_tokens": 10, "completion_tokens": 2}
    body = {"status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": "ok"}]}]}
    return {
        "model_call_id": f"c{number}",
        "started_at": float(number),
        "request": {"input": "hi"},
        "response": body,
        **{key: value for key, value in changes.items() if key not in ("metadata", "tokens")},
        "response_metadata": {**metadata, **changes.get("metadata", {})},
        "token_stats": {**tokens, **changes.get("tokens", {})},
    }


def turn(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "invocation_id": "root",
        "task_id": "0",
        "rollout_id": "0-0",
        "turn_no": number,
        "timestamp": float(number),
        "question": "why",
        "answer": f"answer {number}",
        "step_count": number,
        "model_calls": [ref(number)],
        **changes,
    }


def trajectory(calls: int = 2, **changes: Any) -> dict[str, Any]:
    return {
        "schema_version": "1.0",
        "task_id": "0",
        "rollout_id": "0-0",
        "invocations": [
            {
                "kind": "agent_invocation",
                "invocation_id": "root",
                "status": "completed",
                "model_calls": [ref(number) for number in range(1, calls + 1)],
                "conversation": [
                    {"role": "user", "content": "why"},
                    {"type": "function_call", "call_id": "t1", "name": "bash", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "t1", "output": "x"},
                ],
            }
        ],
        "turns": [turn(number) for number in range(1, calls + 1)],
        "model_calls": [call(number) for number in range(1, calls + 1)],
        "tool_calls": [
            {"kind": "tool_call", "invocation_id": "root", "tool_call_id": "t1", "started_at": 1.0, "completed_at": 2.0}
        ],
        "gaps": [],
        **changes,
    }


def record(task: Any = 0, rollout: Any = 0, *, calls: int = 2, **changes: Any) -> dict[str, Any]:
    """A healthy record with everything observed."""
    usage = {"input_tokens": 10 * calls, "output_tokens": 2 * calls}
    base = {
        "_ng_task_index": task,
        "_ng_rollout_index": rollout,
        "reward": 1.0,
        "response": {"usage": usage},
        "ng_trajectory": trajectory(calls),
    }
    return copy.deepcopy({**base, **changes})


def without(source: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in source.items() if key not in names}


def write_lines(path: Path, *lines: Any) -> Path:
    """Write one line per item: bytes as they are, anything else as JSON."""
    encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in encoded))
    return path

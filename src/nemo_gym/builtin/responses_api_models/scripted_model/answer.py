"""The Response that a scripted outcome comes to. Pure but for the clock and fresh ids."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from nemo_gym.builtin.responses_api_models.scripted_model.script import Chosen, Outcome, input_items, render

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ECHOED = ("instructions", "metadata", "temperature", "top_p", "max_output_tokens", "reasoning", "text")


def response_for(outcome: Outcome, chosen: Chosen, request: Mapping[str, Any], *, model: str) -> dict[str, Any]:
    """Return a finished Response with the outcome's reasoning, text and calls, in this order."""
    output: list[dict[str, Any]] = []
    if outcome.reasoning is not None:
        summary = [{"type": "summary_text", "text": render(outcome.reasoning, chosen.values)}]
        output.append({"type": "reasoning", "id": f"rs_{uuid.uuid4().hex}", "summary": summary})
    if outcome.text is not None:
        text = {"type": "output_text", "text": str(render(outcome.text, chosen.values)), "annotations": []}
        output.append(
            {
                "type": "message",
                "id": f"msg_{uuid.uuid4().hex}",
                "role": "assistant",
                "status": "completed",
                "content": [text],
            }
        )
    for number, call in enumerate(outcome.calls):
        arguments = render(call.arguments, chosen.values)
        output.append(
            {
                "type": "function_call",
                "id": f"fc_{uuid.uuid4().hex}",
                "call_id": call.call_id or f"call_{chosen.step_index}_{number}_{uuid.uuid4().hex[:8]}",
                "name": call.name,
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                "status": "completed",
            }
        )
    reason = _INCOMPLETE.get(outcome.finish or "")
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": time.time(),
        "model": model,
        "status": "completed" if reason is None else "incomplete",
        "incomplete_details": None if reason is None else {"reason": reason},
        "error": None,
        "output": output,
        "parallel_tool_calls": request.get("parallel_tool_calls", True),
        "tool_choice": request.get("tool_choice") or "auto",
        "tools": request.get("tools") or [],
        **{key: request[key] for key in _ECHOED if request.get(key) is not None},
        "usage": _usage(outcome, request, output),
    }


def _usage(outcome: Outcome, request: Mapping[str, Any], output: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the scripted counts, or one token per four characters of the texts."""
    if outcome.usage is None:
        return None
    if outcome.counts_usage:
        tokens_in, tokens_out = _tokens(input_items(request)), _tokens(output)
        cached: int | None = 0
        reasoning: int | None = _tokens([item for item in output if item["type"] == "reasoning"])
    else:
        usage = outcome.usage
        tokens_in, tokens_out = usage.input_tokens, usage.output_tokens
        cached, reasoning = usage.cached_tokens, usage.reasoning_tokens
    return {
        "input_tokens": tokens_in,
        "output_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens_details": {"reasoning_tokens": reasoning},
    }


def _tokens(items: list[dict[str, Any]]) -> int:
    """Count as a tokenizer roughly would; ids are left out, since they are fresh each time."""
    texts = [{key: value for key, value in item.items() if key not in ("id", "call_id", "status")} for item in items]
    return sum(-(-len(json.dumps(text)) // 4) for text in texts)

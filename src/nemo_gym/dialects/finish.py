"""How an answer ended, who it is and which model gave it. Source: capture contract 1.5 and 4.3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from nemo_gym.dialects.names import Dialect, dialect_of
from nemo_gym.dialects.tool_calls import tool_calls_of
from nemo_gym.records.codec import JsonObject, JsonValue

NormalFinish: TypeAlias = Literal[
    "stop", "length", "tool_calls", "content_filter", "refusal", "pause", "context_overflow", "error", "cancelled"
]

_NORMAL: dict[str, NormalFinish] = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "completed": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "max_completion_tokens": "length",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "recitation": "content_filter",
    "refusal": "refusal",
    "pause_turn": "pause",
    "pause": "pause",
    "compaction": "pause",
    "model_context_window_exceeded": "context_overflow",
    "context_length_exceeded": "context_overflow",
    "error": "error",
    "failed": "error",
    "cancelled": "cancelled",
    "canceled": "cancelled",
    "abort": "cancelled",
    "aborted": "cancelled",
}


@dataclass(frozen=True, slots=True)
class Finish:
    """How an answer ended.

    `reason` is the provider's word, `reasons` one entry for each choice of a chat answer, `error_code` the code of a
    failed response, `normal` the reason in one vocabulary (None when the word is unknown or none was given).
    """

    reason: str | None
    reasons: tuple[str | None, ...]
    error_code: str | None
    normal: NormalFinish | None


def finish_reason_of(response: object) -> str | None:
    """Return the first string among `stop_reason`, the first choice's `finish_reason`, `incomplete_details.reason`."""
    if not isinstance(response, dict):
        return None
    reason = response.get("stop_reason")
    if isinstance(reason, str):
        return reason
    reasons = _choice_reasons(response) if "choices" in response else None
    if reasons and reasons[0] is not None:
        return reasons[0]
    details = response.get("incomplete_details")
    return _text(details.get("reason")) if isinstance(details, dict) else None


def finish_of(response: object, dialect: Dialect | None) -> Finish:
    """Return everything an answer says about its end; an unknown dialect is read from the answer's shape."""
    if not isinstance(response, dict):
        return Finish(None, (), None, None)
    spoken = dialect or dialect_of(response)
    reason = finish_reason_of(response)
    status = response_status_of(response) if spoken == "responses" else None
    error = response.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    error_code = str(code) if isinstance(code, (str, int)) and not isinstance(code, bool) else None
    normal = normal_finish(reason)
    if status in ("failed", "cancelled"):
        normal = normal_finish(error_code) if normal_finish(error_code) == "context_overflow" else normal_finish(status)
    elif status == "completed" and reason is None:
        normal = _completed(response)
    return Finish(reason, tuple(_choice_reasons(response)), error_code, normal)


def normal_finish(reason: str | None) -> NormalFinish | None:
    """Return `reason` in the common vocabulary; None when it is unknown."""
    return None if reason is None else _NORMAL.get(reason.lower())


def response_status_of(response: object) -> str | None:
    """Return the body's own status (Responses only has one), or None."""
    status = response.get("status") if isinstance(response, dict) else None
    return status if isinstance(status, str) else None


def response_id_of(response: object) -> str | None:
    """Return the provider's id of the answer, or None when it is not a string."""
    name = response.get("id") if isinstance(response, dict) else None
    return name if isinstance(name, str) else None


def model_of(response: object, request: object = None) -> str | None:
    """Return the model that answered, else the one that was asked for, else None."""
    named = response.get("model") if isinstance(response, dict) else None
    if not isinstance(named, str):
        named = request.get("model") if isinstance(request, dict) else None
    return named if isinstance(named, str) else None


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None


def _choice_reasons(response: JsonObject) -> list[str | None]:
    choices = response.get("choices")
    if not isinstance(choices, list):
        return []
    return [_text(choice.get("finish_reason")) for choice in choices if isinstance(choice, dict)]


def _completed(response: JsonObject) -> NormalFinish:
    """Return what a completed response, which names no reason, ended in: a call that waits for the client, or text."""
    waiting = (
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "computer_call",
        "apply_patch_call",
    )
    output = response.get("output")
    items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    if any(item.get("type") in waiting for item in items) and tool_calls_of(response, "responses"):
        return "tool_calls"
    for item in items:
        parts = item.get("content")
        if isinstance(parts, list) and any(isinstance(part, dict) and part.get("type") == "refusal" for part in parts):
            return "refusal"
    return "stop"

"""The Response object around converted output: identity, status, and the request's settings echoed."""

from __future__ import annotations

from typing import Any

from nemo_gym.dialects.conversion.mint import Mint
from nemo_gym.dialects.conversion.shapes import as_text, objects
from nemo_gym.dialects.errors import error_body, status_for_error
from nemo_gym.dialects.names import Dialect
from nemo_gym.records.codec import JsonObject

_ECHOED = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "temperature",
    "text",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
)
_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


def response_envelope(
    request: JsonObject,
    output: list[JsonObject],
    *,
    mint: Mint,
    response_id: str | None,
    created_at: float | None,
    model: str | None,
    finish: str,
    usage: JsonObject | None,
) -> JsonObject:
    """Return a Response; `finish` is `stop`, `length` or `content_filter`.

    `request` is the Responses request that was answered, or {}. `created_at` is UTC Unix seconds, None for now.
    """
    reason = _INCOMPLETE_REASONS.get(finish)
    response: JsonObject = {
        "id": response_id or mint.new_id("resp"),
        "object": "response",
        "created_at": mint.now() if created_at is None else created_at,
        "status": "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "model": model or as_text(request.get("model")),
        "output": output,
        "parallel_tool_calls": _or(request.get("parallel_tool_calls"), True),
        "tool_choice": _or(request.get("tool_choice"), "auto"),
        "tools": _or(request.get("tools"), []),
        "usage": usage,
    }
    response.update({name: request[name] for name in _ECHOED if request.get(name) is not None})
    return response


def failed_response(
    request: JsonObject, error: Any, *, mint: Mint, response_id: str | None = None, model: str | None = None
) -> JsonObject:
    """Return a Response with status `failed` for another dialect's error object."""
    response = response_envelope(
        request, [], mint=mint, response_id=response_id, created_at=None, model=model, finish="stop", usage=None
    )
    details = _details(error)
    response["status"] = "failed"
    response["error"] = {
        "code": str(details.get("code") or details.get("type") or "server_error"),
        "message": str(details.get("message") or "the backend failed"),
    }
    return response


def error_said_in(dialect: Dialect, error: JsonObject) -> JsonObject:
    """Return the error body of a failed Response's error object, with the type that belongs to what it says."""
    message, code = error.get("message"), error.get("code")
    return error_body(
        dialect,
        status=status_for_error(error),
        message=message if isinstance(message, str) and message else "the model failed",
        code=code if isinstance(code, str) else None,
    )


def is_error(dialect: Dialect, answer: JsonObject) -> bool:
    """Return whether an answer in the shape of Chat or Messages is an error object; Responses have `is_failed`."""
    if dialect == "chat":
        return bool(answer.get("error")) and not objects(answer.get("choices"))
    return dialect == "messages" and (
        answer.get("type") == "error" or (bool(answer.get("error")) and "content" not in answer)
    )


def error_of_failed(response: JsonObject) -> JsonObject:
    """Return the error object of a Response that failed; one that names none gets its status as the message."""
    error = _details(response.get("error"))
    return (
        error if error.get("message") else {**error, "message": f"the model call ended as `{response.get('status')}`"}
    )


def _details(error: Any) -> JsonObject:
    """Return an error as an object; a backend may say it in a text."""
    if isinstance(error, dict):
        return error
    return {"message": str(error)} if error else {}


def is_failed(response: JsonObject) -> bool:
    """Return whether a Response is an error and not an answer."""
    return response.get("status") in ("failed", "cancelled") or bool(response.get("error"))


def message_item(item_id: str, parts: list[JsonObject], *, finish: str = "stop") -> JsonObject:
    """Return the model's message item; a cut answer's message is incomplete."""
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": "incomplete" if finish in _INCOMPLETE_REASONS else "completed",
        "content": parts,
    }


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value

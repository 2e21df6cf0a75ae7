"""How a Chat request is made fit for vLLM and its chat templates, and what its answer is made into. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from nemo_gym.dialects.conversion.reasoning_items import cut_think_tags

ReasoningField = Literal["both", "reasoning", "reasoning_content"]
TEMPLATE_KWARGS = "chat_template_kwargs"


def without_strict(body: dict[str, Any]) -> dict[str, Any]:
    """Return the request without `strict` in its function tools: some templates print unknown keys into the prompt."""
    tools = body.get("tools")
    if not isinstance(tools, list):
        return body
    return {**body, "tools": [_without_strict(tool) for tool in tools]}


def _without_strict(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or "strict" not in function:
        return tool
    return {**tool, "function": {key: value for key, value in function.items() if key != "strict"}}


def with_template_kwargs(
    body: dict[str, Any], configured: Mapping[str, Any], *, forward_requests: bool
) -> tuple[dict[str, Any], bool]:
    """Return the request with its template arguments, and whether the request's own were dropped.

    The configured ones come first, then the request's where these are forwarded, then those in
    `metadata.chat_template_kwargs` as JSON text, which is taken out of the metadata.
    """
    own = body.get(TEMPLATE_KWARGS)
    metadata = body.get("metadata")
    text = metadata.get(TEMPLATE_KWARGS) if isinstance(metadata, Mapping) else None
    kwargs = {**configured, **(own if forward_requests and isinstance(own, dict) else {}), **_json_object(text)}
    shaped = {key: value for key, value in body.items() if key != TEMPLATE_KWARGS}
    if isinstance(metadata, Mapping) and text is not None:
        rest = {key: value for key, value in metadata.items() if key != TEMPLATE_KWARGS}
        shaped.pop("metadata")
        if rest:
            shaped["metadata"] = rest
    if kwargs:
        shaped[TEMPLATE_KWARGS] = kwargs
    return shaped, bool(own) and not forward_requests


def _json_object(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def with_reasoning_fields(body: dict[str, Any], field: ReasoningField, *, keep_in_text: bool) -> dict[str, Any]:
    """Return the request with earlier reasoning under the backend's key or keys, cut out of the assistant's text."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    names = ("reasoning", "reasoning_content") if field == "both" else (field,)
    return {**body, "messages": [_with_reasoning(message, names, keep_in_text) for message in messages]}


def _with_reasoning(message: Any, names: tuple[str, ...], keep_in_text: bool) -> Any:
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return message
    content = message.get("content")
    thoughts, text = cut_think_tags(content) if isinstance(content, str) else ([], content)
    given = message.get("reasoning_content") or message.get("reasoning")
    reasoning = "\n".join([*([given] if isinstance(given, str) else []), *thoughts])
    if not reasoning:
        return message
    kept = {key: value for key, value in message.items() if key not in ("reasoning", "reasoning_content")}
    return {**kept, "content": content if keep_in_text else (text or None), **dict.fromkeys(names, reasoning)}


def continued(body: dict[str, Any]) -> dict[str, Any]:
    """Return the request so that an assistant's last message is continued, where there is one."""
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        return body
    return {"continue_final_message": True, "add_generation_prompt": False, **body}

"""A Responses request as a Chat request, for a backend that speaks Chat Completions."""

from __future__ import annotations

import re
from typing import Any

from nemo_gym.dialects.conversion.chat_conversation import conversation_to_chat
from nemo_gym.dialects.conversion.chat_tools import tool_choice_to_chat, tools_to_chat
from nemo_gym.dialects.conversion.fields import EXTRA_BODY, RESPONSES_FIELDS, SHARED_SETTINGS, extra_body_of
from nemo_gym.dialects.conversion.refusal import ConversionError, Notes
from nemo_gym.dialects.conversion.shapes import as_list, as_object
from nemo_gym.records.codec import JsonObject

_REFUSED = ("previous_response_id", "conversation", "background", "prompt", "max_tool_calls", "context_management")
_IGNORED_REASONING = ("summary", "generate_summary")
_IGNORED_INCLUDES = ("reasoning.encrypted_content",)
_LOGPROBS_INCLUDE = "message.output_text.logprobs"
_NEEDS_COMPLETION_LIMIT = re.compile(r"(?:.*/)?(?:o\d|gpt-5)")
"""OpenAI's reasoning models, which refuse `max_tokens`."""


def responses_request_to_chat(
    body: JsonObject, *, reasoning_key: str | None = None, max_tokens_key: str | None = None
) -> tuple[JsonObject, Notes]:
    """Return the Chat request of a Responses request, and what was lost.

    Reasoning of earlier turns goes in front of the text as `<think>` blocks, or under `reasoning_key` when the backend
    reads it there. `max_tokens_key` None chooses by the request's model. Raises ConversionError for content and
    settings that a chat backend cannot honour.
    """
    for name in _REFUSED:
        if body.get(name):
            raise ConversionError(f"`{name}` is not supported by a chat backend", param=name)
    notes: Notes = []
    converted: JsonObject = {}
    if body.get("model") is not None:
        converted["model"] = body["model"]
    converted["messages"] = conversation_to_chat(body, notes, reasoning_key=reasoning_key)
    converted.update({name: body[name] for name in SHARED_SETTINGS if body.get(name) is not None})
    if body.get("max_output_tokens") is not None:
        converted[max_tokens_key or _max_tokens_key(body.get("model"))] = body["max_output_tokens"]
    tools = tools_to_chat(body, notes)
    if tools:
        converted["tools"] = tools
    tool_choice_to_chat(body, tools, converted, notes)
    _reasoning(as_object(body.get("reasoning")), converted, notes)
    _text(as_object(body.get("text")), converted)
    _include(body, converted, notes)
    _truncation(body.get("truncation"))
    if converted.get("top_logprobs") is not None:
        converted["logprobs"] = True
    _metadata(body.get("metadata"), converted)
    if body.get("moderation") is not None:
        notes.append("`moderation` dropped")
    notes.extend(f"`{name}` dropped: unknown" for name in sorted(body.keys() - RESPONSES_FIELDS))
    return converted, notes


def _max_tokens_key(model: Any) -> str:
    reasoning_model = isinstance(model, str) and _NEEDS_COMPLETION_LIMIT.match(model)
    return "max_completion_tokens" if reasoning_model else "max_tokens"


def _reasoning(reasoning: JsonObject, converted: JsonObject, notes: Notes) -> None:
    for name, value in reasoning.items():
        if value is None:
            continue
        if name == "effort":
            converted["reasoning_effort"] = value
        elif name in _IGNORED_REASONING:
            notes.append(f"`reasoning.{name}` ignored: a chat backend has no summaries")
        else:
            raise ConversionError(f"`reasoning.{name}` is not supported by a chat backend", param=f"reasoning.{name}")


def _text(text: JsonObject, converted: JsonObject) -> None:
    output_format = text.get("format")
    if isinstance(output_format, dict):
        kind = output_format.get("type")
        if kind == "json_schema":
            inner = {key: value for key, value in output_format.items() if key != "type" and value is not None}
            converted["response_format"] = {"type": kind, "json_schema": inner}
        else:
            converted["response_format"] = output_format
    if text.get("verbosity") is not None:
        converted["verbosity"] = text["verbosity"]


def _include(body: JsonObject, converted: JsonObject, notes: Notes) -> None:
    for name in as_list(body.get("include")):
        if name == _LOGPROBS_INCLUDE:
            converted["logprobs"] = True
        elif name in _IGNORED_INCLUDES:
            notes.append(f"`include` of `{name}` ignored: a chat backend has none")
        else:
            raise ConversionError(f"`include` of `{name}` is not supported by a chat backend", param="include")


def _truncation(truncation: Any) -> None:
    if truncation not in (None, "disabled"):
        raise ConversionError(f"`truncation` `{truncation}` is not supported by a chat backend", param="truncation")


def _metadata(metadata: Any, converted: JsonObject) -> None:
    """Spread what travelled in `metadata.extra_body`; the request's own settings win."""
    if not isinstance(metadata, dict):
        return
    extra = extra_body_of(metadata)
    kept = {key: value for key, value in metadata.items() if key != EXTRA_BODY or not extra}
    if kept:
        converted["metadata"] = kept
    for name, value in extra.items():
        converted.setdefault(name, value)

"""A Responses request as a Messages request, for a backend that speaks Messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nemo_gym.dialects.conversion.arguments import arguments_object
from nemo_gym.dialects.conversion.citations import citations_from_annotations
from nemo_gym.dialects.conversion.fields import EXTRA_BODY, extra_body_of, note_dropped
from nemo_gym.dialects.conversion.messages_request_in import TOOL_ERROR_PREFIX
from nemo_gym.dialects.conversion.messages_tools import tool_choice_to_messages, tools_to_messages
from nemo_gym.dialects.conversion.namespaces import flatten_call, offered_tools
from nemo_gym.dialects.conversion.parts import block_from_part
from nemo_gym.dialects.conversion.reasoning_items import reasoning_texts, thinking_blocks
from nemo_gym.dialects.conversion.refusal import ConversionError, Notes
from nemo_gym.dialects.conversion.shapes import as_list, as_number, as_object, as_text, objects
from nemo_gym.records.codec import JsonObject

DEFAULT_MAX_TOKENS = 8192
"""Messages requires a limit; this one is sent when the request has none."""

_BUDGET_OF_EFFORT = {"low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768, "max": 65536}
_SMALLEST_BUDGET = 1024
_REFUSED = ("previous_response_id", "conversation", "prompt", "background")
_DROPPED = (
    "top_logprobs",
    "store",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "max_tool_calls",
    "context_management",
    "moderation",
)


def responses_request_to_messages(body: JsonObject) -> tuple[JsonObject, Notes]:
    """Return the Messages request of a Responses request, and what was lost.

    Raises ConversionError for what only a server that stores conversations can do, and for audio and video.
    """
    for name in _REFUSED:
        if body.get(name):
            raise ConversionError(f"`{name}` is not supported by a Messages backend", param=name)
    notes: Notes = []
    writer = _ConversationWriter(notes)
    instructions = as_text(body.get("instructions"))
    system = [instructions] if instructions else []
    for index, item in enumerate(_items(body.get("input"))):
        text = _system_of(item) if not writer.messages else None
        if text is None:
            writer.add(flatten_call(item), f"input[{index}]")
        else:
            system.append(text)
    converted: JsonObject = {
        "model": body.get("model"),
        "max_tokens": as_number(body.get("max_output_tokens")) or DEFAULT_MAX_TOKENS,
        "messages": writer.messages,
    }
    if body.get("max_output_tokens") is None:
        notes.append(f"`max_tokens` set to {DEFAULT_MAX_TOKENS}, since Messages requires a limit")
    if system:
        converted["system"] = "\n\n".join(system)
    converted.update({name: body[name] for name in ("temperature", "top_p") if body.get(name) is not None})
    tools = tools_to_messages(offered_tools(body), notes)
    choice = tool_choice_to_messages(body, tools, notes)
    if tools:
        converted["tools"] = tools
    if choice is not None:
        converted["tool_choice"] = choice
    _settings(body, converted, notes)
    note_dropped(notes, body, _DROPPED)
    return converted, notes


def _items(value: Any) -> Iterator[JsonObject]:
    if isinstance(value, str):
        yield {"type": "message", "role": "user", "content": value}
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict) and item.get("type") != "additional_tools":
            yield item


def _system_of(item: JsonObject) -> str | None:
    """Return the text of a system or developer message, None for anything else."""
    if item.get("type", "message") != "message" or item.get("role") not in ("system", "developer"):
        return None
    content = item.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(as_text(part.get("text")) for part in objects(content))


class _ConversationWriter:
    """Builds messages: consecutive blocks of one role share a message."""

    def __init__(self, notes: Notes) -> None:
        self.messages: list[JsonObject] = []
        self._notes = notes

    def add(self, item: JsonObject, where: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            self._reasoning(item, where)
        elif kind in ("function_call", "custom_tool_call"):
            free_text = kind == "custom_tool_call"
            given = {"input": as_text(item.get("input"))} if free_text else arguments_object(item.get("arguments"))
            call_id = item.get("call_id") or item.get("id")
            self._put("assistant", {"type": "tool_use", "id": call_id, "name": item.get("name"), "input": given})
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._put("user", _tool_result(item, where))
        else:
            self._notes.append(f"{where} of type `{kind}` dropped")

    def _message(self, item: JsonObject, where: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role in ("system", "developer"):
            self._notes.append(f"{where}: {role} message in the middle sent as the user's")
        target = "assistant" if role == "assistant" else "user"
        parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
        for position, part in enumerate(as_list(parts)):
            block = block_from_part(part, f"{where}.content[{position}]")
            if block["type"] == "text" and not block["text"]:
                continue  # the API refuses empty text
            if part.get("annotations"):
                citations = citations_from_annotations(part["annotations"], block["text"], self._notes)
                block.update({"citations": citations} if citations else {})
            self._put(target, block)

    def _reasoning(self, item: JsonObject, where: str) -> None:
        if item.get("encrypted_content") is None:
            if reasoning_texts(item):
                self._notes.append(f"{where}: reasoning without a signature dropped")
            return
        for block in thinking_blocks(item):
            self._put("assistant", block)

    def _put(self, role: str, block: JsonObject) -> None:
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": []})
        self.messages[-1]["content"].append(block)


def _tool_result(item: JsonObject, where: str) -> JsonObject:
    output, failed = item.get("output"), False
    content: str | list[JsonObject]
    if isinstance(output, list):
        content = [block_from_part(part, f"{where}.output[{index}]") for index, part in enumerate(output)]
        first = content[0] if content else {}
        if str(first.get("text", "")).startswith(TOOL_ERROR_PREFIX):
            failed = True
            text = first["text"].removeprefix(TOOL_ERROR_PREFIX)
            content = [*([{"type": "text", "text": text}] if text else []), *content[1:]]
    else:
        content = "" if output is None else str(output)
        failed = content.startswith(TOOL_ERROR_PREFIX)
        content = content.removeprefix(TOOL_ERROR_PREFIX)
    result: JsonObject = {"type": "tool_result", "tool_use_id": item.get("call_id"), "content": content}
    if failed:
        result["is_error"] = True
    return result


def _settings(body: JsonObject, converted: JsonObject, notes: Notes) -> None:
    reasoning, text = as_object(body.get("reasoning")), as_object(body.get("text"))
    _thinking(reasoning.get("effort"), converted, notes)
    output_format = as_object(text.get("format"))
    if output_format.get("type") == "json_schema":
        converted["output_config"] = {"format": {"type": "json_schema", "schema": output_format.get("schema")}}
    elif output_format.get("type") == "json_object":
        notes.append("`text.format` dropped")
    if text.get("verbosity") is not None:
        notes.append("`text.verbosity` dropped")
    if body.get("truncation") == "auto":
        notes.append("`truncation` dropped")
    metadata = as_object(body.get("metadata"))
    extra = extra_body_of(metadata)
    stop = extra.pop("stop", None)
    if stop:
        converted["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if isinstance(extra.get("top_k"), int):
        converted["top_k"] = extra.pop("top_k")
    notes.extend(f"`metadata.{EXTRA_BODY}.{name}` dropped" for name in extra)
    notes.extend(f"`metadata.{name}` dropped" for name in metadata if name != EXTRA_BODY)
    user = body.get("safety_identifier") or body.get("user")
    if user is not None:
        converted["metadata"] = {"user_id": user}


def _thinking(effort: Any, converted: JsonObject, notes: Notes) -> None:
    """Ask for thinking within the token limit; with it the API allows neither a temperature nor a forced tool."""
    wanted = _BUDGET_OF_EFFORT.get(str(effort), 0)
    budget = min(wanted, converted["max_tokens"] - _SMALLEST_BUDGET)
    if not wanted:
        return
    if budget < _SMALLEST_BUDGET:
        notes.append(f"`reasoning.effort` dropped: {converted['max_tokens']} tokens leave no room for thinking")
        return
    if as_object(converted.get("tool_choice")).get("type") in ("any", "tool"):
        notes.append("`reasoning.effort` dropped: a forced tool choice excludes thinking")
        return
    converted["thinking"] = {"type": "enabled", "budget_tokens": budget}
    for name in ("temperature", "top_p"):
        if converted.pop(name, None) is not None:
            notes.append(f"`{name}` dropped: thinking excludes it")

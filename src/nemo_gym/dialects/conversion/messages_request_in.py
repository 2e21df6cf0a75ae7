"""A Messages request as a Responses request."""

from __future__ import annotations

from typing import Any

from nemo_gym.dialects.conversion.arguments import arguments_text
from nemo_gym.dialects.conversion.citations import annotations_from_citations
from nemo_gym.dialects.conversion.fields import carry_extra_body, note_cache_control, note_dropped
from nemo_gym.dialects.conversion.messages_tools import tool_choice_to_responses, tools_to_responses
from nemo_gym.dialects.conversion.parts import (
    document_from_block,
    image_from_block,
    input_text,
    note_unsaid,
    output_text,
)
from nemo_gym.dialects.conversion.reasoning_items import thinking_item
from nemo_gym.dialects.conversion.refusal import ConversionError, Notes
from nemo_gym.dialects.conversion.shapes import as_list, as_number, as_object, as_text
from nemo_gym.records.codec import JsonObject

TOOL_ERROR_PREFIX = "[tool error] "
"""Marks the answer of a failed tool, which Responses and Chat have no field for, so that the model sees it."""

_READ = frozenset(
    [
        "cache_control",
        "max_tokens",
        "messages",
        "model",
        "output_config",
        "output_format",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_p",
    ]
)
"""Fields that are carried or noted on their own; any other is dropped."""
_EFFORT_OF_BUDGET = ((4096, "low"), (16384, "medium"))


def messages_request_to_responses(body: JsonObject) -> tuple[JsonObject, Notes]:
    """Return the Responses request of a Messages request, and what was lost.

    Raises ConversionError for content without a counterpart. `stop_sequences` travel in `metadata.extra_body`, where
    chat backends look for them.
    """
    notes: Notes = []
    converted: JsonObject = {"input": []}
    for name, target in (("model", "model"), ("temperature",) * 2, ("top_p",) * 2, ("max_tokens", "max_output_tokens")):
        if body.get(name) is not None:
            converted[target] = body[name]
    instructions = _system_text(body.get("system"), notes)
    if instructions:
        converted["instructions"] = instructions
    messages = body.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        converted["input"].extend(_MessageReader(message, index, notes).items())
    tools = tools_to_responses(body.get("tools"), notes)
    if tools:
        converted["tools"] = tools
    tool_choice_to_responses(body, converted, notes)
    _reasoning_settings(body, converted, notes)
    if body.get("stop_sequences"):
        carry_extra_body(converted, {"stop": body["stop_sequences"]})
    note_dropped(notes, body, (name for name in body if name not in _READ))
    note_cache_control(notes, body)
    return converted, notes


def _system_text(system: Any, notes: Notes) -> str:
    if isinstance(system, str):
        return system
    texts: list[str] = []
    for index, block in enumerate(system if isinstance(system, list) else ()):
        if isinstance(block, dict) and block.get("type") == "text":
            texts.append(as_text(block.get("text")))
        else:
            notes.append(f"system[{index}] dropped: not text")
    return "\n".join(texts)


class _MessageReader:
    """Reads one message: runs of text and images become messages, everything else an item of its own, in order."""

    def __init__(self, message: Any, index: int, notes: Notes) -> None:
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
            raise ConversionError(f"messages[{index}] needs a known `role`", param=f"messages[{index}]")
        self._content, self._role = message.get("content"), message["role"]
        self._where, self._index, self._notes = f"messages[{index}]", index, notes
        self._parts: list[JsonObject] = []
        self._items: list[JsonObject] = []

    def items(self) -> list[JsonObject]:
        if isinstance(self._content, str):
            return [{"type": "message", "role": self._role, "content": self._content}]
        for position, block in enumerate(self._content if isinstance(self._content, list) else ()):
            if not isinstance(block, dict):
                raise ConversionError(f"{self._where}.content[{position}] is no block", param=self._where)
            self._read(block, position)
        self._close_message()
        return self._items

    def _read(self, block: JsonObject, position: int) -> None:
        kind, where = block.get("type"), f"{self._where}.content[{position}]"
        if kind == "text":
            self._parts.append(self._text(block))
        elif kind == "image":
            self._parts.append(image_from_block(block, where))
        elif kind in ("document", "search_result"):
            self._parts.extend(document_from_block(block, where))
            note_unsaid(self._notes, block, self._parts[-1:], where)
        elif kind == "tool_use":
            self._add(
                {
                    "type": "function_call",
                    "id": block.get("id"),
                    "call_id": block.get("id"),
                    "name": block.get("name"),
                    "arguments": arguments_text(block.get("input")),
                    "status": "completed",
                }
            )
        elif kind == "tool_result":
            output = _tool_output(block, where, self._notes)
            self._add({"type": "function_call_output", "call_id": block.get("tool_use_id"), "output": output})
        elif kind in ("thinking", "redacted_thinking"):
            self._add(thinking_item(block, f"rs_{self._index}_{position}"))
        else:
            self._notes.append(f"{where} of type `{kind}` dropped")

    def _text(self, block: JsonObject) -> JsonObject:
        text = as_text(block.get("text"))
        if self._role != "assistant":
            return input_text(text)
        return output_text(text, annotations_from_citations(block.get("citations"), text))

    def _add(self, item: JsonObject) -> None:
        self._close_message()
        self._items.append(item)

    def _close_message(self) -> None:
        if not self._parts:
            return
        parts, self._parts = self._parts, []
        content: Any = parts
        if len(parts) == 1 and parts[0]["type"] in ("input_text", "output_text") and not parts[0].get("annotations"):
            content = parts[0]["text"]
        self._items.append({"type": "message", "role": self._role, "content": content})


def _tool_output(block: JsonObject, where: str, notes: Notes) -> str | list[JsonObject]:
    """Return a tool's answer as text when it is all text, else as parts; a failed tool's answer is marked."""
    content, mark = block.get("content"), TOOL_ERROR_PREFIX if block.get("is_error") else ""
    if content is None or isinstance(content, str):
        return mark + (content or "")
    parts: list[JsonObject] = []
    for position, inner in enumerate(as_list(content)):
        kind = inner.get("type") if isinstance(inner, dict) else None
        at = f"{where}.content[{position}]"
        if kind == "text":
            parts.append(input_text(as_text(inner.get("text"))))
        elif kind == "image":
            parts.append(image_from_block(inner, at))
        elif kind in ("document", "search_result"):
            parts.extend(document_from_block(inner, at))
            note_unsaid(notes, inner, parts[-1:], at)
        else:
            notes.append(f"{at} of type `{kind}` dropped")
    if all(part["type"] == "input_text" for part in parts):
        return mark + "\n".join(part["text"] for part in parts)
    if mark and parts[0]["type"] == "input_text":
        return [input_text(mark + parts[0]["text"]), *parts[1:]]
    return [input_text(mark), *parts] if mark else parts


def _reasoning_settings(body: JsonObject, converted: JsonObject, notes: Notes) -> None:
    output_config, thinking = as_object(body.get("output_config")), as_object(body.get("thinking"))
    effort = output_config.get("effort")
    if effort is None and thinking.get("type") == "enabled":
        budget = as_number(thinking.get("budget_tokens"))
        effort = next((name for limit, name in _EFFORT_OF_BUDGET if budget <= limit), "high")
        notes.append(f"`thinking.budget_tokens` became reasoning effort `{effort}`")
    elif thinking.get("budget_tokens") is not None:
        notes.append("`thinking.budget_tokens` dropped: `output_config.effort` says how much")
    if thinking.get("type") not in (None, "enabled") and effort is None:
        notes.append(f"`thinking` {thinking['type']}: left to the model's default")
    if effort is not None:
        converted["reasoning"] = {"effort": effort}
    output_format = output_config.get("format") or body.get("output_format")
    if isinstance(output_format, dict) and output_format.get("type") == "json_schema":
        schema = {"type": "json_schema", "name": "output", "schema": output_format.get("schema"), "strict": True}
        converted["text"] = {"format": schema}

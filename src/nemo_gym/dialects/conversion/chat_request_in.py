"""A Chat request as a Responses request."""

from __future__ import annotations

from typing import Any

from nemo_gym.dialects.conversion.chat_tools import tool_choice_from_chat, tools_from_chat
from nemo_gym.dialects.conversion.fields import (
    CHAT_TEMPLATE_KWARGS,
    SHARED_SETTINGS,
    carry_extra_body,
    note_cache_control,
    note_dropped,
    token_fields_of,
)
from nemo_gym.dialects.conversion.parts import output_text, part_from_chat
from nemo_gym.dialects.conversion.reasoning_items import reasoning_item, text_of
from nemo_gym.dialects.conversion.refusal import ConversionError, Notes
from nemo_gym.dialects.conversion.shapes import as_object, as_text, objects
from nemo_gym.records.codec import JsonObject, encode

_CARRIED = ("stop", "seed", "frequency_penalty", "presence_penalty", "logit_bias", "thinking", "output_config", "top_k")
"""Settings that Responses lacks; they reach a chat backend through `metadata.extra_body`."""

_READ = frozenset(
    [
        "chat_template_kwargs",
        "function_call",
        "functions",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "model",
        "n",
        "parallel_tool_calls",
        "reasoning_effort",
        "response_format",
        "stream",
        "stream_options",
        "tool_choice",
        "tools",
        "verbosity",
        *SHARED_SETTINGS,
        *_CARRIED,
    ]
)
"""Fields that are carried; any other is dropped."""

_LOGPROBS_INCLUDE = "message.output_text.logprobs"


def chat_request_to_responses(body: JsonObject) -> tuple[JsonObject, Notes]:
    """Return the Responses request of a Chat request, and what was lost.

    Raises ConversionError for more than one choice, and for content without a counterpart.
    """
    if (body.get("n") or 1) != 1:
        raise ConversionError("`n` must be 1: a Response has one answer", param="n")
    notes: Notes = []
    reader = _ConversationReader(notes)
    messages = body.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        reader.read(message, index)
    converted: JsonObject = {"input": reader.items}
    for name in ("model", "metadata", *SHARED_SETTINGS):
        if body.get(name) is not None:
            converted[name] = body[name]
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is not None:
        converted["max_output_tokens"] = limit
    tools = tools_from_chat(body, notes)
    if tools:
        converted["tools"] = tools
    tool_choice_from_chat(body, converted)
    if body.get("reasoning_effort") is not None:
        converted["reasoning"] = {"effort": body["reasoning_effort"]}
    if body.get("logprobs"):
        converted["include"] = [_LOGPROBS_INCLUDE]
    text = _text_settings(body)
    if text:
        converted["text"] = text
    carry_extra_body(converted, {name: body[name] for name in _CARRIED if body.get(name) is not None})
    if body.get(CHAT_TEMPLATE_KWARGS) is not None:
        kwargs = encode(body[CHAT_TEMPLATE_KWARGS]).decode()
        converted["metadata"] = {**as_object(converted.get("metadata")), CHAT_TEMPLATE_KWARGS: kwargs}
    note_dropped(notes, body, (name for name in body if name not in _READ))
    note_cache_control(notes, body)
    if any(message.get("name") and message.get("role") != "function" for message in objects(messages)):
        notes.append("`name` of messages dropped")
    return converted, notes


def _text_settings(body: JsonObject) -> JsonObject:
    text: JsonObject = {}
    response_format = body.get("response_format")
    if isinstance(response_format, dict):
        schema = response_format.get("json_schema")
        text["format"] = {"type": "json_schema", **schema} if isinstance(schema, dict) else response_format
    if body.get("verbosity") is not None:
        text["verbosity"] = body["verbosity"]
    return text


class _ConversationReader:
    """Reads messages into items; remembers which calls were of free text, since their answers have another type."""

    def __init__(self, notes: Notes) -> None:
        self.items: list[JsonObject] = []
        self._notes = notes
        self._custom_calls: set[str] = set()
        self._legacy_call: str | None = None

    def read(self, message: Any, index: int) -> None:
        where = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role in ("user", "system", "developer"):
            content = _input_content(message.get("content"), where)
            self.items.append({"type": "message", "role": role, "content": content})
        elif role == "assistant":
            self._assistant(message, index, where)
        elif role == "tool":
            self._answer(message.get("tool_call_id"), message.get("content"), where)
        elif role == "function":
            self._answer(self._legacy_call, message.get("content"), where)
        else:
            raise ConversionError(f"{where} needs a known `role`", param=where)

    def _answer(self, call_id: Any, content: Any, where: str) -> None:
        kind = "custom_tool_call_output" if str(call_id) in self._custom_calls else "function_call_output"
        output = _input_content(content, where)
        self.items.append({"type": kind, "call_id": call_id, "output": output})

    def _assistant(self, message: JsonObject, index: int, where: str) -> None:
        produced: list[JsonObject] = []
        direct = text_of(message.get("reasoning_content") or message.get("reasoning"))
        reasoning = [direct] if direct else _thoughts(message.get("content"))
        if reasoning:
            item = reasoning_item(f"rs_{index}", reasoning)
            if message.get("reasoning_details") is not None:
                item["reasoning_details"] = message["reasoning_details"]
            produced.append(item)
        content = self._assistant_content(message, where)
        if content:
            produced.append({"type": "message", "role": "assistant", "content": content})
        produced.extend(self._call(call, where) for call in objects(message.get("tool_calls")))
        if isinstance(message.get("function_call"), dict):
            self._legacy_call = f"call_{index}"
            produced.append(self._call({"id": self._legacy_call, "function": message["function_call"]}, where))
        try:
            tokens = token_fields_of(message)
        except ValueError as error:
            raise ConversionError(f"{where}: {error}", param=where) from error
        if tokens and not produced:
            produced.append({"type": "message", "role": "assistant", "content": ""})
        if tokens:
            produced[-1].update(tokens)
        self.items.extend(produced)

    def _call(self, call: Any, where: str) -> JsonObject:
        if not isinstance(call, dict):
            raise ConversionError(f"{where}: a tool call is no object", param=where)
        call_id = call.get("id")
        custom, function = call.get("custom"), as_object(call.get("function"))
        item: JsonObject
        if isinstance(custom, dict):
            self._custom_calls.add(str(call_id))
            item = {"type": "custom_tool_call", "call_id": call_id, **_named(custom, "input")}
        else:
            item = {"type": "function_call", "call_id": call_id, **_named(function, "arguments")}
        if call.get("extra_content") is not None:
            item["extra_content"] = call["extra_content"]
        return item

    def _assistant_content(self, message: JsonObject, where: str) -> Any:
        """Return the text as a string, or as parts when there are several or a refusal; "" when there is none."""
        content, refusal = message.get("content"), message.get("refusal")
        if not isinstance(content, list) and not refusal:
            return content or ""
        parts: list[JsonObject] = []
        given = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
        for part in objects(given):
            if part.get("type") == "refusal":
                parts.append({"type": "refusal", "refusal": as_text(part.get("refusal"))})
            elif part.get("type") == "text":
                parts.append(output_text(as_text(part.get("text"))))
            elif part.get("type") != "thinking":
                self._notes.append(f"{where}.content: a part of type `{part.get('type')}` dropped")
        if refusal:
            parts.append({"type": "refusal", "refusal": refusal})
        return parts


def _named(body: JsonObject, key: str) -> JsonObject:
    value = body.get(key)
    return {
        "name": body.get("name"),
        key: value if isinstance(value, str) else "" if value is None else encode(value).decode(),
    }


def _input_content(content: Any, where: str) -> Any:
    if isinstance(content, list):
        return [part_from_chat(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
    return content or ""


def _thoughts(content: Any) -> list[str]:
    """Return the texts of the thinking parts of an assistant's content, as Mistral's models have them."""
    parts = [part for part in objects(content) if part.get("type") == "thinking"]
    return [text for part in parts if (text := text_of(part.get("thinking")))]

"""The conversation of a Responses request as Chat messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nemo_gym.dialects.conversion.arguments import arguments_text
from nemo_gym.dialects.conversion.chat_tools import chat_call
from nemo_gym.dialects.conversion.fields import token_fields_of
from nemo_gym.dialects.conversion.namespaces import flatten_call
from nemo_gym.dialects.conversion.parts import chat_part
from nemo_gym.dialects.conversion.reasoning_items import reasoning_texts, think_tags
from nemo_gym.dialects.conversion.refusal import ConversionError, Notes
from nemo_gym.dialects.conversion.shapes import as_text, objects
from nemo_gym.records.codec import JsonObject

_INPUT_ROLES = ("user", "system", "developer")
_INSTRUCTION_ROLES = ("system", "developer")


def conversation_to_chat(
    body: JsonObject, notes: Notes | None = None, *, reasoning_key: str | None = None
) -> list[JsonObject]:
    """Return the messages of `instructions` and `input`; raises ConversionError for an item without a counterpart.

    What is lost is added to `notes`.
    """
    given = body.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
    writer = _ChatWriter(reasoning_key)
    for index, item in enumerate(given if isinstance(given, list) else ()):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            raise ConversionError(f"{where} is no object", param=where)
        writer.add(flatten_call(item), where)
    if notes is not None and writer.sealed:
        notes.append(f"encrypted content of {writer.sealed} reasoning items dropped: a chat backend reads none")
    return _fold_instructions(body.get("instructions"), writer.finish())


def _fold_instructions(instructions: Any, messages: list[JsonObject]) -> list[JsonObject]:
    """Put instructions and the leading system and developer messages into one system message.

    Many chat templates accept one only. A single leading message without instructions keeps its role.
    """
    leading = 0
    while leading < len(messages) and messages[leading]["role"] in _INSTRUCTION_ROLES:
        leading += 1
    texts = [instructions] if isinstance(instructions, str) and instructions else []
    if not texts and leading <= 1:
        return messages
    texts.extend(_text_of(message["content"]) for message in messages[:leading])
    return [{"role": "system", "content": "\n\n".join(texts)}, *messages[leading:]]


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(as_text(part.get("text")) for part in objects(content))


class _ChatWriter:
    """Builds messages: what the assistant produced in a row is one message, images of tools follow their answers."""

    def __init__(self, reasoning_key: str | None) -> None:
        self._messages: list[JsonObject] = []
        self._reasoning_key = reasoning_key
        self._turn: _AssistantTurn | None = None
        self._tool_images: list[JsonObject] = []
        self.sealed = 0
        """How many reasoning items had content that only their maker can read."""

    def finish(self) -> list[JsonObject]:
        self._close_turn()
        self._close_tools()
        return self._messages

    def add(self, item: JsonObject, where: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else None)
        role = item.get("role")
        if kind in ("function_call_output", "custom_tool_call_output") or (kind == "message" and role == "tool"):
            self._close_turn()
            self._tool_answer(item, where)
            return
        self._close_tools()
        if kind == "message" and role in _INPUT_ROLES:
            self._close_turn()
            self._messages.append({"role": role, "content": _content(item.get("content"), where)})
        elif kind in ("reasoning", "function_call", "custom_tool_call") or (kind == "message" and role == "assistant"):
            if self._turn is None:
                self._turn = _AssistantTurn(self._reasoning_key)
            self._turn.add(item, kind, where)
            self.sealed += kind == "reasoning" and bool(item.get("encrypted_content"))
        elif kind == "message":
            raise ConversionError(f"{where}: a message of role `{role}` cannot be sent to a chat backend", param=where)
        elif kind != "additional_tools":  # those are offered with the tools
            raise ConversionError(f"{where}: an item of type `{kind}` cannot be sent to a chat backend", param=where)

    def _tool_answer(self, item: JsonObject, where: str) -> None:
        call_id = item.get("tool_call_id") or item.get("call_id")
        output = item.get("content") if "tool_call_id" in item else item.get("output")
        content: Any = output if isinstance(output, str) else "" if output is None else None
        if content is None:
            parts = [chat_part(part, where) for part in _as_parts(output)]
            content = [part for part in parts if part["type"] == "text"]
            images = [part for part in parts if part["type"] != "text"]
            if images:
                label = {"type": "text", "text": f"Output of tool call {call_id}:"}
                self._tool_images.extend([label, *images])
                content = content or "The output is in the next message."
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _close_tools(self) -> None:
        """Put images after the whole run of tool answers, which providers want directly behind their calls."""
        if self._tool_images:
            self._messages.append({"role": "user", "content": self._tool_images})
            self._tool_images = []

    def _close_turn(self) -> None:
        if self._turn is not None and not self._turn.is_empty:  # providers refuse a message that says nothing
            self._messages.append(self._turn.message())
        self._turn = None


def _as_parts(output: Any) -> Iterable[JsonObject]:
    return output if isinstance(output, list) else [{"type": "input_text", "text": arguments_text(output)}]


def _content(content: Any, where: str) -> Any:
    if isinstance(content, list):
        return [chat_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
    return content or ""


class _AssistantTurn:
    """One assistant message in the making."""

    def __init__(self, reasoning_key: str | None) -> None:
        self._reasoning_key = reasoning_key
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusals: list[str] = []
        self._calls: list[JsonObject] = []
        self._extra: JsonObject = {}
        self._only_reasoning = True

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing but reasoning that a chat backend cannot read."""
        return self._only_reasoning and not (self._reasoning or self._extra or any(self._text))

    def add(self, item: JsonObject, kind: str, where: str) -> None:
        if kind == "reasoning":
            self._add_reasoning(item)
        elif kind == "message":
            self._add_message(item, where)
        else:
            self._calls.append(chat_call(item))
        self._only_reasoning = self._only_reasoning and kind == "reasoning"
        try:
            self._extra.update(token_fields_of(item))
        except ValueError as error:
            raise ConversionError(f"{where}: {error}", param=where) from error

    def _add_reasoning(self, item: JsonObject) -> None:
        if item.get("reasoning_details") is not None:
            self._extra["reasoning_details"] = item["reasoning_details"]
        if self._reasoning_key is None:
            self._text.append(think_tags(reasoning_texts(item)))
        else:
            self._reasoning.extend(reasoning_texts(item))

    def _add_message(self, item: JsonObject, where: str) -> None:
        content = item.get("content")
        parts = content if isinstance(content, list) else [{"type": "output_text", "text": content}]
        for part in objects(parts):
            if part.get("type") == "refusal":
                self._refusals.append(as_text(part.get("refusal")))
            elif part.get("type") in ("output_text", "input_text", "text"):
                self._text.append(as_text(part.get("text")))
            else:
                raise ConversionError(
                    f"{where}: an assistant's part of type `{part.get('type')}` cannot be sent to a chat backend",
                    param=where,
                )
        if item.get("refusal"):
            self._refusals.append(as_text(item["refusal"]))
        self._calls.extend(objects(item.get("tool_calls")))

    def message(self) -> JsonObject:
        """Return the message."""
        text = "".join(self._text)
        message: JsonObject = {"role": "assistant", "content": text or None}
        if self._reasoning_key is not None and self._reasoning:
            message[self._reasoning_key] = "\n".join(self._reasoning)
        if self._refusals:
            message["refusal"] = "".join(self._refusals)
        if self._calls:
            message["tool_calls"] = self._calls
        return {**message, **self._extra}

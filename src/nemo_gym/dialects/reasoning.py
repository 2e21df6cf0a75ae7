"""The reasoning text of a finished answer, in the three dialects. Source: capture contract 4.5."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from nemo_gym.dialects.names import Dialect, dialect_of
from nemo_gym.records.codec import JsonObject, JsonValue

_LEADING_THINK = re.compile(r"\s*<think>(.*?)</think>", re.DOTALL)


def reasoning_of(response: object, dialect: Dialect | None) -> str | None:
    """Return all reasoning text joined with newlines, or None when there is none.

    An unknown dialect is read from the answer's shape.
    """
    if not isinstance(response, dict):
        return None
    spoken = dialect or dialect_of(response)
    found: Iterable[str]
    if spoken == "responses":
        found = _responses_reasoning(response)
    elif spoken == "chat":
        found = _chat_reasoning(response)
    elif spoken == "messages":
        found = _messages_reasoning(response)
    else:
        return None
    return "\n".join(filter(None, found)) or None


def _objects(value: JsonValue) -> Sequence[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()


def _texts(value: JsonValue, key: str = "text") -> list[str]:
    return [part[key] for part in _objects(value) if isinstance(part.get(key), str) and part[key]]


def _responses_reasoning(response: JsonObject) -> list[str]:
    output = response.get("output")
    found: list[str] = []
    for item in output if isinstance(output, list) else ():
        if isinstance(item, dict) and item.get("type") == "reasoning":
            found += _texts(item.get("summary")) or _texts(
                [part for part in _objects(item.get("content")) if part.get("type") in ("reasoning_text", "text")]
            )
    return found


def _chat_reasoning(response: JsonObject) -> Iterator[str]:
    for choice in _objects(response.get("choices")):
        message = choice.get("message")
        if isinstance(message, dict):
            yield from _of_chat_message(message)


def _of_chat_message(message: JsonObject) -> list[str]:
    """Return the reasoning of one message from the first place that has any: the places repeat one another."""
    for key in ("reasoning_content", "reasoning"):
        value = message.get(key)
        if isinstance(value, str) and value:
            return [value]
    details = [
        text
        for entry in _objects(message.get("reasoning_details"))
        for text in (entry.get("text"), entry.get("summary"))
        if isinstance(text, str) and text
    ]
    if details:
        return details
    content = message.get("content")
    if isinstance(content, str):
        block = _LEADING_THINK.match(content)
        return [block[1].strip()] if block else []
    found: list[str] = []
    for part in _objects(content):
        if part.get("type") in ("thinking", "reasoning"):
            inner = part.get(part["type"], part.get("text"))
            found.extend([inner] if isinstance(inner, str) else ["".join(_texts(inner))])
    return found


def _messages_reasoning(response: JsonObject) -> Iterator[str]:
    for block in _objects(response.get("content")):
        if block.get("type") == "thinking" and isinstance(block.get("thinking"), str):
            yield block["thinking"]

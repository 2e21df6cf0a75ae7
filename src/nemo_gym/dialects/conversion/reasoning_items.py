"""Reasoning items of the canonical form, and how the other dialects' forms map onto them."""

from __future__ import annotations

import re
from typing import Any

from nemo_gym.dialects.conversion.shapes import as_text, objects
from nemo_gym.records.codec import JsonObject

REDACTED = "redacted_thinking:"
"""Marks an `encrypted_content` that holds redacted thinking, not the signature of a text."""

_CLOSED_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)


def reasoning_item(item_id: str, texts: list[str], encrypted: str | None = None) -> JsonObject:
    """Return a reasoning item with one summary part per text."""
    item: JsonObject = {
        "id": item_id,
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text} for text in texts],
    }
    if encrypted is not None:
        item["encrypted_content"] = encrypted
    return item


def reasoning_texts(item: JsonObject) -> list[str]:
    """Return the texts of a reasoning item: its summary, or its raw text when there is no summary."""
    parts = objects(item.get("summary")) or objects(item.get("content"))
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]


def thinking_item(block: JsonObject, item_id: str) -> JsonObject:
    """Return the reasoning item of a `thinking` or `redacted_thinking` block; the signature stays, even when empty."""
    if block.get("type") == "redacted_thinking":
        return reasoning_item(item_id, [], REDACTED + str(as_text(block.get("data"))))
    signature = block.get("signature")
    return reasoning_item(
        item_id, [str(as_text(block.get("thinking")))], signature if isinstance(signature, str) else None
    )


def thinking_blocks(item: JsonObject) -> list[JsonObject]:
    """Return the blocks of a reasoning item: one per text, or one without text that carries the encrypted content."""
    encrypted = item.get("encrypted_content")
    texts = reasoning_texts(item)
    if isinstance(encrypted, str) and encrypted.startswith(REDACTED) and not texts:
        return [{"type": "redacted_thinking", "data": encrypted[len(REDACTED) :]}]
    signature = encrypted if isinstance(encrypted, str) else ""
    if not texts and signature:
        texts = [""]
    return [{"type": "thinking", "thinking": text, "signature": signature} for text in texts]


def cut_think_tags(content: str) -> tuple[list[str], str]:
    """Return the texts of the closed `<think>` blocks, and the rest unchanged. A lone tag stays text."""
    if "</think>" not in content:
        return [], content
    return _CLOSED_THINK.findall(content), _CLOSED_THINK.sub("", content)


def think_tags(texts: list[str]) -> str:
    """Return the texts as `<think>` blocks."""
    return "".join(f"<think>{text}</think>" for text in texts)


def text_of(value: Any) -> str:
    """Return reasoning text that is a string, or a list of strings and text parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(text_of(part.get("text") if isinstance(part, dict) else part) for part in value)
    return ""

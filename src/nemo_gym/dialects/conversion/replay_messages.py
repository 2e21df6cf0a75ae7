"""A finished Messages answer as events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nemo_gym.dialects.conversion.envelope import is_error
from nemo_gym.dialects.conversion.replay_frames import named_event
from nemo_gym.dialects.conversion.shapes import as_object, objects
from nemo_gym.records.codec import JsonObject, encode

_STARTS_THE_MESSAGE = ("id", "type", "role", "model", "container")
_ENDS_THE_MESSAGE = ("content", "usage", "context_management")


def messages_events(message: JsonObject) -> Iterator[bytes]:
    """Yield message_start, a ping, each block's start, deltas and stop, message_delta, message_stop.

    The start knows no stop reason and no output yet; both usage objects carry the cache counts.
    """
    if is_error("messages", message):
        yield named_event({**message, "type": "error"})
        return
    usage = as_object(message.get("usage"))
    start = {key: message[key] for key in _STARTS_THE_MESSAGE if key in message}
    first_usage = {**usage, "output_tokens": 0}
    first_usage.pop("output_tokens_details", None)
    start |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": first_usage}
    yield named_event({"type": "message_start", "message": start})
    yield named_event({"type": "ping"})
    for index, block in enumerate(objects(message.get("content"))):
        yield from _block_events(index, block)
    ended = (*_STARTS_THE_MESSAGE, *_ENDS_THE_MESSAGE)
    delta = {
        "stop_reason": message.get("stop_reason"),
        "stop_sequence": message.get("stop_sequence"),
        **{key: value for key, value in message.items() if key not in ended},
    }
    last: JsonObject = {"type": "message_delta", "delta": delta, "usage": usage}
    if message.get("context_management") is not None:
        last["context_management"] = message["context_management"]
    yield named_event(last)
    yield named_event({"type": "message_stop"})


def _block_events(index: int, block: JsonObject) -> Iterator[bytes]:
    shell, deltas = _shell_and_deltas(block)
    yield named_event({"type": "content_block_start", "index": index, "content_block": shell})
    for delta in deltas:
        yield named_event({"type": "content_block_delta", "index": index, "delta": delta})
    yield named_event({"type": "content_block_stop", "index": index})


def _shell_and_deltas(block: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    """Return the empty block, and what fills it. Kinds that have no deltas arrive whole in the start."""
    kind = block.get("type")
    deltas: list[JsonObject] = []
    if kind == "text":
        shell: JsonObject = {**block, "text": ""}
        if block.get("citations"):
            shell["citations"] = []
        _append(deltas, "text_delta", "text", block.get("text"))
        deltas.extend({"type": "citations_delta", "citation": citation} for citation in objects(block.get("citations")))
        return shell, deltas
    if kind == "thinking":
        _append(deltas, "thinking_delta", "thinking", block.get("thinking"))
        _append(deltas, "signature_delta", "signature", block.get("signature"))
        return {**block, "thinking": "", "signature": ""}, deltas
    if kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
        _append(deltas, "input_json_delta", "partial_json", encode(as_object(block.get("input"))).decode())
        return {**block, "input": {}}, deltas
    return block, deltas


def _append(deltas: list[JsonObject], kind: str, key: str, value: Any) -> None:
    if value:
        deltas.append({"type": kind, key: value})

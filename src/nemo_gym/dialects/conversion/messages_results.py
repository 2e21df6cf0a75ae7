"""Answers between Messages and Responses."""

from __future__ import annotations

from typing import Any

from nemo_gym.dialects.conversion.arguments import arguments_object, arguments_text
from nemo_gym.dialects.conversion.citations import annotations_from_citations, citations_from_annotations
from nemo_gym.dialects.conversion.envelope import (
    error_of_failed,
    error_said_in,
    failed_response,
    is_error,
    is_failed,
    message_item,
    response_envelope,
)
from nemo_gym.dialects.conversion.mint import SYSTEM_MINT, Mint
from nemo_gym.dialects.conversion.namespaces import custom_tool_names, flatten_call, restore_namespaces
from nemo_gym.dialects.conversion.parts import output_text
from nemo_gym.dialects.conversion.reasoning_items import thinking_blocks, thinking_item
from nemo_gym.dialects.conversion.refusal import Notes
from nemo_gym.dialects.conversion.shapes import as_object, as_text, objects
from nemo_gym.dialects.conversion.usages import messages_usage, usage_from_messages
from nemo_gym.records.codec import JsonObject

_FINISH_OF_STOP = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_OWN_STOP_REASONS = ("stop_sequence", "pause_turn", "model_context_window_exceeded")
"""Stop reasons that Responses has no word for; they travel in `native_finish_reason`."""


def responses_to_messages_response(
    response: JsonObject, *, requested_model: str | None, mint: Mint = SYSTEM_MINT
) -> tuple[JsonObject, Notes]:
    """Return the Messages answer of a Response, and what was lost.

    A failed Response becomes Messages' error object (`type` is `error`). `requested_model` is the name that the client
    used; None takes the Response's.
    """
    notes: Notes = []
    if is_failed(response):
        return error_said_in("messages", error_of_failed(response)), notes
    content: list[JsonObject] = []
    for index, item in enumerate(objects(response.get("output"))):
        blocks = _blocks_of(flatten_call(item), notes)
        if blocks is None:
            notes.append(f"output[{index}] of type `{item.get('type')}` dropped")
        else:
            content.extend(blocks)
    return {
        "id": response.get("id") or mint.new_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": requested_model or as_text(response.get("model")),
        "content": content,
        "stop_reason": _stop_reason(response, content),
        "stop_sequence": response.get("stop_sequence"),
        "usage": messages_usage(response.get("usage"), notes),
    }, notes


def _blocks_of(item: JsonObject, notes: Notes) -> list[JsonObject] | None:
    kind = item.get("type")
    if kind == "message":
        return _text_blocks(item.get("content"), notes)
    if kind == "reasoning":
        return thinking_blocks(item)
    if kind == "function_call":
        return [_tool_use(item, arguments_object(item.get("arguments")))]
    if kind == "custom_tool_call":
        return [_tool_use(item, {"input": as_text(item.get("input"))})]
    return None


def _tool_use(item: JsonObject, given: JsonObject) -> JsonObject:
    call_id = item.get("call_id") or item.get("id")
    return {"type": "tool_use", "id": call_id, "name": item.get("name"), "input": given}


def _text_blocks(content: Any, notes: Notes) -> list[JsonObject]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    blocks: list[JsonObject] = []
    for part in objects(content):
        if part.get("type") == "refusal":
            blocks.append({"type": "text", "text": as_text(part.get("refusal"))})
            continue
        text = as_text(part.get("text"))
        block: JsonObject = {"type": "text", "text": text}
        citations = citations_from_annotations(part.get("annotations"), text, notes)
        if citations:
            block["citations"] = citations
        if part.get("logprobs"):
            notes.append("log probabilities dropped")
        blocks.append(block)
    return blocks


def _stop_reason(response: JsonObject, content: list[JsonObject]) -> str:
    if response.get("native_finish_reason") in _OWN_STOP_REASONS:
        return str(response["native_finish_reason"])
    reason = as_object(response.get("incomplete_details")).get("reason")
    if reason == "max_output_tokens":
        return "max_tokens"
    if reason == "content_filter":
        return "refusal"
    return "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"


def messages_response_to_responses(
    message: JsonObject, *, request: JsonObject, mint: Mint = SYSTEM_MINT
) -> tuple[JsonObject, Notes]:
    """Return the Response of a Messages answer, and what was lost.

    `request` is the Responses request that was answered (or {}): its settings are echoed, and its custom tools and
    namespaces are recognised in the calls. An error object becomes a failed Response.
    """
    notes: Notes = []
    model = message.get("model")
    if is_error("messages", message):
        return failed_response(request, message.get("error"), mint=mint, model=model), notes
    stop = message.get("stop_reason")
    finish = _FINISH_OF_STOP.get(str(stop), "stop")
    output = _OutputWriter(request, finish, mint, notes).items(message.get("content"))
    response = response_envelope(
        request,
        output,
        mint=mint,
        response_id=message.get("id"),
        created_at=None,
        model=model,
        finish=finish,
        usage=usage_from_messages(message.get("usage"), notes),
    )
    if stop is not None:
        response["native_finish_reason"] = stop
    if message.get("stop_sequence") is not None:
        response["stop_sequence"] = message["stop_sequence"]
    return restore_namespaces(response, request=request), notes


class _OutputWriter:
    """Builds output items: consecutive texts share a message item."""

    def __init__(self, request: JsonObject, finish: str, mint: Mint, notes: Notes) -> None:
        self._custom, self._finish, self._mint, self._notes = custom_tool_names(request), finish, mint, notes
        self._items: list[JsonObject] = []

    def items(self, content: Any) -> list[JsonObject]:
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        for index, block in enumerate(objects(content)):
            self._add(block, index)
        if not self._items:
            self._text({"type": "text", "text": ""})
        return self._items

    def _add(self, block: JsonObject, index: int) -> None:
        kind = block.get("type")
        if kind == "text":
            self._text(block)
        elif kind in ("thinking", "redacted_thinking"):
            self._items.append(thinking_item(block, self._mint.new_id("rs")))
        elif kind == "tool_use":
            self._items.append(self._call(block))
        else:
            self._notes.append(f"content[{index}] of type `{kind}` dropped")

    def _text(self, block: JsonObject) -> None:
        text = as_text(block.get("text"))
        part = output_text(text, annotations_from_citations(block.get("citations"), text))
        if self._items and self._items[-1]["type"] == "message":
            self._items[-1]["content"].append(part)
        else:
            self._items.append(message_item(self._mint.new_id("msg"), [part], finish=self._finish))

    def _call(self, block: JsonObject) -> JsonObject:
        call_id, given = block.get("id"), block.get("input")
        call: JsonObject = {"id": call_id, "call_id": call_id, "name": block.get("name"), "status": "completed"}
        if as_text(block.get("name")) in self._custom:
            text = given.get("input") if isinstance(given, dict) else None
            return {
                "type": "custom_tool_call",
                **call,
                "input": text if isinstance(text, str) else arguments_text(given),
            }
        return {"type": "function_call", **call, "arguments": arguments_text(given)}

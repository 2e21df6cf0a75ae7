"""A finished Response as events, numbered from 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nemo_gym.dialects.conversion.replay_frames import named_event
from nemo_gym.dialects.conversion.shapes import as_list, as_text, objects
from nemo_gym.records.codec import JsonObject

_TERMINALS = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.cancelled",
}
_ARGUMENT_KEYS = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "mcp_call": ("arguments", "response.mcp_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
    "code_interpreter_call": ("code", "response.code_interpreter_call_code"),
}

Events = Iterator[JsonObject]


def responses_events(response: JsonObject) -> Iterator[bytes]:
    """Yield created, in_progress, each item's added, parts, deltas and done, and the terminal event by status.

    Every event carries its `type` and `sequence_number`; lifecycle events nest the object under `response`. An error
    object without a Response becomes an `error` event.
    """
    for number, event in enumerate(_events(response)):
        yield named_event({**event, "sequence_number": number})


def _events(response: JsonObject) -> Events:
    if response.get("object") != "response" and response.get("error") and "output" not in response:
        error = response["error"] if isinstance(response["error"], dict) else {"message": str(response["error"])}
        fields = {key: error.get(key) for key in ("code", "message", "param")}
        yield {"type": "error", **fields}
        return
    begun = {
        **response,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "error": None,
        "incomplete_details": None,
    }
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(objects(response.get("output"))):
        yield from _item_events(item, index)
    terminal = _TERMINALS.get(str(response.get("status") or "completed"), "response.incomplete")
    yield {"type": terminal, "response": response}


def _item_events(item: JsonObject, index: int) -> Events:
    place = {"item_id": item.get("id") or item.get("call_id") or f"item_{index}", "output_index": index}
    kind = str(item.get("type"))
    shell = dict(item)
    inner: Events = iter(())
    if "status" in item:
        shell["status"] = "in_progress"
    if kind == "message" and isinstance(item.get("content"), list):
        shell["content"], inner = [], _content_events(objects(item["content"]), place)
    elif kind == "reasoning":
        shell["summary"], inner = [], _reasoning_events(item, place)
        if item.get("content"):
            shell["content"] = []
    elif kind in _ARGUMENT_KEYS and isinstance(item.get(_ARGUMENT_KEYS[kind][0]), str):
        key, event = _ARGUMENT_KEYS[kind]
        shell[key], inner = "", _argument_events(item, key, event, place)
    yield {"type": "response.output_item.added", "output_index": index, "item": shell}
    yield from inner
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _argument_events(item: JsonObject, key: str, event: str, place: JsonObject) -> Events:
    if item[key]:
        yield {"type": f"{event}.delta", **place, "delta": item[key]}
    done: JsonObject = {"type": f"{event}.done", **place, key: item[key]}
    if item["type"] == "function_call":
        done["name"] = item.get("name")
    yield done


def _content_events(parts: list[Any], place: JsonObject) -> Events:
    for content_index, part in enumerate(parts):
        at = {**place, "content_index": content_index}
        kind = str(part.get("type"))
        key = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text"}.get(kind)
        if key is None or not isinstance(part.get(key), str):
            yield {"type": "response.content_part.added", **at, "part": part}
            yield {"type": "response.content_part.done", **at, "part": part}
            continue
        empty = {**part, key: ""}
        if kind == "output_text":
            empty["annotations"] = []
            if part.get("logprobs"):
                empty["logprobs"] = []
        yield {"type": "response.content_part.added", **at, "part": empty}
        more = {"logprobs": part.get("logprobs") or []} if kind == "output_text" else {}
        if part[key]:
            yield {"type": f"response.{kind}.delta", **at, "delta": part[key], **more}
        for number, annotation in enumerate(as_list(part.get("annotations"))):
            yield {
                "type": "response.output_text.annotation.added",
                **at,
                "annotation_index": number,
                "annotation": annotation,
            }
        yield {"type": f"response.{kind}.done", **at, key: part[key], **more}
        yield {"type": "response.content_part.done", **at, "part": part}


def _reasoning_events(item: JsonObject, place: JsonObject) -> Events:
    for number, part in enumerate(objects(item.get("summary"))):
        at = {**place, "summary_index": number}
        text = as_text(part.get("text"))
        yield {"type": "response.reasoning_summary_part.added", **at, "part": {**part, "text": ""}}
        if text:
            yield {"type": "response.reasoning_summary_text.delta", **at, "delta": text}
        yield {"type": "response.reasoning_summary_text.done", **at, "text": text}
        yield {"type": "response.reasoning_summary_part.done", **at, "part": part}
    yield from _content_events(objects(item.get("content")), place)

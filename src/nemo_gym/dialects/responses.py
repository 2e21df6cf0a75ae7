"""Responses events to a response object. Source: capture contract 3.4, every row of its table.

Three things are kept: the latest envelope of the lifecycle events, the items by `output_index`, and the envelope of
the terminal event. The terminal envelope wins, but an empty `output` in it does not hide items that were seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from nemo_gym.dialects.accumulate import StreamAccumulator, error_object_of
from nemo_gym.dialects.chat import add_audio
from nemo_gym.dialects.errors import error_category_for_error
from nemo_gym.dialects.names import Dialect
from nemo_gym.dialects.responses_items import OutputItem, set_or_append
from nemo_gym.records import codec
from nemo_gym.records.codec import JsonObject, JsonValue

_STARTING = frozenset({"created", "queued", "in_progress"})
_TERMINAL = frozenset({"completed", "incomplete", "failed", "cancelled", "done"})
_ITEM_STATUSES = frozenset({"in_progress", "searching", "generating", "interpreting", "completed", "failed"})

# Event family -> (key of the item that it fills, type of the item when its start never came).
_ITEM_TEXTS: dict[str, tuple[str, str]] = {
    "function_call_arguments": ("arguments", "function_call"),
    "mcp_call_arguments": ("arguments", "mcp_call"),
    "custom_tool_call_input": ("input", "custom_tool_call"),
    "code_interpreter_call_code": ("code", "code_interpreter_call"),
}
_TEXT_FAMILIES = (
    *_ITEM_TEXTS,
    "output_text",
    "refusal",
    "reasoning_summary_text",
    "reasoning_summary",
    "reasoning_text",
    "reasoning",
)
_PART_FAMILIES = ("content_part", "reasoning_part", "reasoning_summary_part")
# Event family -> its known actions; families that are not here look for themselves.
_ACTIONS: dict[str, frozenset[str]] = {
    **dict.fromkeys(_TEXT_FAMILIES, frozenset({"delta", "done"})),
    **dict.fromkeys(_PART_FAMILIES, frozenset({"added", "done"})),
}
_STATUS_FAMILIES = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "image_generation_call",
        "code_interpreter_call",
        "mcp_call",
        "mcp_list_tools",
    }
)


class ResponsesAccumulator(StreamAccumulator):
    """Reassembles a Responses stream."""

    dialect: ClassVar[Dialect] = "responses"

    def __init__(self, *, content_encoding: str | None = None) -> None:
        super().__init__(content_encoding=content_encoding)
        self._base: JsonObject | None = None
        self._envelope: JsonObject | None = None
        self._status: str | None = None  # from a terminal event without an envelope
        self._items: list[tuple[int, OutputItem]] = []  # in order of arrival
        self._by_index: dict[int, OutputItem] = {}
        self._by_id: dict[str, OutputItem] = {}
        self._last: OutputItem | None = None
        self._audio: JsonObject = {}
        self._sequence: int | None = None

    def _on_event(self, kind: str | None, event: JsonObject) -> None:
        if kind is None:
            self._untyped(event)
            return
        sequence = event.get("sequence_number")
        if type(sequence) is int:
            if self._sequence is not None and sequence > self._sequence + 1:
                self._note("sequence_gap")
            self._sequence = sequence
        family, _, action = kind.removeprefix("response.").rpartition(".")
        handler = _HANDLERS.get(family)
        if action not in _ACTIONS.get(family, (action,)):
            self._strange(kind, event)  # an event to come: it must not make an item up
        elif handler is not None:
            handler(self, action, event)
        elif family in _ITEM_TEXTS:
            self._item_text(family, action, event)
        elif family in _STATUS_FAMILIES and action in _ITEM_STATUSES:
            self._item_for(event, family).data["status"] = action
        else:
            self._strange(kind, event)

    def _strange(self, kind: str | None, event: JsonObject) -> None:
        error = error_object_of(event)
        if error is None:
            self._unknown(kind)
        else:
            self._fail(error)

    def _untyped(self, event: JsonObject) -> None:
        """Take an object without a type: an error, or a whole response that some proxies send as one event."""
        if event.get("object") == "response":
            status = event.get("status")
            action = status if isinstance(status, str) and status in _TERMINAL else "in_progress"
            self._lifecycle(action, {"response": event})
        else:
            self._strange(None, event)

    # The whole answer

    def _lifecycle(self, action: str, event: JsonObject) -> None:
        if action not in _STARTING and action not in _TERMINAL:
            self._strange(action, event)
            return
        envelope = event.get("response")
        envelope = envelope if isinstance(envelope, dict) and envelope else None
        if action in _STARTING:
            self._base = envelope or self._base
            return
        if envelope is not None:
            self._envelope, self._status = envelope, None
            if envelope.get("output"):
                self.first_content_seen = True
        else:
            self._status = "completed" if action == "done" else action
        status = None if envelope is None else envelope.get("status")
        by_status = action in ("completed", "done") and isinstance(status, str) and status in _TERMINAL
        self._judge(str(status) if by_status else action, envelope)

    def _judge(self, status: str, envelope: JsonObject | None) -> None:
        if status == "failed":
            error = envelope.get("error") if envelope is not None else None
            category = error_category_for_error(error)
            if category == "upstream_error" and self.terminal == "error" and self.terminal_category is not None:
                category = self.terminal_category  # the `error` event before it said more
            self._end("error", category)
        elif status == "cancelled":
            self._end("error", "cancelled")
        elif status == "incomplete":
            self._end("incomplete", "incomplete")
        else:
            self._end("complete")

    # Items

    def _item_for(self, event: JsonObject, kind: str) -> OutputItem:
        """Return the item that an event speaks of, made as an empty one of type `kind` when it never started."""
        index, item_id = event.get("output_index"), event.get("item_id")
        item_id = item_id if isinstance(item_id, str) and item_id else None
        by_id = self._by_id.get(item_id) if item_id else None
        if type(index) is int:
            item = self._by_index.get(index)
            if item is not None and by_id is not None and item.data.get("id") != item_id:
                item = by_id  # an index used twice: the id says which
        else:
            item = by_id if item_id else self._last
        if item is None:
            self._note("item_start_missing")
            data: JsonObject = {"type": kind}
            if item_id:
                data["id"] = item_id
            if kind == "message":
                data["role"] = "assistant"
            item = self._put(index, data)
        self._last = item
        return item

    def _put(self, index: JsonValue, data: JsonObject, *, starting: bool = False) -> OutputItem:
        item_id = data.get("id")
        item_id = item_id if isinstance(item_id, str) and item_id else None
        by_id = self._by_id.get(item_id) if item_id else None
        if type(index) is int:
            item = self._by_index.get(index)
            known_id = item.data.get("id") if item is not None else None
            if known_id and item_id and known_id != item_id:
                if by_id is not None:
                    item = by_id
                elif starting:  # servers that give every item the same index; others only change the id at the end
                    self._note("index_reused")
                    item = None
        else:
            item = by_id
            index = max(self._by_index, default=-1) + 1
        if item is None:
            item = OutputItem(data)
            self._items.append((index, item))
            self._by_index[index] = item
        else:
            item.replace(data)
        if item_id:
            self._by_id[item_id] = item
        self._last = item
        return item

    def _output_item(self, action: str, event: JsonObject) -> None:
        data = event.get("item")
        if action not in ("added", "done") or not isinstance(data, dict):
            self._note("event_shape")
            return
        self._put(event.get("output_index"), data, starting=action == "added")
        if action == "done" or data.get("content") or data.get("arguments") or data.get("name"):
            self.first_content_seen = True

    def _item_text(self, family: str, action: str, event: JsonObject) -> None:
        key, kind = _ITEM_TEXTS[family]
        data = self._item_for(event, kind).data
        delta = event.get("delta")
        if delta is not None and not isinstance(delta, str):
            delta = codec.encode(delta).decode()
        whole = event.get(key) if action == "done" else None
        if whole is not None and not isinstance(whole, str):
            whole = codec.encode(whole).decode()
        if set_or_append(self._assembly, data, key, delta=delta if action == "delta" else None, whole=whole):
            self.first_content_seen = True
            if action == "delta":
                self._added_plainly(str(delta), data, key)
        if action == "done" and isinstance(event.get("name"), str) and event["name"]:
            data["name"] = event["name"]

    # Parts of an item

    def _content_part(self, action: str, event: JsonObject) -> None:
        self._set_part("content", "content_index", action, event)

    def _summary_part(self, action: str, event: JsonObject) -> None:
        self._set_part("summary", "summary_index", action, event)

    def _set_part(self, field: str, index_key: str, action: str, event: JsonObject) -> None:
        part = event.get("part")
        if not isinstance(part, dict):
            self._note("event_shape")
            return
        kind = "reasoning" if field == "summary" or part.get("type") == "reasoning_text" else "message"
        item, index = self._item_for(event, kind), _index(event, index_key)
        if part.get("type") == "reasoning_text" and action == "done":
            index = item.running_index(field, index)
        item.set_part(field, index, part, finished=action == "done")

    def _output_text(self, action: str, event: JsonObject) -> None:
        part = self._item_for(event, "message").part("content", _index(event, "content_index"), "output_text")
        self._part_text(part, "text", action, event)
        logprobs = event.get("logprobs")
        if isinstance(logprobs, list) and logprobs:
            self._plain_delta = None
            known = part.get("logprobs")
            if action == "delta" and isinstance(known, list):
                known.extend(logprobs)
            else:
                part["logprobs"] = logprobs

    def _annotation(self, action: str, event: JsonObject) -> None:
        annotation = event.get("annotation")
        if action != "added" or annotation is None:
            self._note("event_shape")
            return
        item = self._item_for(event, "message")
        part = item.part("content", _index(event, "content_index"), "output_text")
        item.annotate(part, annotation, event.get("annotation_index"))

    def _refusal(self, action: str, event: JsonObject) -> None:
        part = self._item_for(event, "message").part("content", _index(event, "content_index"), "refusal")
        self._part_text(part, "refusal", action, event)

    def _summary_text(self, action: str, event: JsonObject) -> None:
        part = self._item_for(event, "reasoning").part("summary", _index(event, "summary_index"), "summary_text")
        self._part_text(part, "text", action, event)

    def _reasoning_text(self, action: str, event: JsonObject) -> None:
        item = self._item_for(event, "reasoning")
        index = item.running_index("content", _index(event, "content_index"))
        self._part_text(item.part("content", index, "reasoning_text"), "text", action, event)
        if action == "done":
            item.finish_part("content", index)

    def _part_text(self, part: JsonObject, key: str, action: str, event: JsonObject) -> None:
        delta = event.get("delta") if action == "delta" else None
        if isinstance(delta, dict):
            delta = delta.get("text")
        whole = event.get(key) if action == "done" else None
        if set_or_append(self._assembly, part, key, delta=delta, whole=whole if isinstance(whole, str) else None):
            self.first_content_seen = True
            if action == "delta":
                self._added_plainly(str(delta), part, key)

    # The rest

    def _image(self, action: str, event: JsonObject) -> None:
        data = self._item_for(event, "image_generation_call").data
        if action == "partial_image":
            size = event.get("partial_image_b64")
            # Previews are large and the finished image follows: what stays is that there was one, and how big.
            data["partial_image_b64"] = f"<{len(size) if isinstance(size, str) else 0} base64 characters>"
            self.first_content_seen = True
        elif action in _ITEM_STATUSES:
            data["status"] = action
        else:
            self._unknown(action)

    def _add_audio(self, action: str, event: JsonObject, key: str) -> None:
        delta = event.get("delta")
        if action == "delta" and isinstance(delta, str):
            target = self._audio
            if type(event.get("output_index")) is int or event.get("item_id"):
                target = self._item_for(event, "message").data.setdefault("audio", {})
            add_audio(target, {key: delta}, self._assembly)
            self.first_content_seen = True

    def _audio_data(self, action: str, event: JsonObject) -> None:
        self._add_audio(action, event, "data")

    def _audio_transcript(self, action: str, event: JsonObject) -> None:
        self._add_audio(action, event, "transcript")

    def _build(self) -> JsonObject | None:
        items = [item.build() for _, item in sorted(self._items, key=lambda entry: entry[0])]
        source = self._envelope or self._base
        if source is None:
            if not items and not self._audio and self._status is None:
                return None
            source = {"object": "response", "output": []}
        response = dict(source)
        if items and not response.get("output"):
            response["output"] = items
        if self._status is not None:
            response["status"] = self._status
        if self._audio:
            response.setdefault("audio", self._audio)
        return response


def _index(event: JsonObject, key: str) -> int:
    value = event.get(key)
    return value if type(value) is int else 0


_HANDLERS: dict[str, Callable[[ResponsesAccumulator, str, JsonObject], None]] = {
    "": ResponsesAccumulator._lifecycle,
    "output_item": ResponsesAccumulator._output_item,
    "content_part": ResponsesAccumulator._content_part,
    "reasoning_part": ResponsesAccumulator._content_part,
    "output_text": ResponsesAccumulator._output_text,
    "output_text.annotation": ResponsesAccumulator._annotation,
    "refusal": ResponsesAccumulator._refusal,
    "reasoning_summary_part": ResponsesAccumulator._summary_part,
    "reasoning_summary_text": ResponsesAccumulator._summary_text,
    "reasoning_summary": ResponsesAccumulator._summary_text,
    "reasoning_text": ResponsesAccumulator._reasoning_text,
    "reasoning": ResponsesAccumulator._reasoning_text,
    "image_generation_call": ResponsesAccumulator._image,
    "audio": ResponsesAccumulator._audio_data,
    "audio.transcript": ResponsesAccumulator._audio_transcript,
}

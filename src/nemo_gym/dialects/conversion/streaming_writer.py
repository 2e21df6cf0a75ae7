"""What the writers of Chat and Messages streams share: the canonical events, completed and put in order.

A backend that speaks Responses may leave events out: some send only finished items, some no parts. What an item's end
or the answer's end shows beyond what was streamed is given to the writer then, so that it never misses a piece.
"""

from __future__ import annotations

from typing import Any

from nemo_gym.dialects.conversion.envelope import error_of_failed, is_failed
from nemo_gym.dialects.conversion.mint import Mint
from nemo_gym.dialects.conversion.namespaces import flatten_call
from nemo_gym.dialects.conversion.refusal import Notes
from nemo_gym.dialects.conversion.shapes import as_list, as_object, as_text, objects
from nemo_gym.records.codec import JsonObject

Part = tuple[str, int]
"""A text of an item: `summary`, `content` or `call`, and its index."""

_DELTAS = {
    "response.output_text.delta": ("content", "content_index"),
    "response.refusal.delta": ("content", "content_index"),
    "response.reasoning_text.delta": ("content", "content_index"),
    "response.reasoning_summary_text.delta": ("summary", "summary_index"),
    "response.function_call_arguments.delta": ("call", ""),
    "response.custom_tool_call_input.delta": ("call", ""),
}
_CALL_KEYS = {"function_call": "arguments", "custom_tool_call": "input"}
_TERMINALS = ("response.completed", "response.incomplete", "response.done")
_FAILURES = ("response.failed", "response.cancelled", "error")


class GrowingItem:
    """One output item as far as it was streamed; `sent` holds each part's characters and log probabilities."""

    __slots__ = ("ended", "item", "parts_ended", "place", "sent", "sent_logprobs")

    def __init__(self, place: int, item: JsonObject) -> None:
        self.place = place
        self.item = item
        self.sent: dict[Part, int] = {}
        self.sent_logprobs: dict[Part, int] = {}
        self.parts_ended: set[Part] = set()
        self.ended = False

    @property
    def kind(self) -> str:
        """The item's type."""
        return as_text(self.item.get("type"))


class CanonicalWriter:
    """Takes Responses events and calls the `_...` methods of a dialect; what they send is collected in `out`."""

    def __init__(self, *, requested_model: str | None, mint: Mint, notes: Notes) -> None:
        self.out: list[bytes] = []
        self.usage: JsonObject | None = None
        self._requested_model, self._mint, self._notes = requested_model, mint, notes
        self._items: dict[int, GrowingItem] = {}
        self._began = self._ended = False

    def take(self, event: JsonObject) -> None:
        """Take one event; what comes after the end is ignored."""
        kind = event.get("type")
        if self._ended:
            return
        if kind in _DELTAS:
            self._delta(*_DELTAS[kind], event)
        elif kind == "response.output_item.added":
            self._begin_item(event.get("output_index"), as_object(event.get("item")))
        elif kind == "response.output_item.done":
            self._end_item(event.get("output_index"), as_object(event.get("item")))
        elif kind == "response.content_part.done":
            item = self._items.get(_index(event.get("output_index")))
            if item is not None and not item.ended and item.kind == "message":
                self._finish_part(item, ("content", _index(event.get("content_index"))), as_object(event.get("part")))
        elif kind in ("response.created", "response.in_progress", "response.queued"):
            self._begin_once(as_object(event.get("response")))
        elif kind in _FAILURES:
            self._ended = True
            response = as_object(event.get("response"))
            error = as_object(response.get("error") or event.get("error")) or {
                key: event[key] for key in ("code", "message") if event.get(key) is not None
            }
            self._fail({"message": f"the model call ended as `{response.get('status') or kind}`", **error})

    def conclude(self, response: JsonObject) -> None:
        """Take the finished Response: what was not streamed is sent, then the end."""
        if self._ended:
            return
        self._begin_once(response)
        for index, item in enumerate(objects(response.get("output"))):
            known = self._items.get(index)
            if known is not None and known.ended and _annotations(item) != _annotations(known.item):
                self._notes.append(f"output[{index}]: annotations that came after their text dropped")
            self._end_item(index, item)
        self._ended = True
        if is_failed(response):  # whatever its status says, an answer with an error object is none
            self._fail(error_of_failed(response))
            return
        usage = response.get("usage")
        self.usage = usage if isinstance(usage, dict) else None
        self._end(response)

    # What a dialect says

    def _begin(self, response: JsonObject) -> None:
        raise NotImplementedError

    def _item(self, item: GrowingItem) -> None:
        raise NotImplementedError

    def _piece(self, item: GrowingItem, part: Part, kind: str, text: str, logprobs: list[Any]) -> None:
        raise NotImplementedError

    def _part_end(self, item: GrowingItem, part: Part, content: JsonObject) -> None:
        raise NotImplementedError

    def _item_end(self, item: GrowingItem) -> None:
        raise NotImplementedError

    def _end(self, response: JsonObject) -> None:
        raise NotImplementedError

    def _fail(self, error: JsonObject) -> None:
        raise NotImplementedError

    # Order

    def _begin_once(self, response: JsonObject) -> None:
        if not self._began:
            self._began = True
            self._begin(response)

    def _begin_item(self, index: object, item: JsonObject) -> GrowingItem:
        self._begin_once({})
        place = _index(index)
        known = self._items.get(place)
        if known is None:
            known = self._items[place] = GrowingItem(place, flatten_call(item))
            self._item(known)
        return known

    def _delta(self, group: str, index_key: str, event: JsonObject) -> None:
        kind = str(event["type"]).removeprefix("response.").removesuffix(".delta")
        item = self._items.get(_index(event.get("output_index")))
        if item is None:
            item = self._begin_item(event.get("output_index"), _bare_item(kind, event))
        if item.ended or (item.kind == "reasoning" and any(sent != group for sent, _ in item.sent)):
            return  # of thoughts told twice, in a summary and in full, one telling is enough
        text = as_text(event.get("delta"))
        part = (group, _index(event.get(index_key)) if index_key else 0)
        logprobs = as_list(event.get("logprobs"))
        self._send(item, part, kind, text, logprobs)

    def _send(self, item: GrowingItem, part: Part, kind: str, text: str, logprobs: list[Any]) -> None:
        self._piece(item, part, kind, text, logprobs)
        item.sent[part] = item.sent.get(part, 0) + len(text)
        item.sent_logprobs[part] = item.sent_logprobs.get(part, 0) + len(logprobs)

    def _end_item(self, index: object, whole: JsonObject) -> None:
        item = self._begin_item(index, whole)
        if item.ended:
            return
        item.item = flatten_call(whole)
        key = _CALL_KEYS.get(item.kind)
        if key is not None:
            self._rest(item, ("call", 0), "call", _text(item.item.get(key)), [])
        elif item.kind == "reasoning":
            summary, content = objects(item.item.get("summary")), objects(item.item.get("content"))
            group, parts = ("summary", summary) if summary else ("content", content)
            if not any(part[0] != group for part in item.sent):  # one telling of the thoughts is enough
                for number, part in enumerate(parts):
                    self._rest(item, (group, number), "reasoning_text", as_text(part.get("text")), [])
        elif item.kind == "message":
            given = item.item.get("content")
            for number, part in enumerate(
                objects([{"type": "output_text", "text": given}] if isinstance(given, str) else given)
            ):
                self._finish_part(item, ("content", number), part)
        item.ended = True
        self._item_end(item)

    def _finish_part(self, item: GrowingItem, part: Part, content: JsonObject) -> None:
        if part in item.parts_ended:
            return
        item.parts_ended.add(part)
        refusal = content.get("type") == "refusal"
        text = as_text(content.get("refusal" if refusal else "text"))
        self._rest(item, part, "refusal" if refusal else "output_text", text, as_list(content.get("logprobs")))
        self._part_end(item, part, content)

    def _rest(self, item: GrowingItem, part: Part, kind: str, text: str, logprobs: list[Any]) -> None:
        """Send what a part has beyond what was streamed; a part that was never heard of is sent even if empty."""
        rest, more = text[item.sent.get(part, 0) :], logprobs[item.sent_logprobs.get(part, 0) :]
        if rest or more or part not in item.sent:
            self._send(item, part, kind, rest, more)


def _bare_item(kind: str, event: JsonObject) -> JsonObject:
    """Return the item that a delta belongs to, for streams that never announced it."""
    if kind.startswith("reasoning"):
        return {"type": "reasoning", "id": event.get("item_id"), "summary": []}
    if kind in ("output_text", "refusal"):
        return {"type": "message", "id": event.get("item_id"), "role": "assistant", "content": []}
    call = "function_call" if kind.startswith("function") else "custom_tool_call"
    return {"type": call, "id": event.get("item_id"), "call_id": event.get("item_id")}


def _annotations(item: JsonObject) -> list[Any]:
    return [part.get("annotations") or [] for part in objects(item.get("content"))]


def _index(value: object) -> int:
    return value if type(value) is int else 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""

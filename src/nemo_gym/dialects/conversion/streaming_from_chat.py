"""Chat chunks to the canonical events, one by one."""

from __future__ import annotations

import sys
from typing import Any

from nemo_gym.dialects.chat import ChatAccumulator
from nemo_gym.dialects.chat_tool_calls import ToolCall
from nemo_gym.dialects.conversion.arguments import free_input
from nemo_gym.dialects.conversion.chat_results import chat_response_to_responses
from nemo_gym.dialects.conversion.citations import annotations_from_chat
from nemo_gym.dialects.conversion.mint import Mint
from nemo_gym.dialects.conversion.namespaces import custom_tool_names, restore_namespaces
from nemo_gym.dialects.conversion.reasoning_items import text_of
from nemo_gym.dialects.conversion.refusal import ConversionError, Notes
from nemo_gym.dialects.conversion.shapes import as_object, objects
from nemo_gym.dialects.conversion.streaming_builder import OutputBuilder, Take
from nemo_gym.dialects.conversion.think_cutter import ThinkCutter
from nemo_gym.records.codec import JsonObject

_REASONING_KEYS = ("reasoning_content", "reasoning")
_CALLS = ("function_call", "custom_tool_call")
_ALL_SENT = sys.maxsize


class ChatReader(ChatAccumulator):
    """Accumulates a chat stream, and tells `take` what each chunk of its first choice means in Responses events.

    The terminal event holds what `chat_response_to_responses` makes of the whole, so that a streamed call and a plain
    one end with the same object.
    """

    def __init__(
        self,
        take: Take,
        *,
        request: JsonObject,
        client_request: JsonObject,
        mint: Mint,
        notes: Notes,
        think_tags: bool | None = None,
    ) -> None:
        super().__init__()
        self._take_event, self._request, self._client_request = take, request, client_request
        self._mint, self._notes, self._think_tags = mint, notes, think_tags
        self._out = OutputBuilder(take, request=request, mint=mint, restore=self._restored)
        self._cutter = None if think_tags is False else ThinkCutter()
        self._custom = custom_tool_names(request) | custom_tool_names(client_request)
        self._reasoning_key: str | None = None
        self._sent_pieces: list[int] = []  # per call that was opened, how many pieces of its arguments were sent
        self._legacy_call = False
        self._closed = False

    def _on_event(self, kind: str | None, event: JsonObject) -> None:
        told = self._told_before_whole(event)
        super()._on_event(kind, event)
        if self._closed or self.terminal == "error":
            return
        for position, choice in enumerate(objects(event.get("choices"))):
            if _is_first(choice, position):
                self._out.begin(
                    response_id=None, model=event.get("model") or None, created_at=event.get("created") or None
                )
                self._see(choice, told)

    def _on_done(self) -> None:
        super()._on_done()
        self.conclude()

    def conclude(self) -> None:
        """Send the terminal event of a whole answer, or of an error; nothing for one that was cut."""
        if self._closed or self.terminal is None:
            return
        self._closed = True
        completion = self.response
        if self.terminal == "error":
            self._out.fail(self.stream_error or {"message": "the model's stream ended in an error"})
        elif completion is None:
            self._out.fail({"message": "the model's stream held no answer"})
        else:
            self._settle_text()
            self._flush_calls(ended=True)
            try:
                final, notes = chat_response_to_responses(
                    completion, request=self._request, think_tags=self._think_tags, mint=self._mint
                )
            except ConversionError as error:
                self._out.fail({"message": str(error)})
                return
            self._notes.extend(notes)
            self._out.end(restore_namespaces(final, request=self._client_request))

    def fail(self, error: JsonObject) -> None:
        """End the answer as failed, for a reason outside of the stream."""
        if not self._closed:
            self._closed = True
            self._out.fail(error)

    def _restored(self, item: JsonObject) -> JsonObject:
        restored: JsonObject = restore_namespaces({"output": [item]}, request=self._client_request)["output"][0]
        return restored

    def _told_before_whole(self, event: JsonObject) -> JsonObject | None:
        """Return the message as it was told so far, when an event brings the whole one in its place."""
        choices = event.get("choices")
        for position, choice in enumerate(choices if isinstance(choices, list) else ()):
            if isinstance(choice, dict) and isinstance(choice.get("message"), dict) and _is_first(choice, position):
                known = self._choices.get(0)
                if known is None or self._closed:
                    return None
                self._flush_calls(ended=True)
                self._assembly.settle()
                told: JsonObject = known.build()["message"]
                return told
        return None

    def _see(self, choice: JsonObject, told: JsonObject | None) -> None:
        whole = choice.get("message")
        delta = as_object(whole) or as_object(choice.get("delta"))
        calls = objects(delta.get("tool_calls"))
        if told is not None:
            delta = self._still_to_tell(delta, told)
        self._see_reasoning(delta)
        content = delta.get("content")
        logprobs = as_object(choice.get("logprobs")).get("content") or None
        if isinstance(content, str) and content:
            self._see_text(content, logprobs)
        elif isinstance(content, list):
            self._see_parts(content, logprobs)
        elif logprobs and self._out.open_kind == "message":
            self._out.text("", logprobs=logprobs)
        if isinstance(delta.get("refusal"), str) and delta["refusal"]:
            self._settle_text()
            self._out.refusal(delta["refusal"])
        if delta.get("annotations"):
            self._out.annotations(annotations_from_chat(delta["annotations"]))
        transcript = as_object(delta.get("audio")).get("transcript")
        if isinstance(transcript, str) and transcript:
            self._see_text(transcript, None)
        if isinstance(delta.get("function_call"), dict):
            self._see_legacy_call(delta["function_call"])
        elif whole is None:
            self._flush_calls(ended=False)
        else:
            self._whole_calls(objects(delta.get("tool_calls")))
            self._sent_pieces = [_ALL_SENT] * len(calls)

    def _still_to_tell(self, message: JsonObject, told: JsonObject) -> JsonObject:
        """Return what a whole message adds to what was told: nobody may run a call twice, or read a text twice."""
        rest = dict(message)
        for key in ("content", "refusal", *_REASONING_KEYS):
            now, before = message.get(key), told.get(key)
            if now == before:
                rest[key] = None
            elif isinstance(now, str) and isinstance(before, str) and now.startswith(before):
                rest[key] = now[len(before) :]
        sent = objects(told.get("tool_calls"))
        last = sent[-1] if sent else None
        rest["tool_calls"] = []
        for call in objects(message.get("tool_calls")):
            twin = next((other for other in sent if _is_same_call(call, other)), None)
            if twin is None:
                rest["tool_calls"].append(call)
                continue
            sent = [other for other in sent if other is not twin]
            now, before = _text_of_call(call), _text_of_call(twin)
            if twin is last and now.startswith(before) and self._out.open_kind in _CALLS:
                self._out.call_text(now[len(before) :])
        return rest

    def _see_reasoning(self, delta: JsonObject) -> None:
        for key in _REASONING_KEYS:
            text = text_of(delta.get(key))
            if text and self._reasoning_key in (None, key):
                self._reasoning_key, self._cutter = key, None if self._think_tags is None else self._cutter
                self._out.reasoning(text)
                return
        if delta.get("reasoning_details") and self._out.open_kind is None and not self._out.items:
            self._out.open_reasoning()

    def _see_parts(self, parts: list[Any], logprobs: list[Any] | None) -> None:
        for part in objects(parts):
            if part.get("type") == "thinking":
                text = text_of(part.get("thinking"))
                if text:
                    self._cutter = None if self._think_tags is None else self._cutter
                    self._out.reasoning(text)
            elif isinstance(part.get("text"), str) and part["text"]:
                self._see_text(part["text"], logprobs)
                logprobs = None

    def _see_text(self, text: str, logprobs: list[Any] | None) -> None:
        if self._cutter is None:
            self._out.text(text, logprobs=logprobs)
            return
        for piece in self._cutter.feed(text):
            if piece.kind == "reasoning":
                self._out.reasoning(piece.text, new_part=True)
            else:
                self._out.text(piece.text, logprobs=logprobs)
                logprobs = None
        if logprobs and self._out.open_kind == "message":
            self._out.text("", logprobs=logprobs)

    def _settle_text(self) -> None:
        for piece in self._cutter.finish() if self._cutter is not None else ():
            self._out.text(piece.text)

    # Calls: one after the other, although a backend may send pieces of several in turn

    def _flush_calls(self, *, ended: bool) -> None:
        choice = self._choices.get(0)
        calls: list[ToolCall] = [] if choice is None else choice.calls.calls
        while True:
            place = len(self._sent_pieces) - 1
            if place >= len(calls):
                return  # told as a whole, and no longer in pieces
            if place >= 0:
                self._send_pieces(calls[place], place, ended=ended)
            waiting = place + 1 < len(calls)
            if not waiting or not (ended or place < 0 or calls[place].arguments.is_complete()):
                return
            following = calls[place + 1]
            if not (ended or following.name):
                return  # a name may come in a later piece than the id
            self._settle_text()
            self._sent_pieces.append(0)
            extra = (
                {"extra_content": following.extras["extra_content"]} if following.extras.get("extra_content") else {}
            )
            kind = "custom_tool_call" if following.custom or following.name in self._custom else "function_call"
            self._out.open_call(kind, call_id=following.id, name=following.name, extra=extra)

    def _send_pieces(self, call: ToolCall, place: int, *, ended: bool) -> None:
        pieces, sent = call.arguments.pieces, self._sent_pieces[place]
        if sent >= len(pieces) or self._out.open_kind not in _CALLS:
            return
        if call.name in self._custom and not call.custom:  # said as a function, so that its text is inside of JSON
            if not sent and (ended or call.arguments.is_complete()):
                self._sent_pieces[place] = len(pieces)
                self._out.call_text(free_input("".join(pieces)))
            return
        self._sent_pieces[place] = len(pieces)
        self._out.call_text("".join(pieces[sent:]))

    def _see_legacy_call(self, call: JsonObject) -> None:
        if not self._legacy_call:
            self._legacy_call = True
            self._settle_text()
            self._out.open_call("function_call", call_id=None, name=call.get("name"))
        if isinstance(call.get("arguments"), str):
            self._out.call_text(call["arguments"])

    def _whole_calls(self, calls: list[JsonObject]) -> None:
        for call in calls:
            custom, function = as_object(call.get("custom")), as_object(call.get("function"))
            kind = "custom_tool_call" if custom else "function_call"
            self._settle_text()
            self._out.open_call(kind, call_id=call.get("id"), name=(custom or function).get("name"))
            text = (custom or function).get("input" if custom else "arguments")
            self._out.call_text(text if isinstance(text, str) else "")


def _is_first(choice: JsonObject, position: int) -> bool:
    index = choice.get("index")
    return (index if type(index) is int else position) == 0


def _is_same_call(one: JsonObject, other: JsonObject) -> bool:
    """Return whether two entries mean one call: by their ids, or by name and text where one has none."""
    if one.get("id") and other.get("id"):
        return bool(one["id"] == other["id"])
    names = [(as_object(entry.get("custom")) or as_object(entry.get("function"))).get("name") for entry in (one, other)]
    return names[0] == names[1] and _text_of_call(one).startswith(_text_of_call(other))


def _text_of_call(entry: JsonObject) -> str:
    custom = as_object(entry.get("custom"))
    text = custom.get("input") if custom else as_object(entry.get("function")).get("arguments")
    return text if isinstance(text, str) else ""

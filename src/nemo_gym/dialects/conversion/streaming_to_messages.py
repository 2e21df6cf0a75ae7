"""Canonical events to Messages events, one by one."""

from __future__ import annotations

from typing import Any

from nemo_gym.dialects.conversion.arguments import RAW
from nemo_gym.dialects.conversion.citations import citations_from_annotations
from nemo_gym.dialects.conversion.envelope import error_said_in
from nemo_gym.dialects.conversion.messages_results import responses_to_messages_response
from nemo_gym.dialects.conversion.reasoning_items import thinking_blocks
from nemo_gym.dialects.conversion.replay_frames import named_event
from nemo_gym.dialects.conversion.shapes import as_text
from nemo_gym.dialects.conversion.streaming_writer import CanonicalWriter, GrowingItem, Part
from nemo_gym.records.codec import JsonObject, encode

_UNKNOWN_YET = {"input_tokens": 0, "output_tokens": 0}
"""The usage of a start: the counts follow in `message_delta`, which clients let replace these."""

_NOT_IN_DELTA = ("id", "type", "role", "model", "content", "usage")


class MessagesWriter(CanonicalWriter):
    """Sends `message_start`, a ping, each block as it grows, `message_delta` with the counts, and `message_stop`.

    The blocks of a reasoning item stay open until its end, because the signature comes last.
    """

    _blocks = 0

    def _begin(self, response: JsonObject) -> None:
        self._of_part: dict[tuple[int, Part], int] = {}
        self._of_call: dict[int, int] = {}
        self._quoted: set[int] = set()  # calls whose text is sent as one JSON string
        message: JsonObject = {
            "id": response.get("id") or self._mint.new_id("msg"),
            "type": "message",
            "role": "assistant",
            "model": self._requested_model or as_text(response.get("model")),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": dict(_UNKNOWN_YET),
        }
        self._event({"type": "message_start", "message": message})
        self._event({"type": "ping"})

    def _item(self, item: GrowingItem) -> None:
        if item.kind not in ("function_call", "custom_tool_call"):
            return
        call_id = item.item.get("call_id") or item.item.get("id")
        block: JsonObject = {"type": "tool_use", "id": call_id, "name": item.item.get("name"), "input": {}}
        self._of_call[item.place] = self._start(block)
        if item.kind == "custom_tool_call":
            self._quote(item.place, "input")

    def _quote(self, place: int, key: str) -> None:
        self._quoted.add(place)
        self._grow(self._of_call[place], {"type": "input_json_delta", "partial_json": f'{{"{key}":"'})

    def _piece(self, item: GrowingItem, part: Part, kind: str, text: str, logprobs: list[Any]) -> None:
        if part[0] == "call":
            index = self._of_call.get(item.place)
            if text and index is not None:
                if not item.sent.get(part) and item.place not in self._quoted and text.lstrip()[:1] not in ("", "{"):
                    self._quote(item.place, RAW)  # an input must be an object, and this will be none
                piece = encode(text).decode()[1:-1] if item.place in self._quoted else text
                self._grow(index, {"type": "input_json_delta", "partial_json": piece})
            return
        block = self._of_part.get((item.place, part))
        is_thought = item.kind == "reasoning"
        if block is None:
            shell: JsonObject = {"type": "text", "text": ""}
            if is_thought:
                shell = {"type": "thinking", "thinking": "", "signature": ""}
            block = self._of_part[item.place, part] = self._start(shell)
        if text:
            delta = {"type": "thinking_delta", "thinking": text} if is_thought else {"type": "text_delta", "text": text}
            self._grow(block, delta)

    def _part_end(self, item: GrowingItem, part: Part, content: JsonObject) -> None:
        block = self._of_part.get((item.place, part))
        if block is None:
            return
        for citation in citations_from_annotations(content.get("annotations"), as_text(content.get("text")), []):
            self._grow(block, {"type": "citations_delta", "citation": citation})
        self._stop(block)

    def _item_end(self, item: GrowingItem) -> None:
        call = self._of_call.get(item.place)
        if call is not None:
            if item.place in self._quoted:
                self._grow(call, {"type": "input_json_delta", "partial_json": '"}'})
            self._stop(call)
        elif item.kind == "reasoning":
            self._end_thoughts(item)

    def _end_thoughts(self, item: GrowingItem) -> None:
        started = [block for (place, _), block in self._of_part.items() if place == item.place]
        finished = thinking_blocks(item.item)
        for number, block in enumerate(finished):
            if number < len(started):
                index = started[number]
            elif block["type"] == "thinking":
                index = self._start({"type": "thinking", "thinking": "", "signature": ""})
            else:
                index = self._start(block)
            if block.get("signature"):
                self._grow(index, {"type": "signature_delta", "signature": block["signature"]})
            self._stop(index)
        for index in started[len(finished) :]:
            self._stop(index)

    def _end(self, response: JsonObject) -> None:
        message, notes = responses_to_messages_response(
            response, requested_model=self._requested_model, mint=self._mint
        )
        self._notes.extend(notes)
        delta = {key: value for key, value in message.items() if key not in _NOT_IN_DELTA}
        self._event({"type": "message_delta", "delta": delta, "usage": message["usage"]})
        self._event({"type": "message_stop"})

    def _fail(self, error: JsonObject) -> None:
        self._event(error_said_in("messages", error))

    def _start(self, block: JsonObject) -> int:
        index, self._blocks = self._blocks, self._blocks + 1
        self._event({"type": "content_block_start", "index": index, "content_block": block})
        return index

    def _grow(self, index: int, delta: JsonObject) -> None:
        self._event({"type": "content_block_delta", "index": index, "delta": delta})

    def _stop(self, index: int) -> None:
        self._event({"type": "content_block_stop", "index": index})

    def _event(self, event: JsonObject) -> None:
        self.out.append(named_event(event))

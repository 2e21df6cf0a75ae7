"""Messages events to the canonical events, one by one."""

from __future__ import annotations

import copy

from nemo_gym.dialects.conversion.arguments import arguments_text, free_input
from nemo_gym.dialects.conversion.citations import annotations_from_citations
from nemo_gym.dialects.conversion.messages_results import messages_response_to_responses
from nemo_gym.dialects.conversion.mint import Mint
from nemo_gym.dialects.conversion.namespaces import custom_tool_names, restore_namespaces
from nemo_gym.dialects.conversion.reasoning_items import thinking_item
from nemo_gym.dialects.conversion.refusal import Notes
from nemo_gym.dialects.conversion.shapes import as_object, as_text, objects
from nemo_gym.dialects.conversion.streaming_builder import OutputBuilder, Take
from nemo_gym.dialects.messages import MessagesAccumulator
from nemo_gym.records.codec import JsonObject

_BLOCK_EVENTS = frozenset({"content_block_start", "content_block_delta", "content_block_stop"})
_NO_BLOCK = object()


class MessagesReader(MessagesAccumulator):
    """Accumulates a Messages stream, and tells `take` what each event means in Responses events.

    The terminal event holds what `messages_response_to_responses` makes of the whole.
    """

    def __init__(
        self, take: Take, *, request: JsonObject, client_request: JsonObject, mint: Mint, notes: Notes
    ) -> None:
        super().__init__()
        self._request, self._client_request, self._mint, self._notes = request, client_request, mint, notes
        self._out = OutputBuilder(take, request=request, mint=mint, restore=self._restored)
        self._custom = custom_tool_names(request) | custom_tool_names(client_request)
        self._kinds: dict[object, str] = {}
        self._open_block: object = _NO_BLOCK
        self._waiting: dict[object, list[tuple[str, JsonObject]]] = {}
        """Events of blocks that began before the open one ended, by block: an answer is told item by item."""
        self._signature: list[str] = []
        self._citations: list[JsonObject] = []
        self._input: list[str] = []
        self._is_custom = False
        self._closed = False

    def _on_event(self, kind: str | None, event: JsonObject) -> None:
        if not self._closed and self.terminal != "error":
            self._see(kind, event)
        super()._on_event(kind, event)
        if kind == "message_stop":
            self.conclude()

    def _on_done(self) -> None:
        super()._on_done()
        self.conclude()

    def conclude(self) -> None:
        """Send the terminal event of a whole answer, or of an error; nothing for one that was cut."""
        if self._closed or self.terminal is None:
            return
        self._closed = True
        self._tell_waiting(all_of_them=True)
        message = self.response
        if self.terminal == "error":
            self._out.fail(self.stream_error or {"message": "the model's stream ended in an error"})
        elif message is None:
            self._out.fail({"message": "the model's stream held no answer"})
        else:
            request = {**self._request, "tools": self._request.get("tools") or self._client_request.get("tools") or []}
            final, notes = messages_response_to_responses(message, request=request, mint=self._mint)
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

    def _see(self, kind: str | None, event: JsonObject) -> None:
        if kind in _BLOCK_EVENTS:
            index = _index_of(event)
            if self._open_block not in (_NO_BLOCK, index):
                # A copy: what the event holds grows from now on.
                self._waiting.setdefault(index, []).append((kind, copy.deepcopy(event)))
                return
            self._see_block(kind, index, event)
            if self._open_block is _NO_BLOCK and self._waiting:
                self._tell_waiting(all_of_them=False)
        elif kind == "message_start":
            message = as_object(event.get("message"))
            self._out.begin(response_id=message.get("id"), model=message.get("model"), created_at=None)
        elif kind in ("message_delta", "message_stop"):
            self._tell_waiting(all_of_them=True)

    def _tell_waiting(self, *, all_of_them: bool) -> None:
        while self._waiting and (all_of_them or self._open_block is _NO_BLOCK):
            index = next(iter(self._waiting))
            for kind, event in self._waiting.pop(index):
                self._see_block(kind, index, event)

    def _see_block(self, kind: str, index: object, event: JsonObject) -> None:
        self._open_block = _NO_BLOCK if kind == "content_block_stop" else index
        if kind == "content_block_delta":
            self._delta(index, as_object(event.get("delta")))
        elif kind == "content_block_start":
            self._start_block(index, as_object(event.get("content_block")))
        else:
            self._stop_block(self._kinds.pop(index, None))

    def _start_block(self, index: object, block: JsonObject) -> None:
        kind = as_text(block.get("type"))
        self._kinds[index] = kind
        if kind == "text":
            self._citations = objects(block.get("citations"))
            self._out.text(as_text(block.get("text")), new_part=True)
        elif kind == "thinking":
            self._signature = [block["signature"]] if isinstance(block.get("signature"), str) else []
            self._out.close()
            self._out.reasoning(as_text(block.get("thinking")))
        elif kind == "redacted_thinking":
            self._out.whole(thinking_item(block, self._mint.new_id("rs")))
        elif kind == "tool_use":
            self._is_custom = as_text(block.get("name")) in self._custom
            self._input = [] if not block.get("input") else [arguments_text(block["input"])]
            call = "custom_tool_call" if self._is_custom else "function_call"
            self._out.open_call(call, call_id=block.get("id"), name=block.get("name"))
            if self._input and not self._is_custom:
                self._out.call_text(self._input[0])

    def _delta(self, index: object, delta: JsonObject) -> None:
        kind = delta.get("type")
        if kind == "text_delta":
            self._out.text(as_text(delta.get("text")))
        elif kind == "thinking_delta":
            self._out.reasoning(as_text(delta.get("thinking")))
        elif kind == "signature_delta":
            self._signature.append(as_text(delta.get("signature")))
        elif kind == "citations_delta" and isinstance(delta.get("citation"), dict):
            self._citations.append(delta["citation"])
        elif kind == "input_json_delta" and self._kinds.get(index, "tool_use") == "tool_use":
            piece = as_text(delta.get("partial_json"))
            self._input.append(piece)
            if not self._is_custom and self._out.open_kind == "function_call":
                self._out.call_text(piece)

    def _stop_block(self, kind: str | None) -> None:
        if kind == "text":
            if self._citations:
                self._out.annotations(annotations_from_citations(self._citations, self._out.part_text))
        elif kind == "thinking":
            self._out.close(encrypted_content="".join(self._signature) if self._signature else None)
        elif kind == "tool_use":
            text = "".join(self._input)
            if self._is_custom:
                self._out.call_text(free_input(text))
            elif not text.strip():
                self._out.call_text("{}")
            self._out.close()


def _index_of(event: JsonObject) -> int | None:
    index = event.get("index")
    return index if type(index) is int else None

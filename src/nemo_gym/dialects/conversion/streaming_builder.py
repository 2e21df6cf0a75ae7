"""Responses events out of what a backend of another dialect says piece by piece.

The canonical form of a stream is the sequence of Responses events, in the order of a native backend: an item is added,
its parts are opened, filled and closed, the item is done, and only then the next begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nemo_gym.dialects.conversion.envelope import failed_response, message_item, response_envelope
from nemo_gym.dialects.conversion.mint import Mint
from nemo_gym.dialects.conversion.parts import output_text
from nemo_gym.dialects.conversion.reasoning_items import reasoning_item
from nemo_gym.records.codec import JsonObject

Take = Callable[[JsonObject], None]

TERMINAL_EVENTS = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.cancelled",
}
_CALL_TEXTS = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}


class OutputBuilder:
    """Keeps the items as they grow and tells `take` each event. `restore` maps a flat call back to its namespace.

    `items` are the items so far; after `end` they are those of the terminal event.
    """

    def __init__(self, take: Take, *, request: JsonObject, mint: Mint, restore: Callable[[JsonObject], JsonObject]):
        self.items: list[JsonObject] = []
        self.begun: JsonObject | None = None
        self._take, self._request, self._mint, self._restore = take, request, mint, restore
        self._item: JsonObject | None = None
        self._pieces: list[str] = []
        self._part: JsonObject | None = None
        self._part_index = -1

    @property
    def open_kind(self) -> str | None:
        """The type of the item that is being filled, None when none is."""
        return None if self._item is None else str(self._item["type"])

    def begin(self, *, response_id: str | None, model: str | None, created_at: float | None) -> None:
        """Open the answer, once."""
        if self.begun is not None:
            return
        envelope = response_envelope(
            self._request,
            [],
            mint=self._mint,
            response_id=response_id,
            created_at=created_at,
            model=model,
            finish="stop",
            usage=None,
        )
        self.begun = {**envelope, "status": "in_progress"}
        self._take({"type": "response.created", "response": self.begun})
        self._take({"type": "response.in_progress", "response": self.begun})

    # Text of three kinds

    def text(self, text: str, *, logprobs: list[Any] | None = None, new_part: bool = False) -> None:
        """Add text to the message."""
        part = self._message_part("output_text", new_part=new_part)
        if logprobs:
            part.setdefault("logprobs", []).extend(logprobs)
        if text or logprobs:
            self._pieces.append(text)
            event = {"type": "response.output_text.delta", **self._at("content_index"), "delta": text}
            self._take({**event, "logprobs": logprobs or []})

    def refusal(self, text: str) -> None:
        """Add to the refusal."""
        self._message_part("refusal")
        self._pieces.append(text)
        self._take({"type": "response.refusal.delta", **self._at("content_index"), "delta": text})

    def annotations(self, annotations: list[JsonObject]) -> None:
        """Add annotations to the text that is open; without one they wait for the terminal event."""
        if self._part is None or self._part["type"] != "output_text":
            return
        for annotation in annotations:
            place = {**self._at("content_index"), "annotation_index": len(self._part["annotations"])}
            self._part["annotations"].append(annotation)
            self._take({"type": "response.output_text.annotation.added", **place, "annotation": annotation})

    @property
    def part_text(self) -> str:
        """The text of the part that is open."""
        return "".join(self._pieces)

    def reasoning(self, text: str, *, new_part: bool = False) -> None:
        """Add reasoning, to the summary part that is open or to a new one."""
        self.open_reasoning()
        if self._part is None or new_part:
            self._close_part()
            assert self._item is not None
            self._part, self._part_index = {"type": "summary_text", "text": ""}, len(self._item["summary"])
            self._item["summary"].append(self._part)
            place = self._at("summary_index")
            self._take({"type": "response.reasoning_summary_part.added", **place, "part": dict(self._part)})
        if text:
            self._pieces.append(text)
            place = self._at("summary_index")
            self._take({"type": "response.reasoning_summary_text.delta", **place, "delta": text})

    def open_reasoning(self) -> None:
        """Open a reasoning item unless one is open."""
        if self.open_kind != "reasoning":
            self._open(reasoning_item(self._mint.new_id("rs"), []))

    def whole(self, item: JsonObject) -> None:
        """Add an item that arrives as a whole."""
        self._open(item)
        self._finish(item)

    # Calls

    def open_call(self, kind: str, *, call_id: str | None, name: str | None, extra: JsonObject | None = None) -> None:
        """Open a `function_call` or a `custom_tool_call`."""
        given = call_id or self._mint.new_id("call")
        key = _CALL_TEXTS[kind][0]
        item = {"type": kind, "id": given, "call_id": given, "name": name, "status": "in_progress", key: ""}
        self._open(self._restore({**item, **(extra or {})}))

    def call_text(self, text: str) -> None:
        """Add to the arguments, or to the free input, of the call that is open."""
        if text and self._item is not None:
            self._pieces.append(text)
            event = _CALL_TEXTS[str(self._item["type"])][1]
            self._take({"type": f"{event}.delta", **self._place(), "delta": text})

    # Ends

    def close(self, *, incomplete: bool = False, encrypted_content: str | None = None) -> None:
        """Close the item that is open; `encrypted_content` is what a reasoning item ends with."""
        item = self._item
        if item is None:
            return
        kind = item["type"]
        if kind in _CALL_TEXTS:
            key, event = _CALL_TEXTS[kind]
            item[key] = "".join(self._pieces)
            done = {"type": f"{event}.done", **self._place(), key: item[key]}
            self._take({**done, "name": item["name"]} if kind == "function_call" else done)
        else:
            self._close_part()
        if "status" in item:
            item["status"] = "incomplete" if incomplete and kind == "message" else "completed"
        if encrypted_content is not None:
            item["encrypted_content"] = encrypted_content
        self._finish(item)

    def _finish(self, item: JsonObject) -> None:
        self._take({"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item})
        self._item, self._pieces, self._part, self._part_index = None, [], None, -1

    def end(self, final: JsonObject) -> None:
        """Send the terminal event: `final`, with the items' ids as they were told while they grew."""
        self.begin(response_id=None, model=None, created_at=None)
        assert self.begun is not None
        self.close(incomplete=final.get("status") == "incomplete")
        final = {**final, "id": self.begun["id"], "created_at": self.begun["created_at"]}
        final["output"] = self.items = self._reconciled(final["output"])
        kind = TERMINAL_EVENTS.get(str(final.get("status")), "response.incomplete")
        self._take({"type": kind, "response": final})

    def fail(self, error: JsonObject) -> None:
        """End the answer as failed; what came so far stays in it."""
        self.begin(response_id=None, model=None, created_at=None)
        assert self.begun is not None
        self.close(incomplete=True)
        failed = failed_response(self._request, error, mint=self._mint)
        failed = {**self.begun, "status": "failed", "error": failed["error"], "output": self.items}
        self._take({"type": "response.failed", "response": failed})

    # Parts

    def _reconciled(self, finished: list[JsonObject]) -> list[JsonObject]:
        """Return the finished object's items under their streamed ids; the streamed ones if theirs are others.

        They are others when a backend goes back: text after calls is one message of the finished object, but was a
        second one in the stream.
        """
        if [item["type"] for item in finished] != [item["type"] for item in self.items]:
            for item in finished if not self.items else ():
                self.whole(dict(item))
            return self.items
        return [
            {**last, **{key: sent[key] for key in ("id", "call_id", "arguments", "input") if key in sent}}
            for last, sent in zip(finished, self.items, strict=True)
        ]

    def _message_part(self, kind: str, *, new_part: bool = False) -> JsonObject:
        if self.open_kind != "message":
            self._open({**message_item(self._mint.new_id("msg"), []), "status": "in_progress"})
        if self._part is None or self._part["type"] != kind or new_part:
            self._close_part()
            assert self._item is not None
            self._part = output_text("") if kind == "output_text" else {"type": kind, kind: ""}
            self._part_index = len(self._item["content"])
            self._item["content"].append(self._part)
            shown = {**self._part, "annotations": []} if kind == "output_text" else dict(self._part)
            self._take({"type": "response.content_part.added", **self._at("content_index"), "part": shown})
        return self._part

    def _close_part(self) -> None:
        part = self._part
        if part is None:
            return
        text, kind = "".join(self._pieces), part["type"]
        self._pieces, self._part = [], None
        part["refusal" if kind == "refusal" else "text"] = text
        if kind == "summary_text":
            place = self._at("summary_index")
            self._take({"type": "response.reasoning_summary_text.done", **place, "text": text})
            self._take({"type": "response.reasoning_summary_part.done", **place, "part": part})
            return
        place = self._at("content_index")
        if kind == "refusal":
            self._take({"type": "response.refusal.done", **place, "refusal": text})
        else:
            logprobs = part.get("logprobs", [])
            self._take({"type": "response.output_text.done", **place, "text": text, "logprobs": logprobs})
        self._take({"type": "response.content_part.done", **place, "part": part})

    def _open(self, item: JsonObject) -> None:
        self.begin(response_id=None, model=None, created_at=None)
        self.close()
        self.items.append(item)
        self._item = item
        shell = {**item, "summary": []} if item["type"] == "reasoning" else dict(item)
        if item["type"] == "message":
            shell["content"] = []
        self._take({"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": shell})

    def _place(self) -> JsonObject:
        assert self._item is not None
        return {"item_id": self._item.get("id"), "output_index": len(self.items) - 1}

    def _at(self, index_key: str) -> JsonObject:
        return {**self._place(), index_key: self._part_index}

"""Canonical events to Chat chunks, one by one."""

from __future__ import annotations

from typing import Any

from nemo_gym.dialects.conversion.chat_results import responses_to_chat_response, shifted_annotation
from nemo_gym.dialects.conversion.citations import chat_annotations
from nemo_gym.dialects.conversion.envelope import error_said_in
from nemo_gym.dialects.conversion.mint import Mint
from nemo_gym.dialects.conversion.refusal import Notes
from nemo_gym.dialects.conversion.replay_frames import DONE, plain_event
from nemo_gym.dialects.conversion.shapes import as_text, objects
from nemo_gym.dialects.conversion.streaming_writer import CanonicalWriter, GrowingItem, Part
from nemo_gym.records.codec import JsonObject

_IN_EVERY_CHUNK = ("id", "object", "created", "model")
_MESSAGE_KEYS_SENT = ("role", "content", "refusal", "reasoning_content", "annotations", "tool_calls")


class ChatWriter(CanonicalWriter):
    """Sends the role, then each piece as it comes, the finish reason, the usage if asked for, and `[DONE]`."""

    def __init__(self, *, requested_model: str | None, include_usage: bool, mint: Mint, notes: Notes) -> None:
        super().__init__(requested_model=requested_model, mint=mint, notes=notes)
        self._include_usage = include_usage
        self._base: JsonObject = {}
        self._calls: dict[int, int] = {}  # output index -> position among the calls
        self._thoughts: list[tuple[int, Part]] = []
        self._offsets: dict[tuple[int, Part], int] = {}
        self._text_length = 0

    def _begin(self, response: JsonObject) -> None:
        created = response.get("created_at")
        self._base = {
            "id": response.get("id") or self._mint.new_id("chatcmpl"),
            "object": "chat.completion.chunk",
            "created": int(created if isinstance(created, int | float) else self._mint.now()),
            "model": self._requested_model or as_text(response.get("model")),
        }
        self._chunk({"role": "assistant", "content": None})

    def _item(self, item: GrowingItem) -> None:
        if item.kind not in ("function_call", "custom_tool_call"):
            return
        index = self._calls[item.place] = len(self._calls)
        call: JsonObject = {"index": index, "id": item.item.get("call_id") or item.item.get("id")}
        if item.kind == "function_call":
            call |= {"type": "function", "function": {"name": item.item.get("name"), "arguments": ""}}
        else:
            call |= {"type": "custom", "custom": {"name": item.item.get("name"), "input": ""}}
        self._chunk({"tool_calls": [call]})

    def _piece(self, item: GrowingItem, part: Part, kind: str, text: str, logprobs: list[Any]) -> None:
        if part[0] == "call":
            index = self._calls.get(item.place)
            if text and index is not None:
                body = {"arguments": text} if item.kind == "function_call" else {"input": text}
                self._chunk(
                    {"tool_calls": [{"index": index, item.kind.removesuffix("_call").removesuffix("_tool"): body}]}
                )
        elif kind == "refusal":
            self._chunk({"refusal": text})
        elif kind == "output_text":
            self._offsets.setdefault((item.place, part), self._text_length)
            self._text_length += len(text)
            self._chunk({"content": text}, logprobs=logprobs)
        else:
            place = (item.place, part)
            if place not in self._thoughts:
                text = "\n" + text if self._thoughts else text
                self._thoughts.append(place)
            self._chunk({"reasoning_content": text})

    def _part_end(self, item: GrowingItem, part: Part, content: JsonObject) -> None:
        annotations = chat_annotations(content.get("annotations"))
        if annotations:
            offset = self._offsets.get((item.place, part), 0)
            self._chunk({"annotations": [shifted_annotation(annotation, offset) for annotation in annotations]})

    def _item_end(self, item: GrowingItem) -> None:
        index = self._calls.get(item.place)
        if index is not None and item.item.get("extra_content") is not None:
            self._chunk({"tool_calls": [{"index": index, "extra_content": item.item["extra_content"]}]})

    def _end(self, response: JsonObject) -> None:
        completion, notes = responses_to_chat_response(response, requested_model=self._requested_model, mint=self._mint)
        self._notes.extend(notes)
        choice = objects(completion.get("choices"))[0]
        rest = {key: value for key, value in choice["message"].items() if key not in _MESSAGE_KEYS_SENT}
        if rest:
            self._chunk(rest)
        more = {key: value for key, value in completion.items() if key not in (*_IN_EVERY_CHUNK, "choices", "usage")}
        self._chunk({}, finish=choice["finish_reason"], **more)
        if self._include_usage:
            self.out.append(plain_event({**self._base, "choices": [], "usage": completion.get("usage")}))
        self.out.append(DONE)

    def _fail(self, error: JsonObject) -> None:
        self.out.append(plain_event(error_said_in("chat", error)))

    def _chunk(
        self, delta: JsonObject, *, logprobs: list[Any] | None = None, finish: str | None = None, **more: Any
    ) -> None:
        choice: JsonObject = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        if logprobs:
            choice["logprobs"] = {"content": logprobs, "refusal": None}
        self.out.append(plain_event({**self._base, **more, "choices": [choice]}))

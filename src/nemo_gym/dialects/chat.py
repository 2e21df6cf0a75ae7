"""Chat Completions chunks to a `chat.completion` object. Source: capture contract 3.2, every row of its table."""

from __future__ import annotations

from typing import ClassVar

from nemo_gym.dialects.accumulate import StreamAccumulator
from nemo_gym.dialects.chat_tool_calls import ToolCalls
from nemo_gym.dialects.merge import Assembly, Base64Rope, overwrite_known
from nemo_gym.dialects.names import Dialect
from nemo_gym.records import codec
from nemo_gym.records.codec import JsonObject, JsonValue

_NOT_KEPT = frozenset({"object", "obfuscation", "error"})
_TEXT_KEYS = frozenset({"reasoning_content", "reasoning", "refusal"})
_PLAIN_KEYS = frozenset({"content", *_TEXT_KEYS})
_PLACE_KEYS = frozenset({"delta", "index"})
_JOINED_DETAIL_KEYS = frozenset({"text", "summary", "data"})


class ChatAccumulator(StreamAccumulator):
    """Reassembles a Chat Completions stream; choices are kept apart by `index`."""

    dialect: ClassVar[Dialect] = "chat"

    def __init__(self, *, content_encoding: str | None = None) -> None:
        super().__init__(content_encoding=content_encoding)
        self._top: JsonObject = {}
        self._usage: JsonObject = {}
        self._groq_usage: JsonObject = {}
        self._choices: dict[int, _Choice] = {}

    def _on_event(self, kind: str | None, event: JsonObject) -> None:
        error = event.get("error")
        if error is not None:
            if self.terminal != "error" or self.stream_error is None:
                self._fail(error if isinstance(error, dict) else {"message": str(error)})
            if not event.get("choices"):
                return
        elif "choices" not in event and _is_no_chunk(kind, event):
            self._unknown(kind)
            return
        top = self._top
        for key, value in event.items():
            if key == "choices":
                if type(value) is list:
                    self._add_choices(value)
                elif value is not None:
                    self._note("choices_not_list")
            elif value is None or key in _NOT_KEPT:
                continue
            elif key == "usage":
                self._add_usage(value)
            elif key in ("id", "model"):
                if value:
                    top[key] = value
            elif key == "created":
                if value and key not in top:
                    top[key] = value
            else:
                top[key] = value
                if key == "x_groq" and isinstance(value, dict) and isinstance(value.get("usage"), dict):
                    overwrite_known(self._groq_usage, value["usage"])

    def _add_usage(self, value: JsonValue) -> None:
        if isinstance(value, dict):
            overwrite_known(self._usage, value)
        else:
            self._note("usage_not_object")

    def _add_choices(self, choices: list[JsonValue]) -> None:
        for position, delta in enumerate(choices):
            if type(delta) is not dict:
                self._note("choice_not_object")
                continue
            index = delta.get("index")
            if type(index) is not int:
                index = position
            choice = self._choices.get(index)
            if choice is None:
                choice = self._choices[index] = _Choice(index, self._assembly)
            if choice.add_plain_text(delta):  # most of a stream
                self.first_content_seen = True
                if len(choices) == 1:
                    self._added_plainly(delta["delta"]["content"], choice.texts)
                continue
            content, problems = choice.add(delta)
            if content:
                self.first_content_seen = True
                if len(choices) == 1 and not problems:
                    self._look_for_plain_delta(choice, delta)
            for problem in problems:
                self._note(problem)
            if choice.finish_reason == "error" and self.terminal != "error":
                error = delta.get("error")
                self._fail(error if isinstance(error, dict) else None)

    def _look_for_plain_delta(self, choice: _Choice, delta: JsonObject) -> None:
        """Find the deltas that are one text beside nulls and a role: reasoning, and content of wordier servers."""
        found = delta.get("delta")
        if type(found) is not dict or choice.is_special:
            return
        if any(value is not None for key, value in delta.items() if key not in _PLACE_KEYS):
            return
        keys = [key for key, value in found.items() if value is not None and key != "role"]
        if len(keys) == 1 and keys[0] in _PLAIN_KEYS and type(found[keys[0]]) is str:
            self._added_plainly(found[keys[0]], choice.texts if keys[0] == "content" else choice.message, keys[0])

    def _on_done(self) -> None:
        if self.terminal != "error":
            self._end("complete")
        else:
            self._ended_here = True

    def _ended_cleanly(self) -> bool:
        return bool(self._choices) and all(choice.finish_reason for choice in self._choices.values())

    def _build(self) -> JsonObject | None:
        if not self._choices:
            return None
        choices = [self._choices[index].build() for index in sorted(self._choices)]
        response = {**self._top, "object": "chat.completion", "choices": choices}
        usage = self._usage or self._groq_usage
        if usage:
            response["usage"] = usage
        return response


class _Choice:
    """One choice while it grows."""

    __slots__ = (
        "_assembly",
        "_details",
        "_index",
        "_parts",
        "_role",
        "_whole",
        "calls",
        "extras",
        "finish_reason",
        "message",
        "texts",
    )

    def __init__(self, index: int, assembly: Assembly) -> None:
        self._index = index
        self._assembly = assembly
        self.finish_reason: str | None = None
        self.extras: JsonObject = {}
        self._clear()

    def _clear(self) -> None:
        self.message: JsonObject = {}
        self.calls = ToolCalls()
        self._role = "assistant"
        self.texts: list[str] = []
        self._parts: list[JsonValue] | None = None
        self._details: dict[tuple[str, str], JsonObject] = {}
        self._whole: JsonObject | None = None

    @property
    def is_special(self) -> bool:
        """Whether the content is a list of parts, or the message came whole."""
        return self._parts is not None or self._whole is not None

    def add_plain_text(self, choice: JsonObject) -> bool:
        """Take a streamed choice that is a piece of text and nothing else; returns whether it was one."""
        delta = choice.get("delta")
        if type(delta) is not dict or len(delta) != 1 or self._parts is not None or self._whole is not None:
            return False
        text = delta.get("content")
        if type(text) is not str or not text:
            return False
        for key, value in choice.items():
            if value is not None and key != "delta" and key != "index":  # noqa: PLR1714 - a set costs more here
                return False
        self.texts.append(text)
        return True

    def add(self, choice: JsonObject) -> tuple[bool, list[str]]:
        """Take one streamed choice; returns whether it carried content, and the problems met."""
        content = False
        problems: list[str] = []
        for key, value in choice.items():
            if value is None or key == "index":
                continue
            if key == "delta":
                if type(value) is dict:
                    content = self._add_delta(value, problems) or content
            elif key == "finish_reason":
                if isinstance(value, str) and value:
                    self.finish_reason = value
            elif key == "message":
                if isinstance(value, dict):
                    self._clear()
                    self._whole = value
                    content = True
            elif key == "logprobs" and isinstance(value, dict):
                logprobs = self.extras.setdefault(key, {})
                if isinstance(logprobs, dict):
                    self._assembly.merge(logprobs, value)
            elif isinstance(value, list) and isinstance(self.extras.get(key), list):
                self.extras[key].extend(value)
            else:
                self.extras[key] = value
        return content, problems

    def _add_delta(self, delta: JsonObject, problems: list[str]) -> bool:
        if self._whole is not None and any(value is not None for value in delta.values()):
            whole = self._whole
            self._clear()
            self._add_delta(whole, problems)
        content = False
        for key, value in delta.items():
            if value is None:
                continue
            if key == "content":
                self._add_content(value)
            elif key == "role":
                self._role = value if isinstance(value, str) and value else self._role
                continue
            elif key == "tool_calls":
                problems.extend(self.calls.add(value, self._assembly))
            elif key in _TEXT_KEYS and isinstance(value, str):
                if value:
                    self._assembly.append(self.message, key, value)
            elif key != "obfuscation":
                self._add_rare(key, value)
            if value:
                content = True
        return content

    def _add_content(self, value: JsonValue) -> None:
        if isinstance(value, str):
            if not value:
                return
            if self._parts is None:
                self.texts.append(value)
            else:
                merge_parts(self._parts, [{"type": "text", "text": value}], self._assembly)
        else:
            if self._parts is None:
                self._parts = []
                if self.texts:
                    self._parts.append({"type": "text", "text": "".join(self.texts)})
                    self.texts = []
            merge_parts(self._parts, value if isinstance(value, list) else [value], self._assembly)

    def _add_rare(self, key: str, value: JsonValue) -> None:
        message, assembly = self.message, self._assembly
        if key == "reasoning_details":
            for entry in value if isinstance(value, list) else [value]:
                self._add_detail(entry)
        elif key == "audio" and isinstance(value, dict):
            add_audio(message.setdefault("audio", {}), value, assembly)
        elif key == "function_call" and isinstance(value, dict):
            call = message.setdefault("function_call", {})
            for name, part in value.items():
                if name in ("name", "arguments") and part is not None:
                    assembly.append(call, name, part if isinstance(part, str) else codec.encode(part).decode())
                else:
                    assembly.merge(call, {name: part})
        else:
            assembly.merge(message, {key: value})

    def _add_detail(self, entry: JsonValue) -> None:
        details = self.message.setdefault("reasoning_details", [])
        if not isinstance(entry, dict):
            details.append(entry)
            return
        place = (str(entry.get("type")), str(entry.get("index")))
        known = self._details.get(place)
        if known is None:
            self._details[place] = entry
            details.append(entry)
            return
        for key, value in entry.items():
            if value is None:
                continue
            if key in _JOINED_DETAIL_KEYS and isinstance(value, str):
                self._assembly.append(known, key, value)
            else:
                known[key] = value

    def build(self) -> JsonObject:
        """Return the finished choice."""
        extras = {key: value for key, value in self.extras.items() if value != {} or key != "logprobs"}
        return {"index": self._index, "message": self._message(), "finish_reason": self.finish_reason, **extras}

    def _message(self) -> JsonObject:
        if self._whole is not None:
            return self._whole
        self.texts = ["".join(self.texts)] if self.texts else []
        content: JsonValue = self.texts[0] if self.texts else None
        if self._parts is not None:
            content = self._parts
        message = {"role": self._role, "content": content, **self.message}
        if self.calls.calls:
            message["tool_calls"] = self.calls.build()
        return message


def _is_no_chunk(kind: str | None, event: JsonObject) -> bool:
    """Return whether an object without choices is something else than a chunk: typed, named or empty."""
    if "usage" in event or str(event.get("object")).startswith("chat."):
        return False
    return kind is not None or not event


def add_audio(target: JsonObject, piece: JsonObject, assembly: Assembly) -> None:
    """Merge a piece of audio: `transcript` is joined, `data` as the bytes that it encodes, of other keys the last."""
    for key, value in piece.items():
        if value is None:
            continue
        if key == "transcript" and isinstance(value, str):
            assembly.append(target, key, value)
        elif key == "data" and isinstance(value, str):
            if value:
                assembly.append(target, key, value, rope=Base64Rope)
        else:
            target[key] = value


def merge_parts(parts: list[JsonValue], new: list[JsonValue], assembly: Assembly) -> None:
    """Append content parts; consecutive text-bearing parts of one type become one, nested text joined."""
    for part in new:
        last = parts[-1] if parts else None
        if not (isinstance(part, dict) and isinstance(last, dict) and _same_text_part(last, part)):
            parts.append({"type": "text", "text": part} if isinstance(part, str) else part)
            continue
        for key, value in part.items():
            current = last.get(key)
            if value is None or key == "type":
                continue
            if isinstance(value, list) and isinstance(current, list):
                merge_parts(current, value, assembly)
            elif isinstance(value, str) and key in (last.get("type"), "text"):
                assembly.append(last, key, value)
            else:
                last[key] = value


def _same_text_part(last: JsonObject, part: JsonObject) -> bool:
    kind = part.get("type")
    if kind is None or kind != last.get("type"):
        return False
    return isinstance(part.get("text"), str) or isinstance(part.get(str(kind)), (str, list))

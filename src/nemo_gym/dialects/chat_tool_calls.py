"""Which streamed piece belongs to which tool call of a chat answer. Source: capture contract 3.2, "Tool calls".

Servers disagree about `index`: some number every call 0, some send none, some repeat the id. The rules here put each
piece where a client that wants all calls would put it.
"""

from __future__ import annotations

import re

from nemo_gym.dialects.merge import Assembly
from nemo_gym.records import codec
from nemo_gym.records.codec import JsonObject, JsonValue

INDEX_REUSED = "index_reused"
_MARKS = re.compile(r'["\\{}\[\]]')


class ArgumentText:
    """Arguments that arrive in pieces; knows whether they are a complete JSON container, looking at each piece once."""

    __slots__ = ("_closed", "_depth", "_escape_at", "_in_string", "_looked_at", "_offset", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._looked_at = 0
        self._offset = 0  # characters before the next piece that was not looked at
        self._depth = 0
        self._in_string = False
        self._escape_at = -1  # offset of the character that a backslash protects
        self._closed = False

    def append(self, text: str) -> None:
        """Add a piece."""
        if text:
            self.pieces.append(text)

    def is_complete(self) -> bool:
        """Return whether everything so far is one closed JSON object or list, and nothing after it."""
        for piece in self.pieces[self._looked_at :]:
            self._look(piece)
        self._looked_at = len(self.pieces)
        return self._closed

    def _look(self, piece: str) -> None:
        if self._closed and piece.strip():
            self._closed = False
        for mark in _MARKS.finditer(piece):
            at, character = self._offset + mark.start(), mark[0]
            if at == self._escape_at:
                continue
            if self._in_string:
                if character == "\\":
                    self._escape_at = at + 1
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
                self._closed = False
            elif character in "}]":
                self._depth -= 1
                self._closed = self._depth == 0 and not piece[mark.end() :].strip()
        self._offset += len(piece)

    def join(self) -> str:
        """Return the whole text."""
        if len(self.pieces) > 1:
            self.is_complete()  # look at what is left first, so that the joined piece counts as looked at
            self.pieces, self._looked_at = ["".join(self.pieces)], 1
        return self.pieces[0] if self.pieces else ""


class ToolCall:
    """One call while it grows."""

    __slots__ = ("arguments", "custom", "extras", "function_extras", "id", "index", "name", "type")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id: str | None = None
        self.type: str | None = None
        self.name: str | None = None
        self.custom = False
        self.arguments = ArgumentText()
        self.extras: JsonObject = {}
        self.function_extras: JsonObject = {}

    def add(self, delta: JsonObject, assembly: Assembly) -> None:
        """Take one piece: id and type last, name set once, arguments appended, other keys merged."""
        for key, value in delta.items():
            if value is None or key == "index":
                continue
            if key == "id":
                self.id = value if isinstance(value, str) and value else self.id
            elif key == "type":
                self.type = value if isinstance(value, str) and value else self.type
            elif key in ("function", "custom") and isinstance(value, dict):
                self.custom = self.custom or key == "custom"
                self._add_function(value, "input" if key == "custom" else "arguments", assembly)
            else:
                assembly.merge(self.extras, {key: value})

    def _add_function(self, function: JsonObject, text_key: str, assembly: Assembly) -> None:
        text, name = function.get(text_key), function.get("name")
        if isinstance(name, str) and name:
            if not self.name:
                self.name = name
            elif name != self.name and not self.arguments.pieces:
                self.name += name
        if isinstance(text, str):
            self.arguments.append(text)
        elif text is not None:
            self.arguments.append(codec.encode(text).decode())
        others = {key: value for key, value in function.items() if key not in (text_key, "name")}
        if others:
            assembly.merge(self.function_extras, others)

    def build(self) -> JsonObject:
        """Return the call in the shape of a finished message; an id that never came stays null."""
        text = self.arguments.join()
        body_key, text_key = ("custom", "input") if self.custom else ("function", "arguments")
        body = {"name": self.name, text_key: text, **self.function_extras}
        return {"id": self.id, "type": self.type or body_key, body_key: body, **self.extras}


class ToolCalls:
    """All calls of one choice, in order of first appearance."""

    __slots__ = ("_by_id", "_by_index", "calls")

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self._by_index: dict[int, ToolCall] = {}
        self._by_id: dict[str, ToolCall] = {}

    def add(self, deltas: JsonValue, assembly: Assembly) -> list[str]:
        """Take the `tool_calls` of one delta; returns the names of problems met."""
        problems: list[str] = []
        named: ToolCall | None = None  # the call that the entry before, in this same list, gave a name to
        for delta in deltas if isinstance(deltas, list) else [deltas]:
            if not isinstance(delta, dict):
                problems.append("tool_call_not_object")
                continue
            call = self._call_for(delta, named, problems)
            call.add(delta, assembly)
            if call.id:
                self._by_id[call.id] = call
            named = call if _name_in(delta) else None
        return problems

    def build(self) -> list[JsonObject]:
        """Return the finished calls."""
        return [call.build() for call in self.calls]

    def _call_for(self, delta: JsonObject, named: ToolCall | None, problems: list[str]) -> ToolCall:
        index, call_id, name = delta.get("index"), delta.get("id"), _name_in(delta)
        call_id = call_id if isinstance(call_id, str) and call_id else None
        last = self.calls[-1] if self.calls else None
        if type(index) is int:
            call = self._by_index.get(index)
            if call is not None:
                # A call that never got an id may get it late, but not after its arguments are whole.
                if call_id and name and call.id != call_id and (call.id or call.arguments.is_complete()):
                    problems.append(INDEX_REUSED)
                    return self._open(index)
                return call
            known = self._by_id.get(call_id) if call_id else (last if name is None else None)
            if known is not None and known.index is None:  # opened by a piece that had no index
                known.index = index
                self._by_index[index] = known
                return known
            return self._open(index)
        if call_id:
            return self._by_id.get(call_id) or self._open(None)
        if last is None or (name and (last is named or last.arguments.is_complete())):
            return self._open(None)
        return last

    def _open(self, index: int | None) -> ToolCall:
        call = ToolCall(index)
        self.calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call


def _name_in(delta: JsonObject) -> str | None:
    for key in ("function", "custom"):
        body = delta.get(key)
        if isinstance(body, dict):
            name = body.get("name")
            if isinstance(name, str) and name:
                return name
    return None

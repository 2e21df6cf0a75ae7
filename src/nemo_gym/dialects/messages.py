"""Anthropic Messages events to a message object. Source: capture contract 3.3, every row of its table."""

from __future__ import annotations

from typing import ClassVar

from nemo_gym.dialects.accumulate import StreamAccumulator, error_object_of
from nemo_gym.dialects.merge import overwrite_known
from nemo_gym.dialects.names import Dialect
from nemo_gym.records import codec
from nemo_gym.records.codec import JsonObject, JsonValue

# Delta kind -> the block that such a delta belongs to, for streams that never sent its start.
_BLOCK_OF_DELTA: dict[str, str] = {
    "text_delta": "text",
    "citations_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
    "input_json_delta": "tool_use",
    "compaction_delta": "compaction",
}
_APPENDED: dict[str, str] = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class MessagesAccumulator(StreamAccumulator):
    """Reassembles an Anthropic Messages stream; blocks are kept by `index`."""

    dialect: ClassVar[Dialect] = "messages"

    def __init__(self, *, content_encoding: str | None = None) -> None:
        super().__init__(content_encoding=content_encoding)
        self._message: JsonObject | None = None
        self._usage: JsonObject = {}
        self._blocks: list[_Block] = []  # in order of arrival
        self._open: dict[int, _Block] = {}
        self._whole_content: JsonValue = None

    def _on_event(self, kind: str | None, event: JsonObject) -> None:
        if kind == "content_block_delta":
            self._block_delta(event)
        elif kind == "content_block_start":
            self._block_start(event)
        elif kind == "content_block_stop":
            block = self._open.get(self._index_of(event))
            if block is not None:
                self._close(block)
        elif kind in ("message_start", "message"):
            self._start(event.get("message") if kind == "message_start" else event)
        elif kind == "message_delta":
            self._message_delta(event)
        elif kind == "message_stop":
            if self.terminal == "error":  # a proxy's polite end does not undo it
                self._ended_here = True
            else:
                self._end("complete")
        else:
            error = error_object_of(event)
            if error is None:
                self._unknown(kind)
            elif self.terminal != "error":
                self._fail(error)

    def _start(self, message: JsonValue) -> None:
        if not isinstance(message, dict):
            self._note("event_shape")
            return
        usage = message.pop("usage", None)
        content = message.pop("content", None)
        if isinstance(usage, dict):
            overwrite_known(self._usage, usage)
        if content:
            self._whole_content = content
            self.first_content_seen = True
        if self._message is None:
            self._message = message
        else:
            self._note("message_start_repeated")
            overwrite_known(self._message, message)

    def _shell(self) -> JsonObject:
        if self._message is None:
            self._note("message_start_missing")
            self._message = {"type": "message", "role": "assistant"}
        return self._message

    def _block_start(self, event: JsonObject) -> None:
        data = event.get("content_block")
        if not isinstance(data, dict):
            self._note("event_shape")
            return
        self._shell()
        index = self._index_of(event, starting=True)
        if index in self._open:
            self._note("index_reused")
        self._add_block(index, data)
        if any(value for key, value in data.items() if key not in ("type", "index")):
            self.first_content_seen = True

    def _add_block(self, index: int, data: JsonObject) -> _Block:
        block = _Block(index, data)
        self._blocks.append(block)
        self._open[index] = block
        return block

    def _index_of(self, event: JsonObject, *, starting: bool = False) -> int:
        index = event.get("index")
        if type(index) is int:
            return index
        self._note("index_missing")
        last = self._blocks[-1].index if self._blocks else -1
        return last + 1 if starting else max(last, 0)

    def _block_delta(self, event: JsonObject) -> None:
        delta = event.get("delta")
        if type(delta) is not dict:
            self._note("event_shape")
            return
        index = self._index_of(event)
        kind = delta.get("type")
        block = self._open.get(index)
        if block is None:
            self._shell()
            self._note("block_start_missing")
            name = str(kind)
            data: JsonObject = {"type": _BLOCK_OF_DELTA.get(name) or name.removesuffix("_delta")}
            if name == "input_json_delta":
                data["input"] = {}
            block = self._add_block(index, data)
        text_key = _APPENDED.get(kind) if isinstance(kind, str) else None
        if text_key is not None:
            text = delta.get(text_key)
            if isinstance(text, str):
                if text:
                    self.first_content_seen = True
                    self._assembly.append(block.data, text_key, text)
                    self._added_plainly(text, block.data, text_key)
                else:
                    block.data.setdefault(text_key, "")
        elif kind == "input_json_delta":
            self._input_delta(block, delta.get("partial_json"))
        elif kind == "citations_delta":
            self._citation(block, delta.get("citation"))
        else:
            if kind != "compaction_delta":
                self._unknown(str(kind))
            self._assembly.merge(block.data, {key: value for key, value in delta.items() if key != "type"})

    def _input_delta(self, block: _Block, piece: JsonValue) -> None:
        if isinstance(piece, str):
            if piece:
                self.first_content_seen = True
                block.json_pieces.append(piece)
                self._added_plainly(piece, block.json_pieces)
        elif isinstance(piece, dict):
            self._assembly.merge(block.data, {"input": piece})

    def _citation(self, block: _Block, citation: JsonValue) -> None:
        if citation is None:
            return
        citations = block.data.get("citations")
        if isinstance(citations, list):
            citations.append(citation)
        else:
            block.data["citations"] = [citation]

    def _close(self, block: _Block) -> None:
        """Parse the streamed input of a block; text that is not JSON is kept as `{"_raw": text}`."""
        text = "".join(block.json_pieces)
        block.json_pieces = []
        if not text.strip():
            return
        if "\\u" in text:
            self._strings_need_repair = True  # escapes inside the streamed text may be lone halves
        try:
            block.data["input"] = codec.decode(text)
        except ValueError:
            block.data["input"] = {"_raw": text}

    def _message_delta(self, event: JsonObject) -> None:
        message = self._shell()
        for key, value in event.items():
            if key == "delta":
                for name, part in value.items() if isinstance(value, dict) else ():
                    if part is not None or name not in message:
                        message[name] = part
            elif key == "usage":
                if isinstance(value, dict):
                    overwrite_known(self._usage, value)
                elif value is not None:
                    self._note("usage_not_object")
            elif key != "type" and value is not None:
                message[key] = value

    def _on_done(self) -> None:
        if self.terminal is None and self._ended_cleanly():
            self.terminal = "clean_eof"
        self._ended_here = True

    def _ended_cleanly(self) -> bool:
        return self._message is not None and bool(self._message.get("stop_reason"))

    def _build(self) -> JsonObject | None:
        if self._message is None:
            return None
        for block in self._blocks:
            if block.json_pieces and self._finished:
                self._close(block)  # the stream ended inside the input
        content: JsonValue = [block.data for block in sorted(self._blocks, key=lambda block: block.index)]
        if not self._blocks and self._whole_content is not None:
            content = self._whole_content
        response = {**self._message, "content": content}
        if self._usage:
            response["usage"] = self._usage
        return response


class _Block:
    """One content block while it grows."""

    __slots__ = ("data", "index", "json_pieces")

    def __init__(self, index: int, data: JsonObject) -> None:
        self.index = index
        self.data = data
        self.json_pieces: list[str] = []

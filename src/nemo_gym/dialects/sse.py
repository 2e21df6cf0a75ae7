"""Server-sent events out of bytes, chunk by chunk.

Lines end with CR, LF or CRLF and with nothing else, so the separators that are legal inside a JSON string (U+2028,
U+2029, U+0085) never cut one. Nothing is decoded here: a character split over two chunks is whole again by the time
its line is. Each byte is looked at once when it arrives and copied once when its line is complete, so the work is
linear in the stream however it is cut.
"""

from __future__ import annotations

from typing import NamedTuple

SENTINEL = b"[DONE]"
_BOM = b"\xef\xbb\xbf"
_CR, _LF = 13, 10
_LONGEST_SENTINEL = 24
"""More bytes than `[DONE]` with generous white space around it; longer payloads are not compared."""


class SseEvent(NamedTuple):
    """One dispatched event.

    `name` is the `event:` field or None; `data` the `data:` lines joined with LF; `error` the non-standard `error:`
    field or None; `start` the offset, in the chunk just fed, of the first byte of the event's block (0 when the block
    began in an earlier chunk).
    """

    name: bytes | None
    data: bytes
    error: bytes | None
    start: int


class PendingBytes:
    """The unfinished last line. It can only grow and be taken, so nothing can scan it again."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def __len__(self) -> int:
        return len(self._buffer)

    def append(self, piece: bytes) -> None:
        """Add `piece` at the end."""
        self._buffer += piece

    def take(self) -> bytes:
        """Return everything and become empty."""
        taken = bytes(self._buffer)
        self._buffer = bytearray()
        return taken


class SseParser:
    """Incremental parser: `feed` chunks, then `finish` once at the end of the body."""

    __slots__ = (
        "_block_open",
        "_bom",
        "_data",
        "_error",
        "_name",
        "_pending",
        "_skip_lf",
        "open_block_offset",
    )

    def __init__(self, pending: PendingBytes | None = None) -> None:
        self._pending = PendingBytes() if pending is None else pending
        self._bom = _BOM  # what is still missing of a byte order mark; empty once that is settled
        self._skip_lf = False  # the last chunk ended in CR: an LF at the start of the next one belongs to it
        self._block_open = False
        self._data: list[bytes] = []
        self._name: bytes | None = None
        self._error: bytes | None = None
        self.open_block_offset: int | None = None
        """Where the block that is still open begins in the chunk just fed; None when no block is open."""

    @property
    def between_events(self) -> bool:
        """Whether nothing of an event, and no part of a line end or byte order mark, is waited for."""
        return not (self._block_open or self._bom or self._skip_lf)

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that `chunk` completes."""
        if chunk[-2:] == b"\n\n" and not (self._block_open or self._bom or self._skip_lf):
            event = _sole_event(chunk)
            if event is not None:
                self.open_block_offset = None
                return [event]
        events: list[SseEvent] = []
        if not chunk:
            self.open_block_offset = 0 if self._block_open else None
            return events
        position = self._skip_bom(chunk) if self._bom else 0
        if self._skip_lf and position < len(chunk):
            self._skip_lf = False
            if chunk[position] == _LF:
                position += 1
        start = 0 if self._block_open else -1
        rest = chunk[position:] if position else chunk
        if rest:
            start = self._lines(rest, position, start, events)
        self._block_open = start >= 0
        self.open_block_offset = start if start >= 0 else None
        return events

    def finish(self) -> list[SseEvent]:
        """Return the event that the end of the body completes, if one was pending."""
        events: list[SseEvent] = []
        if self._bom and len(self._bom) < len(_BOM):
            self._pending.append(_BOM[: len(_BOM) - len(self._bom)])
        self._bom = b""
        if len(self._pending):
            self._field(self._pending.take(), 0, events)
        self._dispatch(0, events)
        self._block_open = False
        self.open_block_offset = None
        return events

    def sentinel_is_pending(self) -> bool:
        """Return whether the unfinished last line already reads `data: [DONE]`; it costs one short look."""
        if not 0 < len(self._pending) <= _LONGEST_SENTINEL or self._data:
            return False
        line = self._pending.take()
        self._pending.append(line)
        return line.startswith(b"data:") and line[5:].strip() == SENTINEL

    def _skip_bom(self, chunk: bytes) -> int:
        """Return how many leading bytes of `chunk` belong to a byte order mark, which may itself be split."""
        wanted = self._bom[: len(chunk)]
        if chunk.startswith(wanted):
            self._bom = self._bom[len(wanted) :]
            return len(wanted)
        if len(self._bom) < len(_BOM):  # it only looked like one: give the swallowed bytes back to the first line
            self._pending.append(_BOM[: len(_BOM) - len(self._bom)])
            self._block_open = True
        self._bom = b""
        return 0

    def _lines(self, rest: bytes, position: int, start: int, events: list[SseEvent]) -> int:
        pending = self._pending
        if b"\n" not in rest and b"\r" not in rest:
            pending.append(rest)
            return position if start < 0 else start
        for line in rest.splitlines(keepends=True):
            last = line[-1]
            if last == _LF:
                body = line[:-2] if line.endswith(b"\r\n") else line[:-1]
            elif last == _CR:
                body = line[:-1]
            else:
                pending.append(line)
                return position if start < 0 else start
            if len(pending):
                pending.append(body)
                body = pending.take()
            if body:
                if start < 0:
                    start = position
                self._field(body, start, events)
            else:
                self._dispatch(start, events)
                start = -1
            position += len(line)
        self._skip_lf = rest[-1] == _CR
        return start

    def _field(self, line: bytes, start: int, events: list[SseEvent]) -> None:
        if line.startswith(b"data:"):
            value = line[6:] if line[5:6] == b" " else line[5:]
            if len(value) <= _LONGEST_SENTINEL and value.strip() == SENTINEL and not self._data:
                # Clients that read by line stop here, and some servers never send the blank line: do not wait for it.
                self._data.append(SENTINEL)
                self._dispatch(start, events)
            else:
                self._data.append(value)
            return
        field, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if field == b"event":
            self._name = value
        elif field == b"error":
            self._error = value
        elif field == b"data":
            self._data.append(value)

    def _dispatch(self, start: int, events: list[SseEvent]) -> None:
        data, name, error = self._data, self._name, self._error
        if not data and name is None and error is None:
            return
        events.append(SseEvent(name, data[0] if len(data) == 1 else b"\n".join(data), error, max(start, 0)))
        self._data, self._name, self._error = [], None, None


def _sole_event(chunk: bytes) -> SseEvent | None:
    """Return the event when `chunk` is one plain block, `data:` alone or after `event:`; None when it is anything else.

    Most servers send one event at a time, so this is the usual case; the general way would give the same.
    """
    name: bytes | None = None
    line_end, start, last = chunk.find(b"\n"), 0, len(chunk) - 2
    if chunk.startswith(b"event: "):
        name, start = chunk[7:line_end], line_end + 1
        line_end = chunk.find(b"\n", start)
    if line_end != last or last - start < 2 * _LONGEST_SENTINEL or not chunk.startswith(b"data: ", start):
        return None
    return None if b"\r" in chunk else SseEvent(name, chunk[start + 6 : last], None, 0)

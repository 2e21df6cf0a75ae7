"""Bodies as they go on a line: the original bytes when they are a JSON object, text otherwise.

Nothing here raises for what is in a body: a value that some JSON reader refuses (a lone surrogate escape, 10^30) is
kept as it was sent, and what is not JSON is kept as text.
"""

from __future__ import annotations

import codecs
import json
from collections import deque

import msgspec

from nemo_gym.dialects.decoding import content_decoder
from nemo_gym.records.codec import encode

_validate = msgspec.json.Decoder(msgspec.Raw).decode
_PIECE = 1 << 20
MAX_INFLATED_BYTES = 1 << 28
"""How far a compressed body is followed: beyond it only the compressed bytes are kept."""
RAW_HALF_BYTES = 4 << 20
"""How much of each end of a stream's raw text is kept."""


def object_bytes(body: bytes, notes: list[str], *, name: str) -> bytes | None:
    """Return `body` as one line of JSON when it is a JSON object, else None.

    The bytes are those that came, newlines between tokens aside. NaN and infinity become null, with a note.
    """
    try:
        _validate(body)
    except (msgspec.DecodeError, RecursionError):
        return _object_bytes_slowly(body, notes, name)
    if not _is_utf8(body):
        return None
    return _one_line(body) if (body[:64].lstrip() or body.lstrip())[:1] == b"{" else None


def text_of(body: bytes) -> str:
    """Return any bytes as text; what is not UTF-8 becomes U+FFFD."""
    return body.decode("utf-8", "replace")


def inflated(body: bytes, content_encoding: str | None) -> bytes | None:
    """Return a body without its content encoding; None when it cannot be undone. A cut body gives what is there."""
    decoder = content_decoder(content_encoding)
    if decoder is None:
        return body
    plain = bytearray()
    for piece in decoder.feed(body):
        plain += piece
        if len(plain) > MAX_INFLATED_BYTES:
            return None
    return bytes(plain) if decoder.problem() is None else None


class RawText:
    """The text of a stream, both ends of it when it is long; memory is bounded."""

    __slots__ = ("_head", "_tail", "_tail_size", "size")

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.size = 0

    def add(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self.size += len(chunk)
        if self.size <= RAW_HALF_BYTES:
            self._head += chunk
            return
        self._tail.append(chunk)
        self._tail_size += len(chunk)
        while self._tail_size - len(self._tail[0]) >= RAW_HALF_BYTES:
            self._tail_size -= len(self._tail.popleft())

    def whole(self) -> bytes | None:
        """Return all bytes, or None when some in the middle were let go."""
        return bytes(self._head) + b"".join(self._tail) if len(self._head) + self._tail_size == self.size else None

    def text(self) -> str:
        """Return the text, saying how much of the middle is missing."""
        head, tail = text_of(bytes(self._head)), text_of(b"".join(self._tail))
        left_out = self.size - len(self._head) - self._tail_size
        return f"{head}\n[... {left_out} bytes left out ...]\n{tail}" if left_out else head + tail


def _object_bytes_slowly(body: bytes, notes: list[str], name: str) -> bytes | None:
    not_finite: list[str] = []
    try:
        value = json.loads(body, parse_constant=not_finite.append)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    if not not_finite and not body.startswith(codecs.BOM_UTF8) and _is_utf8(body) and b"\0" not in body:
        return _one_line(body)
    if not_finite:
        notes.append(f"{name}_not_finite")
    return encode(value)


def _one_line(body: bytes) -> bytes:
    """Valid JSON has newlines only between tokens, where a space means the same."""
    if b"\n" in body:
        body = body.replace(b"\n", b" ")
    if b"\r" in body:
        body = body.replace(b"\r", b" ")
    return body


def _is_utf8(body: bytes) -> bool:
    if body.isascii():
        return True
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(body), _PIECE):  # in pieces: a huge body must not exist once more as text
            decoder.decode(body[start : start + _PIECE])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True

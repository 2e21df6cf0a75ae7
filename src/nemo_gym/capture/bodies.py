"""Bodies as they go on a line: the original bytes when they are a JSON object, text otherwise.

Nothing here raises for what is in a body: a value that some JSON reader refuses (a lone surrogate escape, 10^30) is
kept as it was sent, and what is not JSON is kept as text.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections import deque
from typing import Any

import msgspec

from nemo_gym.dialects.decoding import content_decoder
from nemo_gym.records.codec import JsonObject, encode, integer_of

_validate = msgspec.json.Decoder(msgspec.Raw).decode
_PIECE = 1 << 20
MAX_INFLATED_BYTES = 1 << 28
"""How far a compressed body is followed: beyond it only the compressed bytes are kept."""
MAX_BODY_BYTES = 256 << 20
"""Of a body above this, both ends are kept, and the hash of the whole."""
RAW_HALF_BYTES = 1 << 20
"""How much is kept of each end of what is too long."""


def object_bytes(body: bytes, notes: list[str], *, name: str) -> bytes | None:
    """Return `body` as one line of JSON when it is a JSON object, else None.

    The bytes are those that came, newlines between tokens aside. NaN and infinity become null, with a note.
    """
    try:
        _validate(body)
    except (msgspec.DecodeError, RecursionError):
        return _object_bytes_slowly(body, notes, name)
    if not (body.isascii() or _is_utf8(body)):
        return None
    if not body.startswith(b"{") and (body[:64].lstrip() or body.lstrip())[:1] != b"{":
        return None
    return _one_line(body) if b"\n" in body or b"\r" in body else body


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


class KeptBytes:
    """The bytes of a body, whole up to `limit`; above it both ends, and the hash of the whole. Memory is bounded."""

    __slots__ = ("_chunks", "_hash", "_limit", "_tail", "_tail_size", "size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._tail: deque[bytes] | None = None
        self._tail_size = 0
        self._hash: Any = None
        self.size = 0

    def add(self, chunk: bytes) -> None:
        """Take the next bytes."""
        size = self.size = self.size + len(chunk)
        if self._tail is None:
            self._chunks.append(chunk)
            if size > self._limit:
                self._cut()
            return
        self._hash.update(chunk)
        self._keep(self._tail, chunk)

    @property
    def held(self) -> int:
        """How many bytes are in memory."""
        return self.size if self._tail is None else RAW_HALF_BYTES + self._tail_size

    def whole(self) -> bytes | None:
        """Return all bytes, or None when some in the middle were let go."""
        if self._tail is not None:
            return None
        chunks = self._chunks
        if len(chunks) > 1:
            chunks = self._chunks = [b"".join(chunks)]
        return chunks[0] if chunks else b""

    def text(self) -> str:
        """Return the text, saying how much of the middle is missing."""
        whole = self.whole()
        if whole is not None:
            return text_of(whole)
        assert self._tail is not None
        head, tail = text_of(self._chunks[0]), text_of(b"".join(self._tail))
        return f"{head}\n[... {self.size - self.held} bytes left out ...]\n{tail}"

    def truncation(self) -> JsonObject | None:
        """Return `{bytes, bytes_left_out, sha256}` of a body that is not kept whole, else None."""
        if self._tail is None:
            return None
        return {"bytes": self.size, "bytes_left_out": self.size - self.held, "sha256": self._hash.hexdigest()}

    def clear(self) -> None:
        """Let the bytes go."""
        self._chunks, self._tail, self._tail_size, self.size = [], None, 0, 0

    def _cut(self) -> None:
        self._hash = hashlib.sha256()
        for chunk in self._chunks:
            self._hash.update(chunk)
        body = memoryview(b"".join(self._chunks))
        self._chunks = [bytes(body[:RAW_HALF_BYTES])]
        self._tail = deque()
        self._keep(self._tail, bytes(body[max(RAW_HALF_BYTES, len(body) - RAW_HALF_BYTES) :]))

    def _keep(self, tail: deque[bytes], chunk: bytes) -> None:
        chunk = chunk[-RAW_HALF_BYTES:]
        tail.append(chunk)
        self._tail_size += len(chunk)
        while self._tail_size - len(tail[0]) >= RAW_HALF_BYTES:
            self._tail_size -= len(tail.popleft())


def _object_bytes_slowly(body: bytes, notes: list[str], name: str) -> bytes | None:
    not_finite: list[str] = []
    try:
        value = json.loads(body, parse_constant=not_finite.append, parse_int=integer_of)
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

"""Streaming content decoders for the copy of a body that is read; the bytes that pass are never touched.

Source: rule 1 of the framing rules. `gzip`, `deflate` (with and without the zlib header), `zstd`, and `br`; codings in
a list are undone last first.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator
from typing import Any, Protocol

_STEP = 1 << 16
"""Decoded bytes produced at a time, so that a small body cannot blow up memory at once."""

_SLICE = 256
"""Encoded bytes given at a time to a decoder that cannot be told how much to produce: a few MiB come of them."""

UNSUPPORTED = "content_encoding_unsupported"
BROKEN = "content_encoding_broken"


class Decoder(Protocol):
    """One coding: encoded chunks in, decoded pieces out; raises ValueError when the input is not that coding."""

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what `chunk` decodes to."""
        ...


class _Zlib:
    """gzip (several members too) and deflate."""

    def __init__(self, *, gzip: bool) -> None:
        self._wbits = 31 if gzip else 15
        self._raw_allowed = not gzip  # many servers send deflate without the zlib header
        self._inner = zlib.decompressobj(self._wbits)
        self._head = b""

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        waiting, piece = chunk, b""
        while waiting or len(piece) == _STEP:  # a full step may have left output inside the decoder
            if self._inner.eof:
                if not waiting:
                    return
                self._inner, self._raw_allowed = zlib.decompressobj(self._wbits), False
            try:
                piece = self._inner.decompress(waiting, _STEP)
            except zlib.error as error:
                if not self._raw_allowed:
                    raise ValueError(str(error)) from error
                self._raw_allowed, self._wbits = False, -15
                self._inner = zlib.decompressobj(self._wbits)
                waiting = self._head + waiting
                continue
            if self._raw_allowed:
                self._head = (self._head + waiting)[:2]  # the header is two bytes: they may come one at a time
                self._raw_allowed = len(self._head) < 2 and not piece
            waiting = self._inner.unused_data if self._inner.eof else self._inner.unconsumed_tail
            if piece:
                yield piece


class _Module:
    """A coding whose module gives an object with one call that takes a chunk and returns bytes."""

    def __init__(self, call: Any, errors: tuple[type[Exception], ...]) -> None:
        self._call, self._errors = call, errors

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        for at in range(0, len(chunk), _SLICE):
            try:
                piece = self._call(chunk[at : at + _SLICE])
            except self._errors as error:
                raise ValueError(str(error)) from error
            if piece:
                yield bytes(piece)


class _Brotli:
    """Brotli, whose decoder produces what it is allowed to and keeps the rest for the next call."""

    def __init__(self, inner: Any, error: type[Exception]) -> None:
        self._inner, self._error = inner, error

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        piece = waiting = chunk
        while piece or not self._inner.can_accept_more_data():
            try:
                piece = self._inner.process(waiting, output_buffer_limit=_STEP)
            except self._error as error:
                raise ValueError(str(error)) from error
            waiting = b""
            if piece:
                yield piece


def _zstd() -> Decoder:
    # Imported when such a stream comes: the module is only needed for them, and import time is everybody's.
    import zstandard

    inner = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj(read_across_frames=True)
    return _Module(inner.decompress, (zstandard.ZstdError,))


def _brotli() -> Decoder | None:
    for name in ("brotli", "brotlicffi"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        inner = module.Decompressor()
        if hasattr(inner, "can_accept_more_data"):
            return _Brotli(inner, module.error)
        return _Module(getattr(inner, "process", None) or inner.decompress, (module.error,))
    return None


class ContentDecoder:
    """All codings of one body, undone in order.

    Once something went wrong nothing more comes out, and `problem` names it.
    """

    __slots__ = ("_decoders", "_problem")

    def __init__(self, codings: list[str]) -> None:
        self._problem: str | None = None
        self._decoders: list[Decoder] = []
        for coding in reversed(codings):
            decoder = _make(coding)
            if decoder is None:
                self._problem = UNSUPPORTED
                break
            self._decoders.append(decoder)

    def problem(self) -> str | None:
        """Return the name of what went wrong, or None."""
        return self._problem

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the decoded pieces of `chunk`; a broken stream stops."""
        if self._problem is not None:
            return
        try:
            yield from self._through(chunk, 0)
        except ValueError:
            self._problem = BROKEN

    def _through(self, chunk: bytes, stage: int) -> Iterator[bytes]:
        if stage == len(self._decoders):
            yield chunk
            return
        for piece in self._decoders[stage].pieces(chunk):
            yield from self._through(piece, stage + 1)


def _make(coding: str) -> Decoder | None:
    if coding in ("gzip", "x-gzip"):
        return _Zlib(gzip=True)
    if coding == "deflate":
        return _Zlib(gzip=False)
    if coding in ("zstd", "x-zstd"):
        return _zstd()
    return _brotli() if coding == "br" else None


def content_decoder(content_encoding: str | None) -> ContentDecoder | None:
    """Return the decoder for a `Content-Encoding` value, or None when the body is sent as it is."""
    codings = [part.strip().lower() for part in (content_encoding or "").split(",")]
    codings = [part for part in codings if part not in ("", "identity")]
    return ContentDecoder(codings) if codings else None

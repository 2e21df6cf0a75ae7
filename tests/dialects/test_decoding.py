"""Content encodings of the copy (rule 1 of 3.1, acceptance 6)."""

from __future__ import annotations

import gzip
import os
import sys
import zlib

import pytest
import zstandard

from nemo_gym.dialects import make_accumulator
from nemo_gym.dialects.decoding import content_decoder

BODY = os.urandom(3_000) + b"x" * 300_000 + os.urandom(10)


def raw_deflate(body: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(body) + compressor.flush()


ENCODED = {
    "gzip": gzip.compress(BODY),
    "x-gzip": gzip.compress(BODY[:1000]) + gzip.compress(BODY[1000:]),
    "deflate": zlib.compress(BODY),
    "Deflate": raw_deflate(BODY),
    "zstd": zstandard.compress(BODY),
    " ZSTD ": zstandard.compress(BODY[:500]) + zstandard.compress(BODY[500:]),
    "gzip, identity, zstd": zstandard.compress(gzip.compress(BODY)),
}


try:
    import brotli
except ImportError:  # an environment that was made before it was a dependency
    brotli = None
else:
    ENCODED |= {"br": brotli.compress(BODY), "gzip, BR": brotli.compress(gzip.compress(BODY))}


@pytest.mark.parametrize("encoding", ENCODED)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_any_cut_decodes_to_the_body(encoding: str, size: int) -> None:
    decoder = content_decoder(encoding)
    assert decoder is not None
    encoded = ENCODED[encoding]
    out = [piece for at in range(0, len(encoded), size) for piece in decoder.feed(encoded[at : at + size])]
    assert b"".join(out) == BODY
    assert decoder.problem() is None
    assert max(map(len, out)) <= 1 << 19


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "br"])
def test_a_small_body_that_decodes_to_a_huge_one_comes_in_bounded_pieces(encoding: str) -> None:
    if encoding == "br" and brotli is None:
        pytest.skip("no Brotli module is installed")
    compress = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstandard.compress}
    if brotli is not None:
        compress["br"] = brotli.compress
    decoder = content_decoder(encoding)
    assert decoder is not None
    sizes = [len(piece) for piece in decoder.feed(compress[encoding](bytes(64 << 20)))]
    assert sum(sizes) == 64 << 20
    assert max(sizes) <= 8 << 20


@pytest.mark.parametrize("encoding", [None, "", "identity", " , identity"])
def test_plain_bodies_need_no_decoder(encoding: str | None) -> None:
    assert content_decoder(encoding) is None


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_a_body_that_is_not_what_it_says_is_a_problem_and_never_an_exception(encoding: str) -> None:
    accumulator = make_accumulator("chat", content_encoding=encoding)
    accumulator.feed(b"data: {}\n\n")
    accumulator.feed(b"data: [DONE]\n\n")
    accumulator.finish()
    assert accumulator.problems == ["content_encoding_broken"]
    assert (accumulator.response, accumulator.error_category) == (None, "capture_parse_error")


def test_an_unknown_encoding_is_a_problem() -> None:
    accumulator = make_accumulator("chat", content_encoding="snappy")
    accumulator.feed(b"xx")
    accumulator.finish()
    assert accumulator.problems == ["content_encoding_unsupported"]


def test_brotli_without_a_module_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("brotli", "brotlicffi"):
        monkeypatch.setitem(sys.modules, name, None)
    assert make_accumulator("chat", content_encoding="br").problems == ["content_encoding_unsupported"]


def test_events_come_out_as_soon_as_their_bytes_do() -> None:
    compressor = zlib.compressobj(wbits=31)
    accumulator = make_accumulator("chat", content_encoding="gzip")
    event = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
    accumulator.feed(compressor.compress(event) + compressor.flush(zlib.Z_SYNC_FLUSH))
    assert accumulator.first_content_seen

"""The usage chunk that only the server asked for is taken out of a stream, and nothing else, however it is cut."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request

from nemo_gym.capture.execution import FACTS_SCOPE_KEY
from nemo_gym.servers.stream_conversion import without_usage_chunk

KEPT = [
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"\\n\\n \xe2\x80\xa8"}}],"usage":null}',
    b": a comment",
    b'data: {"choices":[],"prompt_filter_results":[]}',
    b'data: {"choices":[{"index":0,"delta":{"content":"\\"usage\\""},"finish_reason":"stop"}],"usage":{"a":1}}',
    b'data: {"error":{"message":"m"},"usage":{"a":1}}',
]
COUNTS = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":5}}'
LAST = b"data: [DONE]"


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
async def test_only_the_chunk_of_counts_is_taken_out(end: bytes, size: int) -> None:
    body = b"".join(block + end for block in [*KEPT, COUNTS, LAST])

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(body), size):
            yield body[at : at + size]

    facts: dict[str, object] = {}
    request = Request({"type": "http", FACTS_SCOPE_KEY: facts})
    passed = [piece async for piece in without_usage_chunk(chunks(), request)]
    assert b"".join(passed) == b"".join(block + end for block in [*KEPT, LAST])
    assert facts == {"usage": {"prompt_tokens": 5}}
    if size == 1:
        assert all(piece.endswith(end) for piece in passed), "nothing waits that could be used"

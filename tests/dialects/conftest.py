"""What the tests of this folder share: run a stream that is given as its events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from nemo_gym.dialects import StreamAccumulator, make_accumulator

Event = dict[str, Any] | str | bytes
Feed = Callable[..., StreamAccumulator]


def sse(*events: Event) -> bytes:
    """Objects become `data:` lines; a string is the data itself; bytes are the block as it is."""
    blocks = []
    for event in events:
        if isinstance(event, bytes):
            blocks.append(event)
        else:
            blocks.append(b"data: " + (orjson.dumps(event) if isinstance(event, dict) else event.encode()) + b"\n\n")
    return b"".join(blocks)


@pytest.fixture
def feed() -> Feed:
    def run(dialect: str, *events: Event, encoding: str | None = None) -> StreamAccumulator:
        accumulator = make_accumulator(dialect, content_encoding=encoding)  # type: ignore[arg-type]
        accumulator.feed(sse(*events))
        accumulator.finish()
        return accumulator

    return run

"""Random streams and random capture files: nothing raises, and the work is linear in the input.

`NEMO_GYM_FUZZ_SECONDS` says for how long; CI gives it a minute.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from nemo_gym.capture import CaptureStore, read_available_model_call_records
from nemo_gym.dialects import make_accumulator
from nemo_gym.dialects.names import DIALECTS
from nemo_gym.records import codec

SECONDS = float(os.environ.get("NEMO_GYM_FUZZ_SECONDS", "1"))
CASES = Path(__file__).parents[1] / "cases" / "public-bugs"
SEEDS = [path.read_bytes() for path in sorted(CASES.glob("*.sse"))]
LINES = [path.read_bytes() for path in sorted(CASES.glob("*.jsonl"))]
SPLICES = [
    b"\r",
    b"\n",
    b"\n\n",
    b"data:",
    b"data: [DONE]",
    b"event: error",
    b"\xff",
    b"\xef\xbb\xbf",
    b"{",
    b"}",
    b"null",
]
SPLICES += [
    b"1e999",
    b"NaN",
    b'"\\ud800"',
    b"[" * 200,
    b'"index":null',
    b'"index":9',
    b"\0",
    b'"type":7',
    b'"usage":[]',
]


def mutated(rng: random.Random, seeds: list[bytes]) -> bytes:
    """A seed with pieces cut, repeated, moved and spliced in."""
    body = bytearray(rng.choice(seeds))
    for _ in range(rng.randrange(1, 9)):
        at, to = sorted((rng.randrange(len(body) + 1), rng.randrange(len(body) + 1)))
        kind = rng.randrange(5)
        if kind == 0:
            del body[at : at + rng.randrange(20)]
        elif kind == 1:
            body[at:at] = rng.choice(SPLICES)
        elif kind == 2:
            body[at:at] = body[at:to][:500]
        elif kind == 3 and body:
            body[at % len(body)] = rng.randrange(256)
        else:
            body[at:at] = rng.choice(seeds)[:300]
    return bytes(body)


def calls_made(work: object, *arguments: object) -> int:
    """How many Python functions `work` calls: a measure of work that no other process disturbs."""
    count = 0

    def count_call(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_call)
    try:
        work(*arguments)  # type: ignore[operator]
    finally:
        sys.setprofile(None)
    return count


def accumulate(dialect: str, body: bytes, step: int) -> object:
    accumulator = make_accumulator(dialect)  # type: ignore[arg-type]
    for start in range(0, len(body), step):
        accumulator.feed(body[start : start + step])
    accumulator.finish()
    codec.encode(accumulator.response)
    return accumulator.terminal


def test_any_stream_is_taken_without_an_exception() -> None:
    rng = random.Random(time.time_ns() if SECONDS > 1 else 5)
    end = time.monotonic() + SECONDS / 2
    while time.monotonic() < end:
        body = mutated(rng, SEEDS)
        for dialect in DIALECTS:
            assert accumulate(dialect, body, rng.choice((1, 7, 4096))) in (
                None, "complete", "clean_eof", "incomplete", "error",
            )  # fmt: skip


def test_any_capture_file_is_read_without_an_exception(store: CaptureStore) -> None:
    rng = random.Random(time.time_ns() if SECONDS > 1 else 6)
    end = time.monotonic() + SECONDS / 2
    while time.monotonic() < end:
        store.path_for("0-0").write_bytes(mutated(rng, LINES))
        records, damaged = read_available_model_call_records(store, "0-0")
        assert damaged >= 0
        assert all(record.call_index >= 0 for record in records)


def test_the_work_is_linear_in_the_stream() -> None:
    """Twice the input is at most about twice the calls, however the bytes come."""
    rng = random.Random(7)
    for dialect in DIALECTS:
        for step in (1, 64, 1 << 20):
            body = mutated(rng, SEEDS) * 4
            once = calls_made(accumulate, dialect, body, step)
            assert calls_made(accumulate, dialect, body * 4, step) <= 4.6 * once + 200

"""Evaluates ranges of lines, here or as a process of its own that calls `main`.

A process of its own is started plainly, not forked: the caller may hold threads, and its main module is not run again.
It reads its work from stdin as one JSON object and writes one JSON line per outcome, then per range `[lines, records]`.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator
from typing import NamedTuple

import jiter
import msgspec

from nemo_gym.health.evaluate import Outcome, evaluate_line
from nemo_gym.health.reading import FileRange, is_blank, iter_lines
from nemo_gym.records import codec


class RangeEnd(NamedTuple):
    """How many physical lines, and how many records among them, a range held."""

    lines: int
    records: int


class Work(msgspec.Struct):
    """What one process does."""

    ranges: list[FileRange]
    ignored: list[str]


def evaluate_range(part: FileRange, ignored: Container[str]) -> Iterator[Outcome | RangeEnd]:
    """Yield the outcome of each line that is not blank, then the end of the range."""
    lines = records = 0
    for line in iter_lines(part):
        if line is None or not is_blank(line):
            outcome = evaluate_line(line, ignored)
            outcome.line, outcome.ordinal = lines, records
            yield outcome
            records += 1
        lines += 1
    yield RangeEnd(lines, records)


def encode_work(work: Work) -> bytes:
    """Return work as the worker process reads it."""
    return msgspec.json.encode(work, enc_hook=str)


def decode_result(line: bytes) -> Outcome | RangeEnd:
    """Return what one line of a worker's output says. Raises ValueError for anything else."""
    value = jiter.from_json(line)  # which keeps integers beyond 64 bits
    kind: type[Outcome | RangeEnd] = RangeEnd if isinstance(value, list) else Outcome
    return msgspec.convert(value, kind)


def main() -> None:
    """Do the work given on stdin."""
    work = msgspec.json.decode(sys.stdin.buffer.read(), type=Work, dec_hook=lambda kind, value: kind(value))
    out = sys.stdout.buffer
    for part in work.ranges:
        for result in evaluate_range(part, frozenset(work.ignored)):
            out.write(codec.encode_line(msgspec.to_builtins(result)))
    out.flush()


__all__ = ["RangeEnd", "Work", "decode_result", "encode_work", "evaluate_range"]

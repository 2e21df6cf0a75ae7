"""What the codec writes, whatever a value holds, and that it reads it back."""

from __future__ import annotations

import datetime
import enum
import json
import math
import tracemalloc
from typing import Any

import pytest

from nemo_gym.records.codec import decode, encode, encode_line, encode_pretty


class Colour(enum.Enum):
    RED = "red"


class Name(str):
    __slots__ = ()


VALUES: list[tuple[Any, Any]] = [
    ({"a": [1, 2.5, None, True, "é"]}, {"a": [1, 2.5, None, True, "é"]}),
    ({2: "int", None: "none", True: "bool", 1.5: "x"}, {"2": "int", "null": "none", "true": "bool", "1.5": "x"}),
    ({"deep": [{2: {"x": {3: 4}}}]}, {"deep": [{"2": {"x": {"3": 4}}}]}),
    ({Name("a"): Name("b")}, {"a": "b"}),
    ({Colour.RED: Colour.RED}, {"red": "red"}),
    ({"when": datetime.date(2026, 1, 2)}, {"when": "2026-01-02"}),
    ({"big": 10**30, 7: -(10**40)}, {"big": 10**30, "7": -(10**40)}),
    ({"half": "\ud83d", 1: "x"}, {"half": "\ud83d", "1": "x"}),
    ({"nan": math.nan, 2: [math.inf]}, {"nan": None, "2": [None]}),
]


@pytest.mark.parametrize(("value", "expected"), VALUES)
def test_a_value_is_written_once_and_read_back(value: Any, expected: Any) -> None:
    text = encode(value)
    assert b"\n" not in text
    assert encode_line(value) == text + b"\n"
    assert decode(text) == decode(encode_pretty(value)) == expected
    assert json.loads(text) == expected


@pytest.mark.parametrize("write", [encode, encode_line])
@pytest.mark.parametrize("size", [10, 1000, 3000])
def test_what_waits_takes_no_more_memory_than_it_is_long(write: Any, size: int) -> None:
    value = {"text": "x" * size}
    write(value)
    tracemalloc.start()
    try:
        waiting = [write(value) for _ in range(500)]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 500 * (len(waiting[0]) + 100)

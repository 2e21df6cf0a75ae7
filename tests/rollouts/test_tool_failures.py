"""Which tools failed in a run: one line of its summary, only from what its records say."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.rollouts.tool_failures import NAMES_COUNTED, ToolFailures


def record(*tools: tuple[Any, Any, Any]) -> dict[str, Any]:
    entries = [{"tool_name": name, "count": count, "failures": failures} for name, count, failures in tools]
    return {"ng_perf_detail": {"tools": entries}}


def line_of(*records: dict[str, Any]) -> str | None:
    failures = ToolFailures()
    assert list(failures.counting(records)) == list(records)
    return failures.line()


def test_failed_calls_are_told_by_tool_and_rollouts() -> None:
    records = [record(("look", 3, 2), ("go", 1, 0)), record(("look", 1, 0)), record(("go", 2, 1), (None, 1, 1))]
    assert line_of(*records) == "tool calls failed: 4 of 8, in 2 rollouts: look 2, go 1, without a name 1"
    assert line_of(record(("look", 1, 1))) == "tool calls failed: 1 of 1, in 1 rollout: look 1"


@pytest.mark.parametrize(
    "odd",
    [
        {},
        record(),
        record(("look", 3, 0)),
        {"ng_perf_detail": None},
        {"ng_perf_detail": {"tools": "look"}},
        {"ng_perf_detail": {"tools": [None, 7, {}]}},
        record(("look", None, None), ("look", -1, -1), ("look", True, True), ("look", "1", "1")),
    ],
)
def test_nothing_is_said_where_nothing_is_known_to_have_failed(odd: dict[str, Any]) -> None:
    assert line_of(odd) is None


def test_names_that_a_model_made_up_neither_fill_the_memory_nor_the_terminal() -> None:
    many = [record((f"tool-{number}", 1, 1)) for number in range(NAMES_COUNTED * 2)]
    line = line_of(record(("real", 9, 9)), *many)
    assert line is not None
    assert line.startswith(f"tool calls failed: {NAMES_COUNTED * 2 + 9} of")
    assert "real 9, " in line
    assert line.endswith(f"others {NAMES_COUNTED * 2 - 7}")
    counted = ToolFailures()
    for each in many:
        counted.add(each)
    assert len(counted._of_name) == NAMES_COUNTED
    shown = line_of(record(("\x1b[2J\n" + "x" * 500, 1, 1)))
    assert shown is not None
    assert shown.isprintable()
    assert len(shown) < 160

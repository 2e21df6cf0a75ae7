"""What a result holds is on disk: in order, complete, the same each time, and whatever becomes of the reports."""

from __future__ import annotations

import json
import sqlite3
import tracemalloc
from pathlib import Path

import pytest
from health_records import record, trajectory, turn, write_lines

from nemo_gym.health import run_health_checks
from nemo_gym.health.spool import Spool, SpoolError


def _peak(path: Path) -> int:
    """Return the most bytes that Python objects took while a file was checked and its result gone through."""
    tracemalloc.start()
    try:
        result = run_health_checks(path, workers=1)
        assert sum(1 for _ in result.rollouts) == len(result.rollouts) == len(result.tasks)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_records_tasks_or_copies(tmp_path: Path) -> None:
    few, many = (
        write_lines(tmp_path / f"{count}.jsonl", *(record(number, "é" * 60) for number in range(count)))
        for count in (300, 1500)
    )
    _peak(few)  # whatever is made once
    assert _peak(many) - _peak(few) < 100_000


def test_a_result_is_a_sequence_and_a_mapping(tmp_path: Path) -> None:
    hollow = record(1, 0, ng_trajectory=trajectory(turns=[turn(1, answer=""), turn(2)]))
    result = run_health_checks(write_lines(tmp_path / "r.jsonl", record(2, 1), record(2, 0), hollow, record(2, 1)))
    rollouts = result.rollouts
    assert [(digest.task_index, digest.rollout_index) for digest in rollouts] == [(1, 0), (2, 0), (2, 1), (2, 1)]
    assert [rollouts[at] for at in range(-4, 4)] == list(rollouts) * 2
    assert rollouts[1:3] == list(rollouts)[1:3] == [rollouts[1], rollouts[2]]
    assert rollouts == list(rollouts)
    assert rollouts != list(rollouts)[:-1]
    assert rollouts[3].findings[0].check == "rollout_duplicate_identity"
    with pytest.raises(IndexError):
        rollouts[4]
    assert list(result.tasks) == ["1", "2"]
    assert dict(result.tasks) == dict(result.tasks.items()) == result.summary["tasks"]
    with pytest.raises(KeyError):
        result.tasks["3"]


def test_a_result_stays_as_it_is_when_its_reports_are_replaced(tmp_path: Path) -> None:
    first = run_health_checks(write_lines(tmp_path / "a.jsonl", record(1, 0)))
    second = run_health_checks(write_lines(tmp_path / "b.jsonl", record(1, 0), b"{cut"))
    assert first.summary_path == second.summary_path
    assert (len(first.rollouts), list(first.summary["tasks"])) == (1, ["1"])
    assert json.loads(second.summary_path.read_text()) == second.summary


def test_a_number_and_the_text_of_it_are_two_tasks(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "r.jsonl", record("1", 0), record(1, 0), record("1", 1), record("2", 0))
    tasks = run_health_checks(path).summary["tasks"]
    assert {name: task["repeats"] for name, task in tasks.items()} == {"1": 1, '"1"': 2, "2": 1}


def test_a_disk_that_refuses_is_an_error_that_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(Spool):
        def __init__(self) -> None:
            super().__init__()
            self._db.execute("PRAGMA max_page_count = 8")

    monkeypatch.setattr("nemo_gym.health.runner.Spool", Small)
    path = write_lines(tmp_path / "r.jsonl", *(record(number) for number in range(200)))
    with pytest.raises(SpoolError, match="full; it is in `") as caught:
        run_health_checks(path)
    assert isinstance(caught.value.__cause__, sqlite3.Error)
    assert [file.name for file in tmp_path.iterdir()] == ["r.jsonl"]

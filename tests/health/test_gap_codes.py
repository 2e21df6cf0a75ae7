"""Which gap codes a run's records carry: counted in records, whatever the gaps look like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from health_records import record, trajectory, without, write_lines

from nemo_gym.cli.main import run
from nemo_gym.health import explain_gaps, run_health_checks
from nemo_gym.health.gap_codes import LONGEST_CODE, OTHER, UNKNOWN_KEPT
from nemo_gym.health.report import GAPS_SHOWN
from nemo_gym.records.gaps import GAP_REGISTRY


def gapped(task: int, *codes: Any, **changes: Any) -> dict[str, Any]:
    """A record whose trajectory has these codes as gaps."""
    return record(task, 0, ng_trajectory=trajectory(gaps=[{"code": code} for code in codes]), **changes)


def bare(task: int, *, capture: Any = None, observations: Any = None) -> dict[str, Any]:
    """A record without trajectory; the arguments are the `gaps` of its two parts."""
    parts = {"ng_model_call_capture": {"gaps": capture}, "ng_agent_observations": {"gaps": observations}}
    return without(record(task, 0, **parts), "ng_trajectory")


def counts_of(path: Path, *lines: Any, **options: Any) -> dict[str, int]:
    result = run_health_checks(write_lines(path / "rollouts.jsonl", *lines), **options)
    counts = json.loads(result.summary_path.read_text())["run"]["gap_counts"]
    assert counts == result.run["gap_counts"]
    assert list(counts) == sorted(counts)
    return dict(counts)


def test_a_code_counts_once_for_each_rollout_that_has_it(tmp_path: Path) -> None:
    line = "agent_observation_line_invalid"
    found = counts_of(tmp_path, gapped(0, line, line, "turns_unavailable"), gapped(1, line), gapped(2, "mine"), b"{bad")
    assert found == {line: 2, "mine": 1, "turns_unavailable": 1}
    assert counts_of(tmp_path, record(0, 0)) == {}


def test_without_a_trajectory_the_gaps_are_those_of_capture_and_observations(tmp_path: Path) -> None:
    gaps = {"capture": [{"code": "a"}, {"code": "b"}], "observations": [{"code": "b"}, {"code": "c"}]}
    assert counts_of(tmp_path, bare(0, **gaps), bare(1, capture=[{"code": "a"}])) == {"a": 2, "b": 1, "c": 1}
    with_trajectory = gapped(0, "t", ng_agent_observations={"gaps": [{"code": "b"}]})
    assert counts_of(tmp_path, with_trajectory) == {"t": 1}, "a trajectory has what its sources had"


def test_a_trajectory_that_cannot_be_used_hides_no_gap(tmp_path: Path) -> None:
    broken = record(0, 0, ng_trajectory=trajectory(gaps=[{"code": "t"}, {"code": 7}], turns="none"))
    broken["ng_agent_observations"] = {"gaps": [{"code": "b"}]}
    assert counts_of(tmp_path, broken) == {"b": 1, "t": 1}


@pytest.mark.parametrize(
    "gaps",
    ["text", 7, True, {"code": "x"}, [None, 3, "x", ["x"], {}, {"code": None}, {"code": 5}, {"code": ["x"]}, [[]]]],
)
@pytest.mark.parametrize("place", ["ng_trajectory", "ng_model_call_capture", "ng_agent_observations"])
def test_what_is_no_gap_with_a_code_is_not_counted_and_stops_nothing(tmp_path: Path, gaps: Any, place: str) -> None:
    hostile = without(record(0, 0), "ng_trajectory") | {place: {"gaps": gaps}}
    odd = without(record(2, 0), "ng_trajectory") | {place: gaps}
    assert counts_of(tmp_path, hostile, gapped(1, "mine", ""), odd) == {"mine": 1}


def test_distinct_unknown_codes_are_limited_and_known_ones_never(tmp_path: Path) -> None:
    codes = [f"code-{number:05}" for number in range(10_000)]
    found = counts_of(tmp_path, gapped(0, *codes, *GAP_REGISTRY))
    assert len(found) == UNKNOWN_KEPT + 1 + len(GAP_REGISTRY)
    assert found[OTHER] == found["turns_unavailable"] == found["code-00000"] == 1
    spread = counts_of(tmp_path, *(gapped(task, f"code-{task}", "turns_unavailable") for task in range(150)))
    assert len(spread) == UNKNOWN_KEPT + 2
    assert spread[OTHER] == 150 - UNKNOWN_KEPT
    assert spread["turns_unavailable"] == 150
    assert counts_of(tmp_path, gapped(0, OTHER, *codes)) == counts_of(tmp_path, gapped(0, *codes))


def test_a_long_code_is_cut(tmp_path: Path) -> None:
    [code] = counts_of(tmp_path, gapped(0, "x" * 1_000_000, "x" * 1_000_001))
    assert len(code) == LONGEST_CODE
    [code] = counts_of(tmp_path, gapped(0, "y" * LONGEST_CODE))
    assert code == "y" * LONGEST_CODE


def test_counts_are_the_same_bytes_with_one_and_two_workers_over_shards(tmp_path: Path) -> None:
    lines = [gapped(task, f"code-{task}", f"late-{task % 7}", "turns_unavailable", "\ud800é") for task in range(120)]
    lines += [bare(task, observations=[{"code": "resolution_unavailable"}]) for task in range(200, 205)]
    first = write_lines(tmp_path / "rollouts-a.jsonl", *lines)
    second = write_lines(tmp_path / "rollouts-b.jsonl", *lines[::-1], record(0, 0), record(0, 0))
    summaries = []
    for workers in (1, 2):
        folder = tmp_path / f"out-{workers}"
        result = run_health_checks([first, second], output_dir=folder, workers=workers, min_bytes_per_worker=1)
        summaries.append((result.summary_path.read_bytes(), result.rollouts, explain_gaps(result)))
    assert summaries[0] == summaries[1]
    counts = json.loads(summaries[0][0])["run"]["gap_counts"]
    assert counts["turns_unavailable"] == 240
    assert counts["resolution_unavailable"] == 10
    assert counts["code-0"] == 2
    assert counts[OTHER] > 0


def test_the_command_prints_the_counts_after_the_health_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(
        tmp_path / "rollouts.jsonl",
        gapped(0, "zz_mine", "resolution_unavailable", "turns_unavailable"),
        gapped(1, "agent_observation_line_invalid", "turns_unavailable"),
    )
    assert run(["eval", "health-check", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Rollout health: 2 checked")
    assert lines[-1] == (
        "gaps: agent_observation_line_invalid 1, turns_unavailable 2, resolution_unavailable 1, zz_mine 1 "
        "(docs/gaps.md says what each means and what to do)"
    )
    write_lines(tmp_path / "rollouts.jsonl", record(0, 0))
    assert run(["eval", "health-check", str(tmp_path)]) == 0
    assert "gaps:" not in capsys.readouterr().out


def test_a_code_cannot_forge_output(tmp_path: Path) -> None:
    codes = ["a\nRollout health: 9 checked", "\x1b[2J", "x 5, turns_unavailable", "\x7f\x9b", "é\u202e", "plain-1"]
    result = run_health_checks(write_lines(tmp_path / "rollouts.jsonl", gapped(0, *codes)))
    [line] = explain_gaps(result)
    assert line.isascii()
    assert line.isprintable()
    assert '"x 5, turns_unavailable" 1' in line
    assert ", plain-1 1" in line


def test_the_line_names_so_many_codes(tmp_path: Path) -> None:
    codes = [f"code-{number:03}" for number in range(GAPS_SHOWN + 5)]
    [line] = explain_gaps(run_health_checks(write_lines(tmp_path / "rollouts.jsonl", gapped(0, *codes))))
    assert f"{codes[GAPS_SHOWN - 1]} 1, and 5 more codes in the summary (docs" in line
    assert codes[GAPS_SHOWN] not in line

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from health_records import record, trajectory, turn, without, write_lines

from nemo_gym.health import format_health_report, junit_report, run_health_checks, should_fail
from nemo_gym.health.types import HealthCheckResult


def _result(tmp_path: Path, *lines: object, ignored: str = "") -> HealthCheckResult:
    return run_health_checks(write_lines(tmp_path / "rollouts.jsonl", *lines), ignored_checks=ignored)


HOLLOW = record(1, 0, ng_trajectory=trajectory(turns=[turn(1, answer=""), turn(2)]))
UNOBSERVED = without(record(2, 0), "ng_trajectory")


def test_the_report_is_two_lines_of_counts_and_path(tmp_path: Path) -> None:
    result = _result(tmp_path, record(0, 0), HOLLOW, UNOBSERVED)
    assert format_health_report(result).splitlines() == [
        "Rollout health: 3 checked, 1 healthy, 1 unhealthy, 1 unobserved",
        str(tmp_path / "quality_summary.json"),
    ]


def test_the_report_names_ignored_checks(tmp_path: Path) -> None:
    result = _result(tmp_path, record(0, 0), ignored="model_call_failed,agent_turn_hollow")
    assert "(ignored: agent_turn_hollow, model_call_failed)" in format_health_report(result)


def test_fail_on_is_a_ladder(tmp_path: Path) -> None:
    for lines, unhealthy, unobserved in (
        ([record(0, 0)], False, False),
        ([record(0, 0), UNOBSERVED], False, True),
        ([record(0, 0), HOLLOW], True, True),
        ([], False, False),
    ):
        result = _result(tmp_path, *lines)
        assert should_fail(result, "unhealthy") is unhealthy
        assert should_fail(result, "unobserved") is unobserved
        assert should_fail(result, None) is False


def test_junit_has_a_case_per_record_and_task_and_survives_any_text(tmp_path: Path) -> None:
    odd = record(3, 0, _ng_rollout_id='a<b>"&\x00\ud800')
    text = "".join(junit_report(_result(tmp_path, record(0, 0), HOLLOW, UNOBSERVED, b"bad", odd)))
    root = ElementTree.fromstring(text.encode())
    rollouts, tasks = root.findall("testsuite")
    assert rollouts.attrib == {"name": "rollouts", "tests": "5", "failures": "2", "errors": "0", "skipped": "1"}
    assert len(tasks) == 5
    failed = [case for case in rollouts if case.find("failure") is not None]
    assert {case.find("failure").attrib["message"] for case in failed} == {"agent_turn_hollow", "record_unreadable"}  # type: ignore[union-attr]
    skipped = next(case for case in rollouts if case.find("skipped") is not None)
    assert skipped.find("skipped").attrib["message"].startswith("unobserved: rollout_missing_agent_turns")  # type: ignore[union-attr]

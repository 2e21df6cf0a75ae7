from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from health_records import record, trajectory, write_lines

from nemo_gym import reward_profile, rollout_health
from nemo_gym.health import CHECK_REGISTRY, ROLLOUT_CHECKS, TASK_CHECKS, CheckInput, CheckScope, evaluate_line
from nemo_gym.health.evaluate import Outcome
from nemo_gym.health.meanings import CHECK_MEANINGS
from nemo_gym.records.gaps import GAP_REGISTRY


def test_the_registry_has_the_fourteen_ids_in_evaluation_order() -> None:
    assert list(CHECK_REGISTRY) == [
        "check_execution_error",
        "record_unreadable",
        "rollout_duplicate_identity",
        "rollout_missing_agent_turns",
        "rollout_ended_on_failed_model_call",
        "agent_turn_hollow",
        "model_call_zero_completion_tokens",
        "model_call_missing_token_counts",
        "trajectory_capture_mismatch",
        "model_call_failed",
        "rollout_token_count_mismatch",
        "model_call_runaway_generation",
        "task_consistently_unhealthy",
        "task_no_successful_model_calls",
    ]
    in_order = [check for check in CHECK_REGISTRY if check in ROLLOUT_CHECKS]
    assert list(ROLLOUT_CHECKS) == in_order
    assert {check for check, spec in CHECK_REGISTRY.items() if spec.evaluation_scope is CheckScope.TASK} == set(
        TASK_CHECKS
    )


def test_specs_are_frozen_and_say_what_they_read() -> None:
    spec = CHECK_REGISTRY["agent_turn_hollow"]
    assert spec.reads == frozenset({CheckInput.AGENT_TURNS})
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.id = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        CHECK_REGISTRY["new"] = spec  # type: ignore[index]


@pytest.mark.parametrize("door", [rollout_health, reward_profile], ids=lambda door: door.__name__)
def test_the_doors_export_what_they_list(door: object) -> None:
    names = door.__all__  # type: ignore[attr-defined]
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert all(hasattr(door, name) for name in names)


def test_the_door_writes_the_report_or_the_summary_to_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(tmp_path / "rollouts.jsonl", record())
    rollout_health.health_check_run_dir(tmp_path)
    assert capsys.readouterr().out.startswith("Rollout health: 1 checked, 1 healthy")
    result = rollout_health.health_check_run_dir(tmp_path, json_output=True)
    out = capsys.readouterr().out
    assert json.loads(out) == result.summary
    assert out.count("\n") == 1


@pytest.mark.parametrize("code", list(GAP_REGISTRY))
def test_a_gap_does_to_the_checks_what_its_page_says(code: str) -> None:
    """`blocked_by` is what people read; the checks themselves decide."""
    healthy = evaluate(record())
    assert (healthy.findings, healthy.unobserved, healthy.policy_calls_observed) == ([], [], True)
    outcome = evaluate(record(ng_trajectory=trajectory(gaps=[{"code": code, "invocation_id": "root", "detail": "c9"}])))
    blocked = {check for check, spec in CHECK_REGISTRY.items() if code in spec.blocking_gaps}
    assert set(outcome.unobserved) == blocked - set(TASK_CHECKS)
    assert outcome.policy_calls_observed is ("task_no_successful_model_calls" not in blocked)
    found = {finding.check for finding in outcome.findings}
    assert found == ({"trajectory_capture_mismatch"} if GAP_REGISTRY[code].contradicts else set())


def evaluate(line: dict[str, Any]) -> Outcome:
    return evaluate_line(json.dumps(line).encode())


def test_every_check_says_what_people_need_to_know() -> None:
    assert list(CHECK_MEANINGS) == list(CHECK_REGISTRY)
    for meaning in CHECK_MEANINGS.values():
        assert all(text.endswith(".") for text in (meaning.looks_at, meaning.finds, meaning.remedy))
        assert meaning.passes
        assert meaning.unobserved
        assert all({**meaning.detail, **meaning.locator}.values())

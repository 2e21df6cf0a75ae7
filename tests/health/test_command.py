"""`gym eval health-check` as a build server calls it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from health_records import record, without, write_lines

from nemo_gym.cli.main import run


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of two shards that hold the same task and rollout, as two training steps do; one is unhealthy."""
    write_lines(tmp_path / "rollouts-step1.jsonl", record())
    write_lines(tmp_path / "rollouts-step2.jsonl", record(response={"usage": {"input_tokens": 1, "output_tokens": 1}}))
    write_lines(tmp_path / "rollouts-step2_failures.jsonl", {"_ng_task_index": 9})
    return tmp_path


def check(folder: Path, *words: str) -> int:
    return run(["eval", "health-check", str(folder), *words])


def test_a_folder_of_shards_is_checked_as_a_whole_without_false_duplicates(
    shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A17."""
    assert check(shards, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["run"]["verdicts"] == {"healthy": 1, "unhealthy": 1, "unobserved": 0}
    assert summary["run"]["issues"]["rollout_duplicate_identity"] == 0
    assert {path.name for path in shards.glob("*verdicts*")} == {"rollout_verdicts.jsonl"}


def test_fail_on_decides_the_exit_code(shards: Path, tmp_path: Path) -> None:
    assert check(shards, "--fail-on", "unhealthy") == 4
    assert check(shards, "--fail-on", "unhealthy", "--ignore-checks", "rollout_token_count_mismatch") == 0
    bare = tmp_path / "bare"
    bare.mkdir()
    write_lines(bare / "rollouts.jsonl", without(record(), "ng_trajectory"))
    assert check(bare) == check(bare, "--fail-on", "unhealthy") == 0
    assert check(bare, "--fail-on", "unobserved") == 4


def test_junit_has_a_case_for_each_rollout(shards: Path, tmp_path: Path) -> None:
    target = tmp_path / "reports" / "health.xml"
    assert check(shards, "--junit", str(target), "--fail-on", "unhealthy") == 4
    rollouts = ElementTree.parse(target).getroot().find("testsuite[@name='rollouts']")
    assert rollouts is not None
    assert (rollouts.get("tests"), rollouts.get("failures")) == ("2", "1")
    failure = rollouts.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "rollout_token_count_mismatch"


@pytest.mark.parametrize("words", [("--ignore-checks", "nonsense"), ("--fail-on", "anything"), ("--workers", "0")])
def test_a_mistake_is_a_usage_error(shards: Path, words: tuple[str, ...]) -> None:
    assert check(shards, *words) == 2

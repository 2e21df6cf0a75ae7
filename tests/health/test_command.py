"""`gym eval health-check` as a build server calls it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
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


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_failed_tries_beside_the_results_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    for shard in ("a", "b"):
        write_lines(tmp_path / f"rollouts-{shard}.jsonl")
    omitted = {"_ng_task_index": 3, "_ng_omitted_rollout": True}
    write_lines(tmp_path / "rollouts-a_failures.jsonl", {"_ng_task_index": 1}, {"_ng_task_index": 2}, omitted)
    assert check(tmp_path, *words) == 0
    out, err = capsys.readouterr()
    said = f"not checked: 2 failed tries, which left no result, in `{tmp_path / 'rollouts-a_failures.jsonl'}`"
    assert said in (err if words else out)
    write_lines(tmp_path / "rollouts-b_failures.jsonl", {"_ng_task_index": 1})
    check(tmp_path, *words)
    assert "not checked: 3 failed tries, which left no result, in 2 files `*_failures.jsonl`" in "".join(
        capsys.readouterr()
    )
    check(tmp_path, "--rollouts-file", "rollouts-b.jsonl")
    assert "not checked: 1 failed try, which" in capsys.readouterr().out


REPORTING = [
    (["health-check", "run"], "the health reports cannot be written: `run/rollout_verdicts.jsonl`: ", "`gym eval agg"),
    (["aggregate", "-i", "run/rollouts.jsonl"], "the merged file cannot be written: `run/aggregated.jsonl`: ", "--out"),
    (["profile", "run"], "the profile cannot be written: `run/rollouts_reward_profiling.jsonl`: ", "copy that one"),
    (["health-check", "ok", "--junit", "run/h.xml"], "the JUnit report cannot be written: `run/h.xml`: ", "--junit"),
]


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("run", "ok"):
        (tmp_path / folder).mkdir()
        write_lines(tmp_path / folder / "rollouts.jsonl", record())
        write_lines(tmp_path / folder / "rollouts_materialized_inputs.jsonl", record())
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


@pytest.mark.parametrize(("words", "message", "instead"), REPORTING)
def test_a_report_that_cannot_be_written_is_named_with_what_to_do(
    finished: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str, instead: str
) -> None:
    Path(message.split("`")[1]).mkdir()  # a folder has the name
    before = sorted(finished.iterdir())
    assert run(["eval", *words]) == 2
    said = capsys.readouterr().err
    assert f"Error: {message}is a directory. " in said
    assert instead in said
    assert sorted(finished.iterdir()) == before


def _can_be_made_read_only() -> bool:
    if shutil.which("unshare") is None:
        return False
    words = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "ro", "tmpfs", "/mnt"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _can_be_made_read_only(), reason="needs a mount namespace of its own")
@pytest.mark.parametrize(("words", "message", "instead"), REPORTING)
def test_a_folder_that_can_only_be_read_is_named_as_one(
    finished: Path, words: list[str], message: str, instead: str
) -> None:
    mounted = f'mount --bind "{finished}" "{finished}" && mount -o remount,ro,bind "{finished}"'
    program = [sys.executable, "-m", "nemo_gym.cli.main", "eval", *words]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'{mounted} && exec "$0" "$@"', *program],
        capture_output=True, text=True, check=False, cwd=finished.parent,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert f"Error: {message}read-only file system. " in done.stderr
    assert instead in done.stderr


@pytest.mark.parametrize("words", [("--ignore-checks", "nonsense"), ("--fail-on", "anything"), ("--workers", "0")])
def test_a_mistake_is_a_usage_error(shards: Path, words: tuple[str, ...]) -> None:
    assert check(shards, *words) == 2

"""The conformance kit, run on real agents: A21-A25."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from nemo_gym.testing import ALL_ROWS

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "write-an-agent.md"


def conformance(folder: Path, *words: str | Path, code: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "nemo_gym.cli.main", "conformance", "--json", *map(str, words)],
        cwd=folder,
        env={"HOME": str(folder), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def scenario(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(entry for entry in report["scenarios"] if entry["scenario"] == name)


def test_simple_agent_fulfils_every_row_that_applies(tmp_path: Path) -> None:
    report = conformance(tmp_path, "--agent", "simple_agent", code=0)
    assert report["fulfilled"] is True
    assert report["rows"] == dict.fromkeys(ALL_ROWS, "fulfilled")
    assert all(not problems for entry in report["scenarios"] for problems in entry["problems"].values())
    assert (
        scenario(report, "parallel_tools")["model_calls"],
        scenario(report, "parallel_tools")["tool_executions"],
    ) == (2, 2)
    assert scenario(report, "cancel_mid_tool")["problems"]["TE-1"] == []
    assert scenario(report, "cancel_mid_tool")["problems"]["TE-8"] is None


def test_an_agent_that_says_less_is_told_what_it_lacks(tmp_path: Path) -> None:
    """The example names its calls only when they succeed."""
    report = conformance(tmp_path, "--agent", "sdk_agent", "--search-dir", REPOSITORY / "examples", code=1)
    lacking = {row for row, status in report["rows"].items() if status == "not_fulfilled"}
    assert lacking == {"TE-8"}
    assert scenario(report, "retry_429")["problems"]["TE-8"][0] == "there is no invocation"
    assert scenario(report, "cancel_mid_tool")["problems"] == dict.fromkeys(ALL_ROWS)


def test_the_agent_of_the_page_runs_and_fulfils_every_row_a21(tmp_path: Path) -> None:
    """Its code and configuration are taken from the page; it retries, and its subagent has calls of its own."""
    page = PAGE.read_text(encoding="utf-8")
    files = re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', page, re.DOTALL | re.MULTILINE)
    assert len(files) == 2
    for name, text in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (printed,) = re.findall(r"^```bash\ngym conformance (.*?)\n```$", page, re.DOTALL | re.MULTILINE)
    report = conformance(tmp_path, *printed.split(), "--output-dir", "kept", code=0)
    assert report["rows"] == dict.fromkeys(ALL_ROWS, "fulfilled")
    calls = {entry["scenario"]: entry["model_calls"] for entry in report["scenarios"]}
    assert (calls["retry_429"], calls["retry_500"], calls["timeout"], calls["stream_cut"]) == (3, 2, 2, 2)
    assert (calls["model_error"], calls["subagent"]) == (1, 3)
    records = [json.loads(line) for line in (tmp_path / "kept" / "rollouts-conformance.jsonl").read_text().splitlines()]
    detail = next(record for record in records if record["scenario"] == "retry_429")["ng_perf_detail"]
    assert (detail["failed_calls"]["count"], detail["retries"]["count"]) == (2, 2)
    family = next(record for record in records if record["scenario"] == "subagent")["ng_trajectory"]["invocations"]
    assert {item["invocation_id"]: item["parent_invocation_id"] for item in family} == {
        "root": None,
        "root/subagent-1": "root",
    }


def test_an_agent_that_does_not_exist_is_answered_with_the_nearest(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nemo_gym.cli.main", "conformance", "--agent", "simpel_agent"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "Did you mean `simple_agent`?" in done.stderr

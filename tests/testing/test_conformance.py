"""The conformance kit, run on real agents: A21-A25."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from nemo_gym.builtin.responses_api_agents.command_agent.command import PLACEHOLDERS, Places
from nemo_gym.builtin.responses_api_agents.command_agent.report import KINDS
from nemo_gym.testing import ALL_ROWS, NOTHING_REPORTED, run_conformance, scenarios

REPOSITORY = Path(__file__).parents[2]
CHECKOUT = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
PAGE = REPOSITORY / "docs" / "write-an-agent.md"


def conformance(folder: Path, *words: str | Path, code: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "nemo_gym.cli.main", "conformance", "--json", *map(str, words)],
        cwd=folder,
        env={"HOME": str(folder), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", **CHECKOUT},
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
    assert report["not_provoked"] == ["tool_success", "tool_failure", "parallel_tools", "cancel_mid_tool"]
    assert report["rows"]["TE-5"] == "not_provoked"
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


def program(name: str, *words: str) -> str:
    return shlex.join([sys.executable, str(REPOSITORY / name), *words])


def test_the_commands_of_the_page_for_programs_run_as_printed(tmp_path: Path) -> None:
    """A program that reports fulfils every row, and its rollouts are healthy."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (script,) = [block for block in blocks if "--agent-command" in block]
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", **CHECKOUT},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 checked, 5 healthy, 0 unhealthy, 0 unobserved" in done.stdout + done.stderr
    assert "`python examples/programs/reporting_agent.py` fulfils every row that applies." in done.stdout
    lines = (tmp_path / "runs" / "program" / "rollouts.jsonl").read_text(encoding="utf-8").splitlines()
    for record in map(json.loads, lines):
        assert (record["reward"], record["agent_process"]["exit_code"]) == (1.0, 0)
        assert record["ng_perf"]["token_observability_coverage"] == 1.0


def test_the_page_for_programs_names_every_placeholder_variable_and_kind() -> None:
    page = PAGE.read_text(encoding="utf-8")
    places = Places(**dict.fromkeys(Places.__dataclass_fields__, "x"))
    names = [*(f"{{{name}}}" for name in PLACEHOLDERS), *places.environment("key"), *KINDS]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_a_program_that_reports_nothing_is_judged_by_its_captured_calls(tmp_path: Path) -> None:
    """Its retries are captured; what only it could say is not fulfilled, and tools that it never calls show nothing."""
    names = [item.name for item in scenarios()]
    played = {"tool_failure", "retry_429", "model_error"}
    report = run_conformance(
        command=program("examples/programs/plain_agent.py", "{prompt}"),
        skip=[name for name in names if name not in played],
        cwd=tmp_path,
    )
    captured = {row: report.status(row) for row in ("TE-1", "TE-2", "TE-4", "TE-6", "TE-7")}
    assert captured == dict.fromkeys(captured, "fulfilled")
    by_name = {item.scenario: item for item in report.scenarios}
    assert by_name["retry_429"].model_calls == 3
    assert [by_name["retry_429"].problems[row] for row in ("TE-3", "TE-8", "TE-9")] == [[NOTHING_REPORTED]] * 3
    assert report.not_provoked == ["tool_failure"]
    assert by_name["tool_failure"].status("TE-1") == "not_provoked"


def test_a_program_of_any_dialect_fulfils_every_row_and_leaves_no_process(tmp_path: Path) -> None:
    """Another dialect in each scenario; in the cancelled one the program has children, and none heeds a signal."""
    pids = tmp_path / "pids"
    command = program("tests/testing/programs/any_dialect.py", "mixed", "--family", str(pids))
    report = run_conformance(command=command, cwd=tmp_path)
    assert [problem for item in report.scenarios for problem in item.problems.values() if problem] == []
    assert (report.fulfilled, report.not_provoked) == (True, [])
    family = [int(pid) for pid in pids.read_text().split()]
    assert len(family) == 3
    # The last of them may still be with whoever reaps it.
    deadline = time.monotonic() + 60
    while any(map(_runs, family)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in family if _runs(pid)] == []


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


OFFICIAL = """
import json, os
from pathlib import Path
from anthropic import Anthropic

text = json.loads(Path(os.environ["GYM_TASK_FILE"]).read_text())["input"]
messages = [{"role": "user", "content": text if isinstance(text, str) else text[-1]["content"]}]
asked = {"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 99, "messages": messages}
with Anthropic().messages.stream(**asked) as stream:
    print(stream.get_final_text())
print(Anthropic().messages.create(**asked).content[0].text)
"""


def test_the_official_messages_client_reads_an_answer_without_token_counts(tmp_path: Path) -> None:
    """What the scenario leaves out is the counts, not what the dialect requires."""
    (tmp_path / "official.py").write_text(OFFICIAL)
    others = [item.name for item in scenarios(subagent_tool=None) if item.name != "usage_omitted"]
    command = shlex.join([sys.executable, str(tmp_path / "official.py")])
    report = run_conformance(command=command, skip=others, output_dir=tmp_path / "kept", cwd=tmp_path)
    [item] = report.scenarios
    assert (item.problems["TE-1"], item.problems["TE-2"], report.not_provoked) == ([], [], [])
    [record] = [
        json.loads(line) for line in (tmp_path / "kept" / "rollouts-conformance.jsonl").read_text().splitlines()
    ]
    assert record["agent_process"]["exit_code"] == 0
    assert [call["tokens_out"] for call in record["ng_model_call_capture"]["calls"]] == [None, None]


def test_a_program_that_lies_is_found_out_in_every_scenario(tmp_path: Path) -> None:
    """It does its work truly and reports something else; the rows are those that the lie is about."""
    report = run_conformance(command=program("tests/testing/programs/liar.py"), cwd=tmp_path)
    found = {item.scenario: {row for row in ALL_ROWS if item.problems[row]} for item in report.scenarios}
    assert found == {
        "tool_success": {"TE-5"},
        "tool_failure": {"TE-5"},
        "parallel_tools": {"TE-5"},
        "usage_omitted": {"TE-5"},
        "retry_429": {"TE-8", "health"},
        "retry_500": {"TE-8"},
        "timeout": {"TE-9"},
        "model_error": {"TE-3"},
        "stream_cut": {"health"},
        "verifier_failure": set(),
        "cancel_mid_tool": set(),
    }
    said = {item.scenario: item.problems["TE-5"] for item in report.scenarios}
    assert "tool_calls[0]: the model was given another output" in (said["tool_success"] or ())
    assert "tool executions that ended otherwise than recorded: [('fail', 'failed')]" in (said["tool_failure"] or ())
    assert said["usage_omitted"] == ["tool_calls[0]: the model never asked for it"]
    assert not report.fulfilled


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "either `--agent NAME`, or `--command"),
        (("--agent", "simple_agent", "--command", "true"), "either `--agent NAME`, or `--command"),
        (("--agent", "simple_agent", "--skip", "retry_42"), "Did you mean `retry_429`?"),
        (("--command", "no-such-program {prompt}"), "cannot be run: `no-such-program`"),
        (("--command", "true {promt}"), "Did you mean `prompt`?"),
    ],
)
def test_a_mistake_in_what_is_asked_is_said(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nemo_gym.cli.main", "conformance", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert message in done.stderr


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

"""The command tree: help, version, mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_gym.cli.main import COMMANDS, GROUPS, main, run

Gym = Callable[..., subprocess.CompletedProcess[str]]


def test_help_names_every_command_and_goes_to_stdout(inline: Gym) -> None:
    for flag in ("--help", "-h"):
        done = inline(flag)
        for path, target in COMMANDS.items():
            assert " ".join(path) in done.stdout
            assert target.summary in done.stdout
    for group in GROUPS:
        assert f"Usage: gym {group} COMMAND" in inline(group, "--help").stdout


def test_help_imports_no_command_and_no_library() -> None:
    code = (
        "import sys\nfrom nemo_gym.cli.main import run\nrun(['--help'])\n"
        "print([name for name in ('typer', 'rich', 'omegaconf', 'pydantic', 'aiohttp', 'asyncio') "
        "if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_no_command_is_a_usage_error_with_the_help_on_stderr(inline: Gym) -> None:
    for words in ((), ("env",)):
        done = inline(*words, code=2)
        assert done.stdout == ""
        assert "Commands:" in done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("evn", "start"), "no such command: `gym evn`. Did you mean `env`?"),
        (("env", "strat"), "no such command: `gym env strat`. Did you mean `start`?"),
        (("status",), "Did you mean `env status`?"),
        (("--vresion",), "no such option: `--vresion`. Did you mean `--version`?"),
        (("env", "start", "--resource-server", "x"), "`--resource-server`. Did you mean `--resources-server`?"),
        (("env", "start", "--config"), "`gym env start --help`"),
        (("env", "start", "word"), "unexpected argument `word`"),
        (("env", "stop", "--json"), "no such option: `--json`"),
        (("env", "start", "+model_type=x"), "`--model-type` is an option of this command"),
        (("env", "validate", "strict=true"), "`--strict` is an option of this command"),
        (("eval", "run", "+concurrency=3"), "`--concurrency` is an option of this command"),
        (("eval", "run", "--agent", "simple_agent", "+input=x"), "`--input` is an option of this command"),
        (("list",), "missing argument 'TYPE'"),
        (("list", "agentes"), "Did you mean `agents`?"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_on_stderr_with_the_nearest_name_and_code_2(
    inline: Gym, words: tuple[str, ...], problem: str
) -> None:
    done = inline(*words, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert problem in done.stderr


def test_the_version_is_printed_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    from nemo_gym import __version__

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"gym {__version__}\n"
    assert run(["--json", "--version"]) == 0
    assert run(["--version", "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"version": __version__}] * 2


def test_json_may_stand_before_or_after_the_command(inline: Gym) -> None:
    before, after = inline("--json", "list", "agents"), inline("list", "agents", "--json")
    assert before.stdout == after.stdout
    assert "plain_agent" in {entry["name"] for entry in json.loads(after.stdout)}


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("nemo_gym.cli.env_stop.command", interrupted)
    with pytest.raises(SystemExit) as stop:
        main(["env", "stop"])
    assert stop.value.code == 130


def test_a_closed_pipe_is_no_traceback(gym: Gym) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "nemo_gym.cli.main", "list", "resources-servers"],
        stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no file that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [("list", "resources-servers"), ("--version",), ("eval", "run", "--help")])
def test_output_that_cannot_be_written_is_said_in_a_line(words: tuple[str, ...], unbuffered: str) -> None:
    command = [sys.executable, "-m", "nemo_gym.cli.main", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment
        )  # fmt: skip
        assert done.stderr == "Error: standard output cannot be written: No space left on device.\n"
        assert done.returncode == 1
        both = subprocess.run(command, stdout=full, stderr=full, check=False, env=environment)
        assert both.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no file that is always full")
@pytest.mark.parametrize(("words", "code"), [(("list", "resources-servers"), 0), (("nonsense",), 2)])
def test_remarks_that_cannot_be_written_change_no_exit_code(words: tuple[str, ...], code: int) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "nemo_gym.cli.main", *words], stdout=subprocess.PIPE, stderr=full, check=False
        )
    assert done.returncode == code
    assert bool(done.stdout) == (code == 0)


def test_components_are_listed_found_and_described(inline: Gym) -> None:
    listed = inline("list", "resources-servers").stdout
    assert "A server for tests" in listed
    assert "Use it with: gym env start --resources-server plain" in inline("list", "resources-servers", "plain").stdout
    assert "Did you mean `plain`?" in inline("list", "resources-servers", "plane", code=2).stderr
    assert "plain" in inline("search", "server", "for", "tests").stdout
    assert [entry["name"] for entry in json.loads(inline("search", "models", "plain", "--json").stdout)] == [
        "plain_model"
    ]
    nothing = inline("search", "zzzzzz")
    assert nothing.stdout == ""
    assert "Nothing found" in nothing.stderr

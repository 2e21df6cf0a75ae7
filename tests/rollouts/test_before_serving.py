"""What a run is refused for is said before servers are started for it: rows, and runs that cannot be resumed."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from nemo_gym.cli import main
from nemo_gym.errors import InputDataError, ResumeRefusedError
from nemo_gym.rollouts.collect import check_before_serving, collect_run
from nemo_gym.rollouts.run_setup import PreparationStoppedError, RunSetup
from nemo_gym.rollouts.settings import RolloutCollectionConfig
from nemo_gym.servers.prompts import load_prompt_config
from nemo_gym.store import RunFiles, RunLock, RunLockedError

GOOD = {"responses_create_params": {"input": "x"}, "agent_ref": {"name": "agent_a"}}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("row", "words", "code", "message"),
    [
        ('{"responses_create_params": ', [], 2, "in.jsonl` line 3 (byte 49)"),
        ("[1]", [], 2, "in.jsonl` line 3 (byte 49)"),
        ({"responses_create_params": {"input": "x"}, "agent_ref": {"name": "ledger_agent"}}, [], 2, "no agent"),
        ({"responses_create_params": {}}, [], 2, "in.jsonl` lines 3 have no input"),
        (
            {"responses_create_params": {"input": "x"}, "_ng_task_index": -1},
            [],
            2,
            "in.jsonl` lines 3 have a `_ng_task_index`",
        ),
        ({"responses_create_params": {"input": "x"}, "_ng_rollout_id": "a/b"}, [], 2, "in.jsonl` line 3:"),
        ({"responses_create_params": {"input": "x"}, "task_source": "legder"}, [], 2, "Did you mean `ledger`?"),
        ({"responses_create_params": {"input": "x"}, "task_source": "legder"}, [], 2, "in.jsonl` lines 3)"),
        ({"responses_create_params": {"input": "x"}}, ["+num_repeats={other: 2}"], 2, "`num_repeats` names no number"),
        ({"responses_create_params": {"input": "x"}}, ["+num_repeats={other: 2}"], 2, "in.jsonl` lines 1, 3)"),
    ],
)
def test_rows_that_cannot_run_are_named_before_anything_starts(
    tmp_path, monkeypatch, capsys, row, words, code, message
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.jsonl", {"responses_create_params": {"input": "good"}}, " ", row)  # blank lines count as lines
    serving = ["--resources-server", "ledger", "--model-type", "scripted_model"]
    assert main.run(["eval", "run", *serving, "-i", "in.jsonl", "-o", "out/r.jsonl", *words]) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Starting" not in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (": [", "prompt.yaml` line 1, column"),
        ("- a", "prompt.yaml` holds no mapping"),
        ("system: x", "is no prompt: `user`: Field required"),
        ("user: [1]", "is no prompt: `user`: Input should be a valid string"),
        ("user: '{x}'", "in.jsonl` line 1: `prompt_config=prompt.yaml` cannot be filled in: the prompt names 'x'"),
        ("user: '{q.real}'", "must be a plain field name"),
        ("user: '}'", "cannot be filled in: Single '}'"),
        ("user: '{params:>3}'", "cannot be filled in: unsupported format string"),
    ],
)
@pytest.mark.parametrize("no_serve", [True, False])
def test_a_prompt_that_cannot_be_used_is_a_mistake(servers, tmp_path, monkeypatch, capsys, prompt, message, no_serve):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompt.yaml").write_text(prompt)
    load_prompt_config.cache_clear()
    write(tmp_path / "in.jsonl", {"q": 1, "params": {}})
    serving = ["--resources-server", "ledger", "--model-type", "scripted_model"]
    running = ["--no-serve", f"++head_server.port={servers.head_port}"]
    words = ["-i", "in.jsonl", "-o", "out/r.jsonl", "--prompt-config", "prompt.yaml"]
    assert main.run(["eval", "run", *(running if no_serve else serving), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("no_serve", [True, False])
@pytest.mark.parametrize(
    "content", [b"\xff\xfe{}\n", b"\x1f\x8b\x08\x00binary", b"[" * 100_000, b'"text"\n', b"{} {}\n", b" \n"]
)
def test_a_file_that_holds_no_rows_is_a_mistake(servers, tmp_path, monkeypatch, capsys, content, no_serve):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_bytes(content)
    serving = ["--resources-server", "ledger", "--model-type", "scripted_model"]
    running = ["--no-serve", f"++head_server.port={servers.head_port}"]
    words = ["-i", "in.jsonl", "-o", "out/r.jsonl"]
    assert main.run(["eval", "run", *(running if no_serve else serving), *words]) == 2
    assert "in.jsonl`" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("no_serve", [True, False])
def test_an_input_that_cannot_be_read_through_is_a_mistake(servers, tmp_path, monkeypatch, capsys, no_serve):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").symlink_to("/proc/self/mem")  # which nobody can read from its start
    serving = ["--resources-server", "ledger", "--model-type", "scripted_model"]
    running = ["--no-serve", f"++head_server.port={servers.head_port}"]
    words = ["-i", "in.jsonl", "-o", "out/r.jsonl"]
    assert main.run(["eval", "run", *(running if no_serve else serving), *words]) == 2
    assert "in.jsonl`: input/output error" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["materialized", "manifest", "failures", "rollouts"])
def test_a_saved_run_that_is_damaged_is_a_mistake_and_nothing_is_sent(servers, saved, monkeypatch, capsys, file):
    path = getattr(saved.files, file)
    path.write_bytes(path.read_bytes() + b"oops\n")
    before = {each: each.read_bytes() for each in saved.files.folder.iterdir()}
    servers.received.clear()
    words = ["-i", str(saved.rows), "-o", str(saved.files.rollouts), "--resume", "--disable-aggregation"]
    head = f"++head_server.port={servers.head_port}"
    assert main.run(["eval", "run", "--no-serve", head, *words, "+resume_ignore_drift=true"]) == 2
    assert f"`{path}`" in capsys.readouterr().err
    assert servers.received == []
    assert before == {each: each.read_bytes() for each in saved.files.folder.iterdir()}


def test_a_check_that_takes_long_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nemo_gym.cli.eval_run._SILENT_S", 0.0)
    write(tmp_path / "in.jsonl", "oops")
    serving = ["--resources-server", "ledger", "--model-type", "scripted_model"]
    assert main.run(["eval", "run", *serving, "-i", "in.jsonl", "-o", "r.jsonl"]) == 2
    said, error = capsys.readouterr().err.splitlines()
    assert said.startswith("Checking the rows of ")
    assert "line 1 (byte 0)" in error


@pytest.fixture
def saved(servers, tmp_path):
    """A finished run, and the check of the same run with some settings changed."""
    rows = write(tmp_path / "in.jsonl", *({**GOOD, "q": n} for n in range(3)))
    settings = {"input_jsonl_fpath": str(rows), "output_jsonl_fpath": str(tmp_path / "out" / "r.jsonl")}
    first = RolloutCollectionConfig(**settings, disable_aggregation=True)
    asyncio.run(collect_run(first, own_config=servers.own_config))

    def check(**changes):
        config = RolloutCollectionConfig(**{**settings, "resume_from_cache": True, **changes})
        path = Path(config.input_jsonl_fpath)
        asyncio.run(check_before_serving(config, servers=servers.config, input_path=path))

    check.files = RunFiles(settings["output_jsonl_fpath"])
    check.rows = rows
    return check


def test_a_run_that_cannot_be_resumed_is_refused_and_untouched(servers, saved, tmp_path):
    before = {path: path.read_bytes() for path in saved.files.folder.iterdir()}
    saved()
    with pytest.raises(ResumeRefusedError, match="`num_repeats`"):
        saved(num_repeats=2)
    saved(num_repeats=2, resume_ignore_drift=True)
    with pytest.raises(ResumeRefusedError, match="the input file"):
        saved(input_jsonl_fpath=str(write(tmp_path / "other.jsonl", GOOD)))
    saved(input_jsonl_fpath=str(saved.files.materialized))
    agent = servers.config["agent_a"]
    agent["responses_api_agents"]["simple_agent"]["temperature"] = 0.9
    servers.extra_config = {"agent_a": agent}
    with pytest.raises(ResumeRefusedError, match=r"agent_a\.responses_api_agents\.simple_agent\.temperature"):
        saved()
    assert before == {path: path.read_bytes() for path in saved.files.folder.iterdir()}


def test_a_saved_run_that_is_damaged_is_named(saved):
    saved.files.materialized.write_bytes(saved.files.materialized.read_bytes() + b"{oops\n")
    with pytest.raises(InputDataError, match="not a JSON object") as caught:
        saved()
    assert caught.value.exit_code == 2


def test_a_run_that_another_process_writes_is_refused(saved):
    named = re.escape(f"`{saved.files.folder / saved.files.stem}` is being written by another process (process ")
    with RunLock(saved.files.lock), pytest.raises(RunLockedError, match=named):
        saved()
    saved()


@pytest.mark.parametrize("resume", [True, False])
async def test_the_check_ends_when_it_is_told_to(servers, tmp_path, resume):
    rows = write(tmp_path / "in.jsonl", GOOD)
    config = RolloutCollectionConfig(input_jsonl_fpath=str(rows), output_jsonl_fpath=str(tmp_path / "r.jsonl"))
    await collect_run(config, own_config=servers.own_config)
    begun = asyncio.Event()
    loop, read = asyncio.get_running_loop(), RunSetup._check_stop

    def waiting(setup):
        loop.call_soon_threadsafe(begun.set)
        setup._stopped.wait(60)
        read(setup)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunSetup, "_check_stop", waiting)
        again = config.model_copy(update={"resume_from_cache": resume})
        check = asyncio.ensure_future(check_before_serving(again, servers=servers.config, input_path=rows))
        await begun.wait()
        check.cancel()
        with pytest.raises((asyncio.CancelledError, PreparationStoppedError)):
            await check

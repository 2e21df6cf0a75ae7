"""A mistake gets one clear line: what happened, where, what to do; the exit code says whose it is."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from end_to_end_support import Gym, free_port, records

LEDGER = ["--resources-server", "ledger", "--model-type", "scripted_model"]


def said(done: object) -> str:
    text = done.stderr.strip()
    assert text.startswith("Error: ") or "\nError: " in text, text
    return text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*LEDGER, "+observability_enabeld=true"], "Did you mean `observability_enabled`?"),
        ([*LEDGER, "+observability_enabled=true"], "`model_call_capture_dir` is required"),
        (
            [*LEDGER, "+observability_enabled=true", "+model_call_capture_dir=captures"],
            "`model_call_capture_dir` must be an absolute path",
        ),
        (["--resources-server", "legder", "--model-type", "scripted_model"], "Did you mean `ledger`?"),
        (["--resources-server", "ledger", "--model-type", "scripted_modle"], "Did you mean `scripted_model`?"),
        ([*LEDGER, "--agent", "simpel_agent"], "Did you mean `simple_agent`?"),
        ([*LEDGER, "--modle-type", "x"], "Did you mean `--model-type`?"),
        ([*LEDGER, "++ledger.resources_servers.ledger.max_transfr=3"], "max_transfer"),
        ([*LEDGER, "--agent-command", "no-such-program"], "cannot be run: `no-such-program`"),
        ([*LEDGER, "--agent-command", "true {promt}"], "Did you mean `prompt`?"),
        ([*LEDGER, "--agent-command", "true", "--agent", "simple_agent"], "leave out that the agent is `simple_agent`"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_what_is_wrong_with_a_start_is_said_before_anything_starts(gym: Gym, words: list[str], message: str) -> None:
    assert message.replace("`", "") in said(gym.run("env", "start", *words, gym.head, code=2)).replace("`", "")


def test_a_port_that_is_taken_is_named(gym: Gym) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = gym.run("env", "start", *LEDGER, f"+head_server.port={port}", code=2)
        assert str(port) in said(done)


def test_a_head_server_that_does_not_run_is_named_before_any_file_is_touched(gym: Gym) -> None:
    (gym.folder / "tasks.jsonl").write_text("{}\n")
    before = sorted(gym.folder.rglob("*"))
    done = gym.run("eval", "run", "--no-serve", "-i", "tasks.jsonl", "-o", "run/out.jsonl", gym.head, code=1)
    assert str(gym.port) in said(done)
    assert "gym env start" in said(done)
    assert [path for path in sorted(gym.folder.rglob("*")) if ".local" not in path.parts] == before


def test_a_line_that_is_no_json_is_named_by_file_line_and_byte(gym: Gym) -> None:
    gym.run("dataset", "make", "ledger", "-o", "tasks.jsonl", "--size", "2")
    path = gym.folder / "tasks.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"responses_create_params": \n')
    done = gym.run("eval", "run", *LEDGER, "-i", "tasks.jsonl", "-o", "out.jsonl", gym.head, code=2)
    assert "tasks.jsonl" in said(done)
    assert "line 3" in said(done)
    assert f"byte {len(whole):,}" in said(done)


def test_an_input_file_that_does_not_exist_is_named(gym: Gym) -> None:
    done = gym.run("eval", "run", *LEDGER, "-i", "nowhere.jsonl", "-o", "out.jsonl", gym.head, code=2)
    assert "nowhere.jsonl" in said(done)


def test_an_unknown_agent_is_answered_with_the_nearest(gym: Gym) -> None:
    gym.run("dataset", "make", "ledger", "-o", "tasks.jsonl", "--size", "1")
    words = ["eval", "run", *LEDGER, "--agent", "ledger_simpel_agent", "-i", "tasks.jsonl", "-o", "out.jsonl"]
    assert "Did you mean `ledger_simple_agent`?" in said(gym.run(*words, gym.head, code=2))


def test_capture_that_is_on_at_the_servers_but_off_here_is_said(gym: Gym) -> None:
    """C4: separate commands need the same settings; the servers' ones are taken when nothing else is said."""
    captures = gym.folder / "model-calls"
    gym.start(*LEDGER, "+observability_enabled=true", f"+model_call_capture_dir={captures}")
    gym.run("dataset", "make", "ledger", "-o", "tasks.jsonl", "--size", "1")
    common = ["eval", "run", "--no-serve", "-i", "tasks.jsonl", gym.head]
    gym.run(*common, "-o", "taken.jsonl")
    assert "ng_trajectory" in records(gym.folder / "taken.jsonl")[0]
    off = gym.run(*common, "-o", "off.jsonl", "+observability_enabled=false")
    assert "Warning" in off.stderr
    assert "observability_enabled" in off.stderr
    other = gym.folder / "elsewhere"
    done = gym.run(*common, "-o", "x.jsonl", "+observability_enabled=true", f"+model_call_capture_dir={other}", code=2)
    assert str(captures) in said(done)
    assert str(other) in said(done)


def test_capture_that_is_off_at_the_servers_but_on_here_is_an_error(gym: Gym) -> None:
    gym.start(*LEDGER)
    gym.run("dataset", "make", "ledger", "-o", "tasks.jsonl", "--size", "1")
    captures = gym.folder / "model-calls"
    done = gym.run(
        *("eval", "run", "--no-serve", "-i", "tasks.jsonl", "-o", "out.jsonl", gym.head),
        *("+observability_enabled=true", f"+model_call_capture_dir={captures}"),
        code=2,
    )
    assert "Start them with" in said(done)


def test_a_model_url_where_nothing_answers_is_named_and_the_run_ends(gym: Gym) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    run = gym.folder / "run"
    done = gym.run(
        *("eval", "run", "--resources-server", "ledger", "--model-type", "vllm_model", "-o", run / "rollouts.jsonl"),
        *("--model-url", url, "--model-api-key", "unused", "--model", "m"),
        *("+observability_enabled=true", f"+model_call_capture_dir={gym.folder / 'model-calls'}", gym.head),
        code=1,
    )
    assert url in done.stderr
    failures = records(run / "rollouts_failures.jsonl")
    assert len(failures) == 5
    for failure in failures:
        assert url in failure["failure_reason"]
        assert failure["_ng_failure_class"] == "agent_run_error"
        assert "reward" not in failure
        # The evidence of a failed rollout is kept: the call that failed is there, and owned.
        assert failure["ng_trajectory"]["invocations"][0]["status"] == "failed"
        assert failure["ng_trajectory"]["model_calls"][0]["response_metadata"]["error_category"] == "connection"


def broken_server(folder: Path, code: str) -> None:
    server = folder / "resources_servers" / "broken"
    (server / "configs").mkdir(parents=True)
    (server / "app.py").write_text(code)
    (server / "configs" / "broken.yaml").write_text(
        "broken: {resources_servers: {broken: {entrypoint: app.py, domain: other}}}\n"
    )


def test_a_server_that_dies_while_starting_shows_its_last_twenty_lines(gym: Gym) -> None:
    broken_server(gym.folder, "for n in range(50): print('line', n)\nraise SystemExit('no disk')\n")
    done = gym.run(
        *("env", "start", "--resources-server", "broken", "--model-type", "scripted_model", gym.head), code=1
    )
    text = said(done)
    assert "`broken`" in text
    assert "no disk" in text
    assert "line 49" in text
    assert "line 30\n" not in text


def test_what_a_servers_own_configuration_lacks_is_one_line(gym: Gym) -> None:
    done = gym.run(
        "env", "start", *LEDGER, "++ledger.resources_servers.ledger.session_idle_seconds=-1", gym.head, code=1
    )
    text = said(done)
    assert "`ledger.ledger" not in text
    assert "`ledger.resources_servers.ledger.session_idle_seconds`: Input should be greater than 0 (it is `-1`)" in text
    assert "pydantic" not in text


def test_validate_finds_the_same_mistakes_without_starting_anything(gym: Gym) -> None:
    gym.run("env", "validate", *LEDGER, "+observability_enabled=true", "+model_call_capture_dir=rel", code=2)
    (gym.folder / "a-file").write_text("")
    below = gym.folder / "a-file" / "captures"
    gym.run("env", "validate", *LEDGER, "+observability_enabled=true", f"+model_call_capture_dir={below}", code=2)
    assert json.loads(gym.run("env", "validate", *LEDGER, "--json").stdout)["valid"] is True

"""`gym env start`, `stop`, `status`, `validate`, `resolve`, with real processes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

SERVERS = ("--resources-server", "plain", "--model-type", "plain_model")
NAMES = ["plain", "plain_agent", "policy_model"]


def test_start_prints_what_runs_where_and_stop_ends_it(gym: Any, runs: Any, server_pids: Any) -> None:
    process = gym.start()
    table = gym.out.read_text()
    assert table.splitlines()[0].split() == ["NAME", "KIND", "URL", "PID", "LOG", "FILE"]
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["head_server", *NAMES]
    pids = server_pids(table)
    assert len(pids) == 3
    family = psutil.Process(process.pid).children(recursive=True)
    assert {child.pid for child in family} == set(pids), "one process per server, the head server in the command's own"

    status = gym("env", "status", gym.head)
    whose = f"Head server: http://127.0.0.1:{gym.port}, started from `{gym.folder}`.\n"
    assert status.stderr == f"3 of 3 servers answer. {whose}"
    entries = json.loads(gym("env", "status", gym.head, "--json").stdout)
    assert [entry["name"] for entry in entries] == NAMES
    assert [entry["pid"] for entry in entries] == pids
    assert all(entry["healthy"] for entry in entries)
    assert all(Path(entry["log_file"]).is_file() for entry in entries)

    (gym.folder / "state" / "elsewhere").mkdir()
    stopped = gym("env", "stop", gym.head, folder=gym.folder / "state" / "elsewhere")
    assert stopped.stderr == f"Stopped 3 servers: `plain`, `plain_agent`, `policy_model`. {whose}"
    assert process.wait(10) == 0
    assert not any(runs(pid) for pid in pids)
    assert sorted(path.name for path in gym.folder.iterdir()) == ["err", "out", "state"], "nothing is dropped here"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_start_stops_everything(
    gym: Any, runs: Any, server_pids: Any, number: signal.Signals, code: int
) -> None:
    process = gym.start()
    pids = server_pids(gym.out.read_text())
    process.send_signal(number)
    assert process.wait(20) == code
    assert not any(runs(pid) for pid in pids)
    assert "Traceback" not in gym.err.read_text()


def test_an_interrupt_while_starting_leaves_nothing(gym: Any, runs: Any, wait_until: Any) -> None:
    hanging = "+plain.resources_servers.plain.behaviour=hang"
    process = gym.start(*SERVERS, hanging, until="policy_model is ready")
    pids = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(pids) == 3
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert not any(runs(pid) for pid in pids)
    assert "Traceback" not in gym.err.read_text()


def test_nothing_is_left_when_the_command_is_killed(gym: Any, runs: Any, server_pids: Any, wait_until: Any) -> None:
    process = gym.start()
    pids = server_pids(gym.out.read_text())
    process.kill()
    process.wait()
    wait_until(lambda: not any(runs(pid) for pid in pids), "the end of the servers")


def test_a_server_that_dies_later_ends_the_command_with_its_last_lines(gym: Any, runs: Any, server_pids: Any) -> None:
    process = gym.start()
    pids = server_pids(gym.out.read_text())
    psutil.Process(pids[2]).kill()
    assert process.wait(20) == 1
    message = gym.err.read_text()
    assert "Error: server `policy_model` (responses_api_models/plain_model) was ended by SIGKILL" in message
    assert "policy_model says hello" in message
    assert not any(runs(pid) for pid in pids)


def test_a_server_that_does_not_answer_makes_status_end_with_1(gym: Any, server_pids: Any) -> None:
    gym.start()
    stuck = psutil.Process(server_pids(gym.out.read_text())[0])
    stuck.suspend()
    try:
        status = gym("env", "status", gym.head, code=1)
        assert "✗" in status.stdout
        assert "2 of 3 servers answer" in status.stderr
    finally:
        stuck.resume()


def test_a_second_start_says_how_to_end_the_first(gym: Any) -> None:
    gym.start()
    for more in ((), ("--detach",)):
        second = gym("env", "start", gym.head, *SERVERS, *more, code=2)
        assert f"port {gym.port} on `127.0.0.1`" in second.stderr
        assert f"`gym env stop +head_server.port={gym.port}` ends it" in second.stderr


def test_a_detached_start_returns_when_all_is_ready(gym: Any, runs: Any, server_pids: Any) -> None:
    done = gym("env", "start", "--detach", gym.head, *SERVERS)
    pids = server_pids(done.stdout)
    try:
        assert len(pids) == 3
        assert "3 of 3 servers answer" in gym("env", "status", gym.head).stderr
    finally:
        gym("env", "stop", gym.head)
    assert not any(runs(pid) for pid in pids)


def test_a_detached_start_that_fails_shows_why(gym: Any) -> None:
    done = gym("env", "start", "--detach", gym.head, *SERVERS, "+plain.resources_servers.plain.behaviour=die", code=1)
    assert "exited with code 3 while starting" in done.stderr
    assert "line 29" in done.stderr


def test_a_server_that_dies_while_starting_is_shown_with_20_lines(gym: Any) -> None:
    done = gym("env", "start", gym.head, *SERVERS, "+plain.resources_servers.plain.behaviour=die", code=1)
    assert "Error: server `plain` (resources_servers/plain) exited with code 3 while starting." in done.stderr
    assert [f"line {n}" in done.stderr.split() or f"  line {n}\n" in done.stderr for n in (9, 10, 29)] == [
        False, True, True,
    ]  # fmt: skip
    assert done.stdout == ""


def test_json_lists_the_servers_once_they_are_ready(gym: Any) -> None:
    gym.start("--json", *SERVERS)
    assert [entry["name"] for entry in json.loads(gym.out.read_text())] == NAMES


def test_stop_and_status_without_a_head_server_say_so(gym: Any) -> None:
    for words in (("env", "stop"), ("env", "status")):
        done = gym(*words, gym.head, code=1)
        assert f"no head server answers at `http://127.0.0.1:{gym.port}`" in done.stderr
        assert done.stdout == ""
    assert gym("env", "status", gym.head, "--json", code=1).stdout == "[]\n"


def test_another_program_on_the_head_port_is_not_taken_for_a_head_server(gym: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", gym.port))
        other.listen()
        assert "is taken" in gym("env", "start", gym.head, *SERVERS, code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "has no server to start"),
        (("--resources-server", "plane"), "no resources server is called `plane`. Did you mean `plain`?"),
        (("--resources-server", "plain", "--model-type", "plain_modl"), "Did you mean `plain_model`?"),
        ((*SERVERS, "--agent", "plain_agnt"), "no agent is called `plain_agnt`. Did you mean `plain_agent`?"),
        ((*SERVERS, "+observabilty_enabled=true"), "Did you mean `observability_enabled`?"),
        ((*SERVERS, "+observability_enabled=true"), "model_call_capture_dir is required"),
        ((*SERVERS, "+observability_enabled=true", "+model_call_capture_dir=here"), "must be an absolute path"),
        ((*SERVERS, "+observability_enabled=true", "+model_call_capture_dir=/dev/null/x"), "is a file"),
        (("--resources-server", "plain"), "`--model-type NAME`"),
        ((*SERVERS, "--search-dir", "nodir"), "`nodir` (`--search-dir`) is no folder"),
        ((*SERVERS, "--model-url", ""), "`--model-url` is empty"),
        ((*SERVERS, "--model-url", "localhost:9401/v1"), "must begin with `http://` or `https://`"),
        (("--resources-server", "plain", "--model-type", "openai_model", "--model", "m"), "`--model-url URL`"),
        ((*SERVERS, "+limit=" + "9" * 5000), "a number of 5000 characters"),
        ((*SERVERS, "+a=" + "[" * 3000), "nested more than 50 deep"),
        ((*SERVERS, "+head_server=[1]"), "`head_server` is a list at one place"),
        (("--config", "nowhere.yaml"), "`nowhere.yaml` does not exist. Looked at"),
    ],
)
def test_bad_input_gets_a_clear_answer(inline: Any, arguments: tuple[str, ...], problem: str) -> None:
    done = inline("env", "start", *arguments, code=2)
    assert done.stderr.startswith("Error: ")
    assert problem in done.stderr
    assert done.stdout == ""


def test_validate_says_valid_or_why_not(inline: Any) -> None:
    assert inline("env", "validate", *SERVERS).stdout == "✓ Config is valid.\n"
    told = json.loads(inline("env", "validate", *SERVERS, "--json").stdout)
    assert told["valid"] is True
    assert [server["name"] for server in told["servers"]] == NAMES
    capture = ("+observability_enabled=true", "+model_call_capture_dir=/dev/null/calls")
    assert "is a file" in inline("env", "validate", *SERVERS, *capture, code=2).stderr
    assert "nothing to check" in inline("env", "validate", code=2).stderr


def test_validate_lets_a_missing_model_pass_with_a_warning_unless_strict(inline: Any) -> None:
    lenient = inline("env", "validate", "--resources-server", "plain")
    assert lenient.stdout == "✓ Config is valid.\n"
    assert "Warning: " in lenient.stderr
    assert "`--model-type NAME`" in lenient.stderr
    inline("env", "validate", "--resources-server", "plain", "--strict", code=2)


def test_an_agent_under_the_name_of_another_one_is_said(inline: Any) -> None:
    told = inline("env", "validate", *SERVERS, "--agent", "simple_agent").stderr
    assert told == "Note: `simple_agent` runs under the name `plain_agent`, by which rows and settings call it.\n"
    assert inline("env", "validate", *SERVERS, "--agent", "plain_agent").stderr == ""


@pytest.mark.parametrize("command", ["validate", "resolve"])
def test_a_command_as_agent_is_checked_and_shown_without_starting_it(inline: Any, command: str) -> None:
    told = inline("env", command, *SERVERS, "--agent-command", "python my_agent.py {prompt}")
    assert "Note: `command_agent` runs under the name `plain_agent`" in told.stderr
    if command == "resolve":
        settings = yaml.safe_load(told.stdout)["plain_agent"]["responses_api_agents"]["command_agent"]
        assert settings["command"] == "python my_agent.py {prompt}"
        assert settings["directory"] == str(Path.cwd())
    for words, says in (
        (["--agent", "simple_agent", "--agent-command", "python"], "`--agent-command` is run by `command_agent`"),
        (["--agent-command", "no_such_program"], "no_such_program"),
        (["--agent", "command_agent"], "Give `--agent-command CMD`, or"),
    ):
        assert says in inline("env", command, *SERVERS, *words, code=2).stderr


def test_resolve_prints_the_merged_configuration_without_secrets(inline: Any) -> None:
    (Path.cwd() / "env.yaml").write_text("hf_token: hf_secret\nlimit: 3\n")
    flags = ("--model", "m=1", "--model-url", "http://h:1/v1?a=[b]", "--model-api-key", 'sk-"quoted"')
    done = inline("env", "resolve", *SERVERS, *flags, "++limit=4")
    assert "secret" not in done.stdout
    shown = yaml.safe_load(done.stdout)
    assert shown["policy_model_name"] == "m=1"
    assert shown["policy_base_url"] == "http://h:1/v1?a=[b]"
    assert shown["policy_api_key"] == "****"
    assert shown["limit"] == 4
    assert json.loads(inline("env", "resolve", *SERVERS, "--json").stdout)["plain"]
    rows = json.loads(inline("env", "resolve", *SERVERS, "++limit=4", "--sources", "--json").stdout)
    origins = {row["key"]: row["source"] for row in rows}
    assert origins["limit"] == "command line"
    assert origins["hf_token"].endswith("env.yaml")
    assert origins["plain.resources_servers.plain.domain"].endswith("plain.yaml")


def test_a_file_of_the_users_own_wins_over_a_named_component(inline: Any) -> None:
    (Path.cwd() / "mine.yaml").write_text("plain: {resources_servers: {plain: {greeting: bonjour}}}\n")
    shown = yaml.safe_load(inline("env", "resolve", *SERVERS, "--config", "mine.yaml").stdout)
    assert shown["plain"]["resources_servers"]["plain"]["greeting"] == "bonjour"


def test_verbose_reaches_the_servers_wherever_it_stands(
    inline: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    for words in (("-v", "env", "resolve"), ("env", "resolve", "--verbose")):
        assert yaml.safe_load(inline(*words).stdout)["verbose"] is True

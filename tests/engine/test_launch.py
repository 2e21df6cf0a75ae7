"""Servers as processes: started together, ready or explained, and gone afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from nemo_gym.config import ResolvedConfig
from nemo_gym.config.global_dict import read_handed_down
from nemo_gym.engine.local import ask, start_servers
from nemo_gym.engine.local.leftovers import marked_processes
from nemo_gym.errors import ConfigError, ServerStartError

Make = Callable[..., ResolvedConfig]
DEADLINE_S = 120.0
COMPONENTS = Path(__file__).parent / "components"


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"still waiting for: {what}"
        time.sleep(0.01)


async def test_all_servers_start_at_once_and_are_ready_when_start_returns(three_servers: Make, tmp_path: Path) -> None:
    events: list[tuple[str, str]] = []
    running = await start_servers(
        three_servers(), log_dir=tmp_path, on_event=lambda instance, event: events.append((instance.name, event))
    )
    try:
        assert [instance.name for instance in running.instances] == ["plain", "plain_agent", "policy_model"]
        assert [event for _, event in events[:3]] == ["started"] * 3
        assert {name for name, event in events if event == "ready"} == {"plain", "plain_agent", "policy_model"}
        for instance in running.instances:
            answer = await ask(instance.host, instance.port, "/readyz", timeout_s=2)
            assert answer is not None
            assert answer.status == 200
            assert f"{instance.name} says hello" in instance.log_file.read_text()
    finally:
        await running.stop()


async def test_there_is_one_process_per_server_and_stopping_leaves_none(three_servers: Make, tmp_path: Path) -> None:
    running = await start_servers(three_servers(), log_dir=tmp_path)
    pids = {instance.pid for instance in running.instances}
    assert set(marked_processes(running.launch_id)) == pids
    assert {child.pid for child in psutil.Process().children(recursive=True)} >= pids
    await running.stop()
    assert not [pid for pid in pids if runs(pid)]
    assert marked_processes(running.launch_id) == []
    await running.stop()  # a second time does nothing


async def test_a_server_runs_like_python_app_py_in_its_own_folder(one_server: Make, tmp_path: Path) -> None:
    running = await start_servers(one_server(), log_dir=tmp_path)
    try:
        instance = running.instances[0]
        answer = await ask(instance.host, instance.port, "/", timeout_s=2)
        assert answer is not None
        told = json.loads(answer.body)
        folder = str(COMPONENTS / "resources_servers" / "plain")
        assert told["cwd"] == folder
        assert told["path"][0] == folder
        assert str(COMPONENTS) in told["path"]
        assert told["argv"] == [f"{folder}/app.py"]
        assert told["extra_roots"].split(os.pathsep) == [str(COMPONENTS), str(Path.cwd())]
        assert instance.as_dict()["url"] == f"http://127.0.0.1:{instance.port}"
        assert instance.as_dict()["config_path"] == "plain"
    finally:
        await running.stop()


async def test_a_server_that_dies_while_starting_is_named_with_its_last_20_lines(
    one_server: Make, tmp_path: Path
) -> None:
    with pytest.raises(ServerStartError) as caught:
        await start_servers(one_server(behaviour="die"), log_dir=tmp_path)
    message = str(caught.value)
    assert "`plain` (resources_servers/plain) exited with code 3 while starting" in message
    assert str(tmp_path / "plain.log") in message
    lines = [line.strip() for line in message.splitlines() if line.strip().startswith("line ")]
    assert lines == [f"line {number}" for number in range(10, 30)]
    assert caught.value.exit_code == 1


async def test_a_server_that_ends_at_once_is_told_how_its_file_must_end(one_server: Make, tmp_path: Path) -> None:
    hint = r'code 0 while starting.*plain/app\.py` must end with `if __name__ == "__main__": YourServer\.run_webserver'
    with pytest.raises(ServerStartError, match=hint):
        await start_servers(one_server(behaviour="end"), log_dir=tmp_path)


async def test_one_server_that_dies_takes_the_others_down(three_servers: Make, tmp_path: Path) -> None:
    started: list[int] = []
    with pytest.raises(ServerStartError, match="policy_model"):
        await start_servers(
            three_servers("+policy_model.responses_api_models.plain_model.behaviour=die"),
            log_dir=tmp_path,
            on_event=lambda instance, _event: started.append(instance.pid),
        )
    assert len(set(started)) == 3
    assert not [pid for pid in started if runs(pid)]


async def test_a_missing_module_is_named(one_server: Make, tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match="No module named 'not_installed_anywhere'"):
        await start_servers(one_server(behaviour="import"), log_dir=tmp_path)


async def test_a_server_that_is_never_ready_is_named_when_the_time_is_up(one_server: Make, tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match=r"not ready after 0.3 s: `plain`.*server_spinup_timeout_seconds"):
        await start_servers(one_server(behaviour="hang"), log_dir=tmp_path, ready_timeout_s=0.3)


async def test_a_taken_port_is_named_before_anything_starts(one_server: Make, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"port {port} .*`plain`.* is taken.*plain\.resources_servers\.plain\.port"
        ):
            await start_servers(one_server(port=port), log_dir=tmp_path)
    assert not list(tmp_path.iterdir())


async def test_a_server_that_ignores_sigterm_is_killed(one_server: Make, tmp_path: Path) -> None:
    running = await start_servers(one_server(behaviour="stubborn"), log_dir=tmp_path)
    pid = running.instances[0].pid
    await running.stop(grace_s=0.2)
    assert not runs(pid)


async def test_stopping_ends_what_a_server_started_daemons_included(one_server: Make, tmp_path: Path) -> None:
    running = await start_servers(one_server(children=str(tmp_path)), log_dir=tmp_path)
    child, daemon = children(tmp_path)
    assert runs(child)
    assert runs(daemon)
    await running.stop()
    assert not runs(child)
    assert not runs(daemon)


async def test_a_server_that_ends_later_is_reported(one_server: Make, tmp_path: Path) -> None:
    running = await start_servers(one_server(), log_dir=tmp_path)
    try:
        os.kill(running.instances[0].pid, signal.SIGKILL)
        async with asyncio.timeout(DEADLINE_S):
            error = await running.wait_failed()
        assert "`plain`" in str(error)
        assert "was ended by SIGKILL while running" in str(error)
        assert "plain says hello" in str(error)
    finally:
        await running.stop()


async def test_a_cancelled_start_leaves_nothing_behind(one_server: Make, tmp_path: Path) -> None:
    started: list[int] = []
    seen = asyncio.Event()

    def note(instance: object, _event: str) -> None:
        started.append(instance.pid)  # type: ignore[attr-defined]
        seen.set()

    start = asyncio.create_task(start_servers(one_server(behaviour="hang"), log_dir=tmp_path, on_event=note))
    await seen.wait()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not [pid for pid in started if runs(pid)]


async def test_a_configuration_too_large_for_a_variable_goes_through_a_private_file(
    one_server: Make, tmp_path: Path
) -> None:
    from nemo_gym.config.global_dict import hand_down

    data = {**one_server().data, "big": "x" * 200_000}
    text = hand_down(data, tmp_path / "config.json")
    assert len(text) < 1000
    assert read_handed_down(text) == data
    assert (tmp_path / "config.json").stat().st_mode & 0o777 == 0o600


def children(folder: Path) -> tuple[int, int]:
    files = [folder / "plain.child", folder / "plain.daemon"]
    wait_until(lambda: all(file.is_file() and file.read_text() for file in files), "the server's children")
    child, daemon = (int(file.read_text()) for file in files)
    return child, daemon


def answers(port: int) -> bool:
    return asyncio.run(ask("127.0.0.1", port, "/readyz", timeout_s=0.3)) is not None


STARTER = """
import asyncio, json, sys
from pathlib import Path
from nemo_gym.config import assign_ports, load_config
from nemo_gym.engine.local import start_servers

async def main():
    config = load_config(initial=json.loads(sys.argv[1]), search_dirs=[sys.argv[2]], env_file=None)
    running = await start_servers(assign_ports(config), log_dir=Path(sys.argv[3]))
    print(json.dumps([[instance.pid, instance.port] for instance in running.instances]), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("behaviour", ["serve", "stubborn", "stuck"])
def test_nothing_survives_a_killed_starter(behaviour: str, tmp_path: Path) -> None:
    """Even SIGKILL of the starting process leaves no server, no child of one and no daemon behind."""
    blocks = {
        name: {
            "resources_servers": {"plain": {"entrypoint": "app.py", "domain": "other", "behaviour": behaviour, **more}}
        }
        for name, more in (("plain", {"children": str(tmp_path)}), ("second", {}))
    }
    starter = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STARTER), json.dumps(blocks), str(COMPONENTS), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    servers = json.loads(starter.stdout.readline())
    left = [*(pid for pid, _ in servers), *children(tmp_path)]
    if behaviour == "stuck":
        with socket.create_connection(("127.0.0.1", servers[0][1])) as connection:
            connection.sendall(b"GET /stuck HTTP/1.0\r\n\r\n")
        wait_until(lambda: not answers(servers[0][1]), "the server to be stuck")
    assert all(runs(pid) for pid in left)
    starter.kill()
    starter.wait()
    starter.stdout.close()
    wait_until(lambda: not any(runs(pid) for pid in left), "the end of what the starter had started")

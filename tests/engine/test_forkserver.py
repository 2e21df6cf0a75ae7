"""Servers as copies of one process that has imported what all of them need."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from nemo_gym.config import ResolvedConfig
from nemo_gym.engine.local import adoption, ask, start_servers
from nemo_gym.engine.local.leftovers import marked_processes
from nemo_gym.errors import ServerStartError

Make = Callable[..., ResolvedConfig]
SHARED = ("nemo_gym.records", "decimal")
DEADLINE_S = 120.0

pytestmark = pytest.mark.skipif(not adoption.can_adopt(), reason="only Linux lets a process adopt orphans")


def open_files(pid: int) -> list[str]:
    """What a process has open, without its connections, which come and go; pipes without their numbers."""
    found = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    return [name.split(":")[0] for name in found if not name.startswith("socket")]


async def told_by_all(make: Make, log_dir: Path, shared: tuple[str, ...]) -> dict[str, dict[str, object]]:
    """What each server says of the process that it runs in."""
    running = await start_servers(make(), log_dir=log_dir, shared_imports=shared)
    told = {}
    try:
        for instance in running.instances:
            answer = await ask(instance.host, instance.port, "/", timeout_s=10)
            assert answer is not None
            process = psutil.Process(instance.pid)
            told[instance.name] = {
                **json.loads(answer.body),
                "parent": process.ppid(),
                "session": os.getsid(instance.pid) == instance.pid,
                "descriptors": sorted(open_files(instance.pid)),
                "log": instance.log_file.read_text(),
            }
    finally:
        await running.stop()
    return told


async def test_a_copy_cannot_be_told_from_a_server_that_was_started_alone(three_servers: Make, tmp_path: Path) -> None:
    alone = await told_by_all(three_servers, tmp_path, ())
    copies = await told_by_all(three_servers, tmp_path, SHARED)
    assert copies == alone
    assert all(server["parent"] == os.getpid() and server["session"] for server in copies.values())


async def test_the_fork_server_is_gone_and_no_orphan_is_adopted_any_more(three_servers: Make, tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    running = await start_servers(three_servers(), log_dir=tmp_path, shared_imports=SHARED)
    pids = {instance.pid for instance in running.instances}
    try:
        assert set(marked_processes(running.launch_id)) == pids
        assert {child.pid for child in psutil.Process().children(recursive=True)} - before == pids
        assert not adoption._adopts()
    finally:
        await running.stop()
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


async def test_starts_at_the_same_time_do_not_take_the_adoption_from_each_other(
    three_servers: Make, tmp_path: Path
) -> None:
    starts = [start_servers(three_servers(), log_dir=tmp_path / str(n), shared_imports=SHARED) for n in range(3)]
    for running in await asyncio.gather(*starts):
        await running.stop()
        assert [process.exit_code for process in running._processes] == [-signal.SIGTERM] * 3
    assert not adoption._adopts()


async def test_a_copy_that_dies_while_starting_is_named_with_its_last_lines(
    three_servers: Make, tmp_path: Path
) -> None:
    config = three_servers("+policy_model.responses_api_models.plain_model.behaviour=die")
    with pytest.raises(ServerStartError, match=r"exited with code 3 while starting(?s:.*)line 29"):
        await start_servers(config, log_dir=tmp_path, shared_imports=SHARED)


async def test_an_error_in_a_copy_is_a_traceback_in_its_log(three_servers: Make, tmp_path: Path) -> None:
    config = three_servers("+policy_model.responses_api_models.plain_model.behaviour=import")
    with pytest.raises(ServerStartError, match=r"exited with code 1 (?s:.*)Traceback(?s:.*)not_installed_anywhere"):
        await start_servers(config, log_dir=tmp_path, shared_imports=SHARED)


async def test_a_copy_that_ends_later_is_reported(three_servers: Make, tmp_path: Path) -> None:
    running = await start_servers(three_servers(), log_dir=tmp_path, shared_imports=SHARED)
    try:
        os.kill(running.instances[1].pid, signal.SIGKILL)
        async with asyncio.timeout(DEADLINE_S):
            error = await running.wait_failed()
        assert "was ended by SIGKILL while running" in str(error)
        assert psutil.Process(running.instances[0].pid).is_running()
    finally:
        await running.stop()


@pytest.mark.parametrize(
    "text",
    [
        "import not_installed_anywhere",
        "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "import os; print([1, 2, 3], flush=True); os._exit(0)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    ],
    ids=["missing", "thread", "ends without an answer", "killed"],
)
async def test_imports_that_do_not_allow_copies_leave_each_server_on_its_own(
    text: str, three_servers: Make, tmp_path: Path
) -> None:
    (tmp_path / "odd_module.py").write_text(text)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    running = await start_servers(
        three_servers(), log_dir=tmp_path / "logs", environ=environ, shared_imports=("odd_module",)
    )
    try:
        assert len(running.instances) == 3
        for instance in running.instances:
            assert "nemo_gym.engine.local.child" in psutil.Process(instance.pid).cmdline()
    finally:
        await running.stop()


async def test_a_start_that_is_cancelled_while_it_imports_leaves_nothing_behind(
    three_servers: Make, tmp_path: Path
) -> None:
    (tmp_path / "slow_module.py").write_text(f"open({str(tmp_path / 'began')!r}, 'w'); import time; time.sleep(600)")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    start = asyncio.create_task(
        start_servers(three_servers(), log_dir=tmp_path / "logs", environ=environ, shared_imports=("slow_module",))
    )
    async with asyncio.timeout(DEADLINE_S):
        while not (tmp_path / "began").exists():
            await asyncio.sleep(0.01)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert {child.pid for child in psutil.Process().children(recursive=True)} == before
    assert not adoption._adopts()

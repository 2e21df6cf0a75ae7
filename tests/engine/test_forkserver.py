"""Servers as copies of one process that has imported what all of them need."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
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
SHARED = ("decimal", "fractions")
DEADLINE_S = 120.0

pytestmark = pytest.mark.skipif(not adoption.can_adopt(), reason="only Linux lets a process adopt orphans")


def open_files(pid: int) -> list[str]:
    """What a process has open, without its connections, which come and go; pipes without their numbers."""
    found = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    return [name.split(":")[0] for name in found if not name.startswith("socket")]


def with_modules_of(folder: Path) -> dict[str, str]:
    """The environment of a process that can import what is in `folder`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def processes() -> set[int]:
    """What this process started, zombies included."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


async def told_by_all(
    make: Make, log_dir: Path, shared: tuple[str, ...], environ: dict[str, str]
) -> dict[str, dict[str, object]]:
    """What each server says of the process that it runs in."""
    running = await start_servers(make(), log_dir=log_dir, shared_imports=shared, environ=environ)
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


@pytest.mark.parametrize("more", [{}, {"PYTHONSAFEPATH": "1"}, {"HF_HOME": ""}], ids=["plain", "safe path", "no cache"])
async def test_a_copy_cannot_be_told_from_a_server_that_was_started_alone(
    more: dict[str, str], three_servers: Make, tmp_path: Path
) -> None:
    environ = {name: value for name, value in {**os.environ, **more}.items() if value}
    alone = await told_by_all(three_servers, tmp_path, (), environ)
    copies = await told_by_all(three_servers, tmp_path, SHARED, environ)
    assert copies == alone
    assert all(server["parent"] == os.getpid() and server["session"] for server in copies.values())


async def test_the_fork_server_is_gone_and_no_orphan_is_adopted_any_more(three_servers: Make, tmp_path: Path) -> None:
    before = processes()
    running = await start_servers(three_servers(), log_dir=tmp_path, shared_imports=SHARED)
    pids = {instance.pid for instance in running.instances}
    try:
        assert set(marked_processes(running.launch_id)) == pids
        assert processes() - before == pids
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
    with pytest.raises(ServerStartError, match=r"exited with code 1 (?s:.*)not_installed_anywhere"):
        await start_servers(config, log_dir=tmp_path, shared_imports=SHARED)
    # Newer Pythons take more lines for a frame than the message has room for.
    assert "Traceback" in (tmp_path / "policy_model.log").read_text()


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
    ("module", "text"),
    [
        ("odd_module", "import not_installed_anywhere"),
        ("odd_module", "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"),
        ("odd_module", "import os; print([1, 2, 3], flush=True); os._exit(0)"),
        ("odd_module", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
        ("odd_module", "import os; os.register_at_fork(after_in_parent=lambda: os._exit(0))"),
        ("serving", ""),
    ],
    ids=["missing", "thread", "ends without an answer", "killed", "ends after one copy", "a server has its own"],
)
async def test_imports_that_do_not_allow_copies_leave_each_server_on_its_own(
    module: str, text: str, three_servers: Make, tmp_path: Path
) -> None:
    (tmp_path / f"{module}.py").write_text(text)
    environ = with_modules_of(tmp_path)
    before = processes()
    running = await start_servers(
        three_servers(), log_dir=tmp_path / "logs", environ=environ, shared_imports=("decimal", module)
    )
    try:
        assert len(running.instances) == 3
        for instance in running.instances:
            assert "nemo_gym.engine.local.child" in psutil.Process(instance.pid).cmdline()
        assert processes() - before == {instance.pid for instance in running.instances}
    finally:
        await running.stop()


@pytest.mark.parametrize(
    "slow", ["{}()", "import os; os.register_at_fork(after_in_parent={})"], ids=["imports", "forks"]
)
async def test_a_start_that_is_cancelled_while_it_goes_on_leaves_nothing_behind(
    slow: str, three_servers: Make, tmp_path: Path
) -> None:
    began = f"def began(): open({str(tmp_path / 'began')!r}, 'w'); time.sleep(600)"
    (tmp_path / "slow_module.py").write_text("\n".join(["import time", began, slow.format("began")]))
    environ = with_modules_of(tmp_path)
    before = processes()
    start = asyncio.create_task(
        start_servers(
            three_servers(), log_dir=tmp_path / "logs", environ=environ, shared_imports=("decimal", "slow_module")
        )
    )
    async with asyncio.timeout(DEADLINE_S):
        while not (tmp_path / "began").exists():
            await asyncio.sleep(0.01)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert processes() == before
    assert not adoption._adopts()


async def start_and_stop(config: ResolvedConfig, log_dir: Path) -> list[list[str]]:
    """The command lines of servers that share imports."""
    running = await start_servers(config, log_dir=log_dir, shared_imports=SHARED)
    try:
        return [psutil.Process(instance.pid).cmdline() for instance in running.instances]
    finally:
        await running.stop()


def test_the_event_loop_may_be_another(three_servers: Make, tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop", reason="a loop that need not be installed")
    before = processes()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        lines = runner.run(start_and_stop(three_servers(), tmp_path))
    assert all("nemo_gym.engine.local.forkserver" in line for line in lines)
    assert processes() == before


def test_the_starter_may_be_one_that_does_not_wait_for_children(three_servers: Make, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        lines = asyncio.run(start_and_stop(three_servers(), tmp_path))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert all("nemo_gym.engine.local.forkserver" in line for line in lines)


async def test_starts_and_stops_leave_no_descriptor_and_no_process(three_servers: Make, tmp_path: Path) -> None:
    await start_and_stop(three_servers(), tmp_path)
    before = processes(), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        await start_and_stop(three_servers(), tmp_path)
    assert (processes(), len(list(Path("/proc/self/fd").iterdir()))) == before


async def test_copies_for_which_no_descriptor_is_left_are_ended(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = processes()
    reading, writing = os.pipe()
    forkserver = adoption.ForkServer(SHARED, directory=tmp_path, environment=os.environ, inherited=reading)
    server = {"directory": str(tmp_path), "entrypoint": "app.py", "log_file": str(tmp_path / "log")}
    (tmp_path / "app.py").write_text("import time; time.sleep(600)")
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(64, *(int(entry.name) for entry in Path("/proc/self/fd").iterdir())), limits[1])
    )
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(OSError, match="Too many open files"):
            await forkserver.fork([{**server, "name_variable": "NAME", "name": str(number)} for number in range(3)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in (*taken, reading, writing):
            os.close(descriptor)
    assert processes() == before


@pytest.mark.parametrize("shared", [(), SHARED], ids=["alone", "copies"])
async def test_a_log_that_cannot_be_written_is_an_error_of_the_starter(
    shared: tuple[str, ...], three_servers: Make, tmp_path: Path
) -> None:
    (tmp_path / "plain_agent.log").mkdir()
    with pytest.raises(IsADirectoryError, match=r"plain_agent\.log"):
        await start_servers(three_servers(), log_dir=tmp_path, shared_imports=shared)


async def test_imports_that_at_most_one_server_needs_are_not_shared(three_servers: Make, tmp_path: Path) -> None:
    running = await start_servers(three_servers(), log_dir=tmp_path, shared_imports=("nemo_gym.records",))
    try:
        for instance in running.instances:
            assert "nemo_gym.engine.local.child" in psutil.Process(instance.pid).cmdline()
    finally:
        await running.stop()

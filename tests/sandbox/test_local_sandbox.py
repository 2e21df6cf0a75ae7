"""The local provider, with real folders and real processes."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from nemo_gym.sandbox import AsyncSandbox, SandboxCreateError, SandboxSpec, SandboxStatus
from nemo_gym.sandbox.providers.base import ConnectableProvider, PausableProvider, SandboxProvider
from nemo_gym.sandbox.providers.local import LocalProvider

DEADLINE_S = 120.0


@pytest.fixture(name="base")
def base_fixture(tmp_path: Path) -> Path:
    return tmp_path / "sandboxes"


@pytest.fixture(name="sandbox")
async def sandbox_fixture(base: Path) -> AsyncIterator[AsyncSandbox]:
    async with AsyncSandbox({"local": {"base_dir": str(base)}}, SandboxSpec(workdir="/work", env={"A": "1"})) as made:
        yield made


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def wait_until_gone(pid: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_gone(pid):
            await asyncio.sleep(0.01)


def test_the_local_provider_is_a_provider_that_can_be_connected_to() -> None:
    provider = LocalProvider()
    assert isinstance(provider, SandboxProvider)
    assert isinstance(provider, ConnectableProvider)
    assert not isinstance(provider, PausableProvider)


async def test_a_command_has_its_output_its_code_its_folder_and_its_variables(sandbox: AsyncSandbox) -> None:
    result = await sandbox.exec('pwd; echo "$A $B" >&2; exit 3', env={"B": "2"})
    assert result.stdout.rstrip().endswith("/root/work")
    assert (result.stderr, result.return_code, result.error_type) == ("1 2\n", 3, None)
    assert (await sandbox.exec("pwd", cwd="/")).stdout.rstrip().endswith("/root")


async def test_keys_of_this_process_stay_out_unless_they_are_named(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "sk-1")
    for inherited, seen in (([], ""), (["SECRET_KEY"], "sk-1")):
        async with AsyncSandbox({"local": {"base_dir": str(base), "inherit_env": inherited}}, SandboxSpec()) as sandbox:
            assert (await sandbox.exec('printf %s "$SECRET_KEY"')).stdout == seen


async def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(sandbox: AsyncSandbox) -> None:
    result = await sandbox.exec("echo before; sleep 300 & echo $!; setsid sleep 300 & wait", timeout_s=0.5)
    assert (result.return_code, result.error_type) == (124, "timeout")
    first, child = result.stdout.split()
    assert first == "before"
    await wait_until_gone(int(child))
    assert "sleep" not in (await sandbox.exec("ps -e -o args= | grep '^sleep 300' || true")).stdout


async def test_a_cancelled_command_leaves_nothing(sandbox: AsyncSandbox, base: Path) -> None:
    running = asyncio.create_task(sandbox.exec("echo $$ > pid; sleep 300"))
    file = next(base.glob("gym-sandbox-*")) / "root" / "work" / "pid"
    async with asyncio.timeout(DEADLINE_S):
        while not (file.is_file() and file.read_text().strip()):
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_until_gone(int(file.read_text()))


async def test_what_runs_in_the_background_ends_with_its_command_unless_it_is_to_be_kept(sandbox: AsyncSandbox) -> None:
    ended = await sandbox.exec("sleep 300 & echo $!")
    await wait_until_gone(int(ended.stdout))
    kept = await sandbox.exec("sleep 300 & echo $!", preserve_background_services=True)
    assert not is_gone(int(kept.stdout))
    await sandbox.stop()
    await wait_until_gone(int(kept.stdout))


async def test_stopping_removes_the_folder_whatever_a_command_did_to_it(base: Path) -> None:
    sandbox = AsyncSandbox({"local": {"base_dir": str(base)}}, SandboxSpec())
    await sandbox.start()
    (folder,) = base.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    await sandbox.exec("mkdir -p a/b; touch a/b/c; chmod 0 a/b a; ln -s / everything")
    await sandbox.stop()
    await sandbox.stop()
    assert list(base.iterdir()) == []
    assert await sandbox.status() is SandboxStatus.STOPPED


async def test_files_are_copied_in_and_out(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    source = tmp_path / "run.sh"
    source.write_text("#!/bin/sh\necho hello\n")
    source.chmod(0o755)
    await sandbox.upload(source, "/opt/tools/run.sh")
    assert (await sandbox.exec("../opt/tools/run.sh > out.txt; cat out.txt")).stdout == "hello\n"
    await sandbox.download("work/out.txt", tmp_path / "new" / "out.txt")
    assert (tmp_path / "new" / "out.txt").read_text() == "hello\n"
    source.write_text("x")
    await sandbox.upload(source, "/opt/tools/run.sh")
    assert (await sandbox.exec("cat /dev/null ../opt/tools/run.sh")).stdout == "x"


@pytest.mark.parametrize(
    "remote", ["../out.txt", "/../../out.txt", "a/../../../out.txt", "link/out.txt", "file", "p\0"]
)
async def test_no_path_leads_out_of_the_sandbox(sandbox: AsyncSandbox, tmp_path: Path, base: Path, remote: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "out.txt").write_text("secret")
    (base / "out.txt").write_text("secret")
    await sandbox.exec(f"ln -s {outside} ../link; ln -s {outside}/out.txt ../file")
    source = tmp_path / "source"
    source.write_text("new")
    with pytest.raises(ValueError, match=r"sandbox|zero byte"):
        await sandbox.upload(source, remote)
    with pytest.raises(ValueError, match=r"sandbox|zero byte"):
        await sandbox.download(remote, tmp_path / "copy")
    assert (outside / "out.txt").read_text() == "secret"
    assert not (tmp_path / "copy").exists()


async def test_a_link_inside_the_sandbox_works_and_a_pipe_does_not_block(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    await sandbox.exec("echo x > real; ln -s real link; mkfifo pipe")
    await sandbox.download("work/link", tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "x\n"
    with pytest.raises(ValueError, match="regular file"):
        await sandbox.download("work/pipe", tmp_path / "copy")


async def test_another_process_can_connect_and_leave_again(sandbox: AsyncSandbox, base: Path) -> None:
    await sandbox.exec("echo shared > file")
    descriptor = await sandbox.serialize()
    assert set(descriptor) == {"provider", "sandbox_id"}
    other = await AsyncSandbox.connect(descriptor, provider={"local": {"base_dir": str(base)}})
    async with other:
        assert (await other.exec("cat file; echo $A")).stdout == "shared\n1\n"
    with pytest.raises(RuntimeError, match="stopped"):
        await other.exec("true")
    assert await sandbox.status() is SandboxStatus.RUNNING
    with pytest.raises(RuntimeError, match="connected"):
        await sandbox.disconnect()


@pytest.mark.parametrize("sandbox_id", ["../../etc", "", "0" * 32, None])
async def test_a_descriptor_can_only_name_a_sandbox(base: Path, sandbox_id: object) -> None:
    base.mkdir(exist_ok=True)
    with pytest.raises((ValueError, RuntimeError), match="sandbox"):
        await LocalProvider(base).connect({"provider": "local", "sandbox_id": sandbox_id})


async def test_a_sandbox_whose_time_is_over_is_stopped(base: Path) -> None:
    async with AsyncSandbox({"local": {"base_dir": str(base)}}, SandboxSpec(ttl_s=0)) as sandbox:
        with pytest.raises(RuntimeError, match="ttl_s"):
            await sandbox.exec("true")
        assert await sandbox.status() is SandboxStatus.STOPPED
        assert list(base.iterdir()) == []


async def test_only_declared_ports_have_an_endpoint(base: Path) -> None:
    async with AsyncSandbox({"local": {"base_dir": str(base)}}, SandboxSpec(ports=(8080,))) as sandbox:
        assert await sandbox.endpoint(8080) == "http://127.0.0.1:8080"
        with pytest.raises(ValueError, match="8081"):
            await sandbox.endpoint(8081)
        with pytest.raises(RuntimeError, match="cannot pause"):
            await sandbox.pause()


async def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sandbox = AsyncSandbox({"local": {"base_dir": str(tmp_path / "file")}}, SandboxSpec())
    with pytest.raises(SandboxCreateError, match="no local sandbox could be made"):
        await sandbox.start()


async def test_commands_run_as_the_current_user_only(sandbox: AsyncSandbox) -> None:
    assert (await sandbox.exec("id -u", user=os.geteuid())).stdout == f"{os.geteuid()}\n"
    with pytest.raises(ValueError, match="nobody-else"):
        await sandbox.exec("true", user="nobody-else")

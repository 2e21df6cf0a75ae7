"""A rollout's process ends with its rollout, and so does everything that it started."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from nemo_gym.builtin.responses_api_agents.command_agent import process
from nemo_gym.builtin.responses_api_agents.command_agent.process import Ended, report_lines, run_process

FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
loop = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]
children = [subprocess.Popen(loop), subprocess.Popen(loop, start_new_session=True)]
open(sys.argv[1] + ".new", "w").write(" ".join(str(pid) for pid in (os.getpid(), *(c.pid for c in children))))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


async def run(*arguments: str, folder: Path, timeout_s: float = 60, grace_s: float = 0.2, **env: str) -> Ended:
    return await run_process(
        [sys.executable, *arguments],
        cwd=folder,
        env={"PATH": os.defpath, **env},
        mark=f"test-{os.getpid()}-{folder.name}",
        timeout_s=timeout_s,
        grace_s=grace_s,
    )


async def family_of(file: Path) -> list[int]:
    async with asyncio.timeout(30):
        while not file.exists():
            await asyncio.sleep(0.02)
    return [int(pid) for pid in file.read_text().split()]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


async def test_what_a_program_says_and_how_it_ends_is_returned(tmp_path: Path) -> None:
    program = (
        "import os, sys; print('out', os.getcwd(), os.environ['SEEN']); print('bad', file=sys.stderr); sys.exit(3)"
    )
    before = time.time()
    ended = await run("-c", program, folder=tmp_path, SEEN="yes")
    assert (ended.exit_code, ended.timed_out, ended.succeeded) == (3, False, False)
    assert ended.stdout == f"out {tmp_path} yes\n"
    assert ended.stderr_tail == "bad\n"
    assert before <= ended.started_at <= time.time()
    assert ended.describe() == "ended with exit code 3"


async def test_only_the_given_environment_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY_OF_THE_USER", "secret")
    ended = await run("-c", "import os; print('A_KEY_OF_THE_USER' in os.environ)", folder=tmp_path)
    assert ended.stdout == "False\n"


async def test_a_program_that_ends_by_a_signal_says_which(tmp_path: Path) -> None:
    ended = await run("-c", f"import os; os.kill(os.getpid(), {int(signal.SIGUSR1)})", folder=tmp_path)
    assert ended.describe() == "was ended by SIGUSR1"


async def test_at_the_deadline_a_program_may_write_down_what_it_knows(tmp_path: Path) -> None:
    program = """
import signal, sys, time
def last_words(*_):
    open("said", "w").write("so far")
    sys.exit(0)
signal.signal(signal.SIGTERM, last_words)
open("ready", "w").close()
time.sleep(600)
"""
    ended = await run("-c", program, folder=tmp_path, timeout_s=4, grace_s=30)
    assert (ended.timed_out, ended.succeeded) == (True, False)
    assert not (tmp_path / "ready").exists() or (tmp_path / "said").read_text() == "so far"


async def test_the_deadline_ends_a_stubborn_family(tmp_path: Path) -> None:
    running = asyncio.create_task(run("-c", FAMILY, str(tmp_path / "pids"), folder=tmp_path, timeout_s=3))
    pids = await family_of(tmp_path / "pids")
    assert len(alive(pids)) == 3
    assert (await running).timed_out
    assert alive(pids) == []


async def test_a_cancelled_rollout_ends_the_whole_family_at_once(tmp_path: Path) -> None:
    running = asyncio.create_task(run("-c", FAMILY, str(tmp_path / "pids"), folder=tmp_path))
    pids = await family_of(tmp_path / "pids")
    assert len(alive(pids)) == 3
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert alive(pids) == []


async def test_what_a_program_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " start_new_session=True); print(child.pid)"
    )
    ended = await run("-c", program, folder=tmp_path)
    assert ended.succeeded
    assert alive([int(ended.stdout)]) == []


async def test_a_program_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await run_process(["./none"], cwd=tmp_path, env={}, mark="m", timeout_s=1, grace_s=0)


def test_only_a_plain_file_is_read_as_a_report(tmp_path: Path) -> None:
    (tmp_path / "report").write_bytes(b"one\ntwo")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/hostname")
    assert list(report_lines(tmp_path / "report")) == [b"one\n", b"two"]
    assert [list(report_lines(tmp_path / name)) for name in ("pipe", "link", "none", ".")] == [[], [], [], []]


def test_a_report_that_is_too_long_says_so_after_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "REPORT_BYTES", 6)
    (tmp_path / "report").write_bytes(b"one\ntwo")
    lines = report_lines(tmp_path / "report")
    assert [next(lines), next(lines)] == [b"one\n", b"tw"]
    with pytest.raises(ValueError, match="longer than 6 bytes"):
        next(lines)
    (tmp_path / "report").write_bytes(b"one\nt\n")
    assert list(report_lines(tmp_path / "report")) == [b"one\n", b"t\n"]


async def test_output_without_end_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STDOUT_BYTES", 1 << 20)
    program = """
import os, time
print("first words")
os.sys.stdout.flush()
line = b"x" * 65535 + b"\\n"
until = time.monotonic() + 120
for stream in (1, 2):
    largest = 0
    while time.monotonic() < until:  # ends as soon as some of it is taken away
        os.write(stream, line)
        size = os.fstat(stream).st_size
        if size < largest:
            break
        largest = size
    else:
        raise SystemExit("it was left to grow")
    while os.fstat(stream).st_size > 1 << 20:
        time.sleep(0.01)
print("last words", file=os.sys.stderr)
"""
    ended = await run("-c", program, folder=tmp_path, timeout_s=300)
    assert ended.describe() == "ended with exit code 0", ended.stderr_tail[-500:]
    assert ended.stdout.startswith("first words\n")
    assert len(ended.stdout) == 1 << 20
    assert ended.stderr_tail.endswith("x\nlast words\n")
    assert len(ended.stderr_tail) == process.STDERR_TAIL_BYTES


async def test_a_signal_without_a_name_has_its_number(tmp_path: Path) -> None:
    ended = await run("-c", "import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 6)", folder=tmp_path)
    assert ended.describe() == f"was ended by signal {signal.SIGRTMIN + 6}"

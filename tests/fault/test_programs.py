"""The programs of `command_agent` end with the run, however the run ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

HANGS = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
children = [subprocess.Popen([sys.executable, "-c", deaf], start_new_session=own) for own in (False, True)]
name = f"{sys.argv[1]}/{os.getpid()}"
open(name + ".new", "w").write(" ".join(str(pid) for pid in (os.getpid(), *(c.pid for c in children))))
os.rename(name + ".new", name + ".pids")
time.sleep(600)
"""


def eventually(what: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + 90
    while not what():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)


@pytest.mark.parametrize("ends", ["the command is killed", "the command is interrupted", "the agent server is killed"])
def test_no_program_outlives_its_run(tmp_path: Path, ends: str) -> None:
    (tmp_path / "hangs.py").write_text(HANGS, encoding="utf-8")
    command = shlex.join([sys.executable, "hangs.py", str(tmp_path)])
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "nemo_gym.cli.main", "eval", "run", "--resources-server", "ledger"),
            *("--model-type", "scripted_model", "--agent-command", command, "--limit", "2", "-o", "out/rollouts.jsonl"),
        ],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        eventually(lambda: len(list(tmp_path.glob("*.pids"))) == 2, process)
        programs = [int(file.stem) for file in tmp_path.glob("*.pids")]
        pids = [int(pid) for file in tmp_path.glob("*.pids") for pid in file.read_text().split()]
        assert len(pids) == 6
        assert all(psutil.pid_exists(pid) for pid in pids)
        if ends == "the agent server is killed":
            psutil.Process(psutil.Process(programs[0]).ppid()).kill()
        else:
            process.send_signal(signal.SIGKILL if ends == "the command is killed" else signal.SIGINT)
        eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait()

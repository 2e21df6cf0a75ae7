"""The command line as a person uses it: real processes, in a folder of their own, with a clean environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from nemo_gym.config.ports import find_open_port
from nemo_gym.engine.local.leftovers import LAUNCH_ID_ENV

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 120


def free_port() -> int:
    """Return a port that no outgoing connection of another test gets until it is listened on."""
    return find_open_port()


def clean_environment(home: Path) -> dict[str, str]:
    kept = {
        name: os.environ[name] for name in ("LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR") if name in os.environ
    }
    return {**kept, "HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.defpath}", "NO_COLOR": "1"}


@dataclass
class Gym:
    """Runs `gym` in one folder, with a head server port of its own."""

    folder: Path
    port: int = field(default_factory=free_port)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def head(self) -> str:
        return f"+head_server.port={self.port}"

    def run(self, *words: str | Path, code: int = 0, input_text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end and assert its exit code."""
        done = subprocess.run(
            ["gym", *map(str, words)],
            cwd=self.folder,
            env=clean_environment(self.folder),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            input=input_text,
        )
        shown = f"gym {' '.join(map(str, words))}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == code, shown
        assert "Traceback" not in done.stdout + done.stderr, shown
        return done

    def start(self, *words: str | Path, within: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start `gym env start`, as arguments of the command `within`, and wait until it says that it is ready."""
        process = subprocess.Popen(
            [*within, "gym", "env", "start", *map(str, words), self.head],
            cwd=self.folder,
            env=clean_environment(self.folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        said = []
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if line.startswith("Ready"):
                return process
        pytest.fail("`gym env start` ended before it was ready:\n" + "".join(said))

    def stop_all(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def wait_until(condition: Callable[[], bool], *, what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def servers_of(gym: Gym) -> list[int]:
    """Return the ids of the processes that a launch in this folder started, wherever they run now.

    The launcher marks them in their environment, where the home folder is this test's own.
    """
    found = []
    for process in psutil.process_iter():
        try:
            environment, command = process.environ(), " ".join(process.cmdline())
        except (psutil.Error, OSError):
            continue  # gone, or somebody else's
        of_a_launch = LAUNCH_ID_ENV in environment and environment.get("HOME") == str(gym.folder)
        # It has no environment, but the search path of the server that started it.
        scores = "score_worker" in command and str(gym.folder) in command
        if of_a_launch or scores:
            found.append(process.pid)
    return found


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    parent = psutil.Process(process.pid)
    return [parent, *parent.children(recursive=True)]

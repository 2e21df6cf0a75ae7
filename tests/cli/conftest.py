from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from nemo_gym.cli.main import run
from nemo_gym.config.ports import find_open_port

COMPONENTS = Path(__file__).parent.parent / "engine" / "components"
DEADLINE_S = 120.0


@dataclass
class Gym:
    """Runs `gym` in a folder and with a head port of its own."""

    folder: Path
    port: int = field(default_factory=lambda: find_open_port({11_000}))
    background: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("NEMO_GYM_")}
        return {**kept, "XDG_STATE_HOME": str(self.folder / "state"), "NEMO_GYM_EXTRA_ROOTS": str(COMPONENTS)}

    def __call__(
        self, *arguments: str, code: int | None = 0, folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "nemo_gym.cli.main", *arguments],
            cwd=folder or self.folder, env=self.environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        if code is not None:
            assert done.returncode == code, f"{done.returncode}: {done.stdout}\n{done.stderr}"
        return done

    @property
    def head(self) -> str:
        return f"+head_server.port={self.port}"

    def start(self, *arguments: str, until: str = "Ready after") -> subprocess.Popen[bytes]:
        """`gym env start` in the background, returned when it has said `until`."""
        self.out, self.err = self.folder / "out", self.folder / "err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "nemo_gym.cli.main", "env", "start", self.head, *(arguments or SERVERS)],
                cwd=self.folder, env=self.environment, stdout=out, stderr=err,
            )  # fmt: skip
        self.background.append(process)
        wait_until(lambda: until in self.err.read_text() or process.poll() is not None, until)
        assert process.poll() is None, self.err.read_text()
        return process


SERVERS = ("--resources-server", "plain", "--model-type", "plain_model")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"still waiting for: {what}"
        time.sleep(0.01)


def server_pids(text: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"http://\S+\s+(\d+)\s+/", text)]


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def inline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`gym` in this process, for commands that start nothing: the same code, without the start of an interpreter."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(COMPONENTS))

    def call(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        level = logging.getLogger("nemo_gym").level
        try:
            returned = run(arguments)
        finally:
            logging.getLogger("nemo_gym").setLevel(level)
        out, err = capsys.readouterr()
        assert returned == code, f"{returned}: {out}\n{err}"
        return subprocess.CompletedProcess(arguments, returned, out, err)

    return call


@pytest.fixture
def gym(tmp_path: Path) -> Iterator[Gym]:
    runner = Gym(tmp_path)
    yield runner
    for process in runner.background:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(DEADLINE_S)


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[[Callable[[], bool], str], None]:
    return wait_until


@pytest.fixture(name="runs")
def runs_fixture() -> Callable[[int], bool]:
    return runs


@pytest.fixture(name="server_pids")
def server_pids_fixture() -> Callable[[str], list[int]]:
    return server_pids

"""Start: imports, help, and the example environment until it is ready, beside a bare interpreter."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from bench.figures import Figure, repeated, wall_seconds

GYM = [sys.executable, "-m", "nemo_gym.cli.main"]
EXAMPLE = ["--resources-server", "example_single_tool_call", "--model-type", "scripted_model"]


def run() -> list[Figure]:
    """Return the seconds of imports and of the help, and what the example environment needs to be ready."""
    interpreter = repeated(lambda: _seconds([sys.executable, "-c", "pass"]))
    help_text = repeated(lambda: _seconds([*GYM, "--help"]))
    starts = [_start() for _ in range(5)]
    return [
        Figure(
            path="import nemo_gym",
            unit="s",
            values=repeated(lambda: _seconds([sys.executable, "-c", "import nemo_gym"])),
            floor=interpreter,
            budget=0.1,
        ),
        Figure(
            path="gym --help",
            unit="s",
            values=help_text,
            floor=interpreter,
            budget=0.2,
        ),
        Figure(path="example environment ready", unit="s", values=[start[0] for start in starts], budget=3.0),
        Figure(path="its processes", unit="", values=[start[1] for start in starts], budget=4),
        Figure(path="their memory (RSS)", unit="MB", values=[start[2] for start in starts], budget=400),
        Figure(path="their CPU until ready", unit="s", values=[start[3] for start in starts]),
    ]


def _seconds(words: list[str]) -> float:
    return wall_seconds(lambda: subprocess.run(words, check=True, capture_output=True))


def _start() -> tuple[float, float, float, float]:
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        words = [*GYM, "env", "start", *EXAMPLE]
        ready: list[float] = []

        def until_ready() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("Ready"):
                    return
            raise RuntimeError("the environment did not start")

        process = subprocess.Popen(
            [*words, f"+head_server.port={port}", "--log-dir", str(Path(folder) / "logs")],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            ready.append(wall_seconds(until_ready))
            parent = psutil.Process(process.pid)
            members = [parent, *parent.children(recursive=True)]
            memory = sum(member.memory_info().rss for member in members) / 1e6
            # With what the command has waited for: the process that the servers are copies of.
            cpu = sum(sum(member.cpu_times()[:4]) for member in members)
            return ready[0], len(members), memory, cpu
        finally:
            process.terminate()
            process.wait(20)

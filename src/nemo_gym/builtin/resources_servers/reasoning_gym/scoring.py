"""Scores answers in processes that can be killed: scorers evaluate a model's text, and some of that never ends."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import math
import select
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from nemo_gym.errors import MissingExtraError

_START_TIMEOUT_S = 120.0
_WORKER = "nemo_gym.builtin.resources_servers.reasoning_gym.score_worker"
# `-I` keeps the environment and the working directory out; the search path is then the one of this process.
_START = (
    f"import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from {_WORKER} import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]))"
)


class WorkerLostError(Exception):
    """A scoring process did not answer; it is gone."""


class ScorePool:
    """A few scoring processes, started when they are first needed; one that is killed is replaced.

    `timeout_s` bounds one score, `memory_mb` what it may use.
    """

    def __init__(self, *, workers: int, timeout_s: float, memory_mb: int) -> None:
        self._timeout_s, self._memory_mb = timeout_s, memory_mb
        self._idle: SimpleQueue[_Worker | None] = SimpleQueue()
        for _ in range(workers):
            self._idle.put(None)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="score")

    async def score(self, dataset: str, entry: dict[str, Any], answer: str) -> tuple[float, str | None]:
        """Return (score in [0, 1], why it could not be scored or None)."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._score, dataset, entry, answer)

    def close(self) -> None:
        """End the processes that have no job."""
        self._threads.shutdown(wait=True)
        while not self._idle.empty():
            if (worker := self._idle.get()) is not None:
                worker.end()

    def _score(self, dataset: str, entry: dict[str, Any], answer: str) -> tuple[float, str | None]:
        worker = self._idle.get()
        try:
            if worker is None or not worker.is_running():
                worker = _Worker(memory_mb=self._memory_mb, cpu_s=math.ceil(self._timeout_s) + 1)
            said = worker.ask({"dataset": dataset, "entry": entry, "answer": answer}, self._timeout_s)
        except WorkerLostError as error:
            if worker is not None:
                worker.end()
                worker = None
            return 0.0, str(error)
        finally:
            self._idle.put(worker)
        return said.get("score", 0.0), said.get("error")


class _Worker:
    """One scoring process."""

    def __init__(self, *, memory_mb: int, cpu_s: int) -> None:
        need_package()
        folder = tempfile.mkdtemp(prefix="gym-score-")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-B", "-c", _START, str(memory_mb), str(cpu_s), json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={"OPENBLAS_NUM_THREADS": "1"},
            close_fds=True,
            bufsize=0,
        )
        try:
            self._answer_within(_START_TIMEOUT_S, "the scoring process did not start")
        except WorkerLostError:
            self.end()
            raise
        finally:
            Path(folder).rmdir()  # Being in it, the process keeps it, and whatever ends this server leaves nothing.

    def is_running(self) -> bool:
        """Return whether the process is there."""
        return self._process.poll() is None

    def ask(self, job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the answer to a job; raises WorkerLostError when there is none in time."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
        except BrokenPipeError as error:
            raise WorkerLostError("the scoring process ended") from error
        return self._answer_within(timeout_s, f"scoring took longer than {timeout_s:g} s")

    def _answer_within(self, seconds: float, problem: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline, said = time.monotonic() + seconds, b""
        while not said.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise WorkerLostError(problem)
            piece = self._process.stdout.read(65536)
            if not piece:
                raise WorkerLostError(f"the scoring process ended ({_ending(self._process.wait())})")
            said += piece
        answer: dict[str, Any] = json.loads(said)
        return answer

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def need_package() -> None:
    """Raise MissingExtraError when the package of the tasks is not installed."""
    if importlib.util.find_spec("reasoning_gym") is None:
        raise MissingExtraError(
            "the environment `reasoning_gym` needs the package `reasoning-gym`: `pip install 'evidence-gym[envs]'`"
        )

"""The process that scores: it reads jobs from its standard input, one JSON line each, and answers each with a line.

A job is `{"dataset", "entry", "answer"}`; its answer `{"score"}` or `{"error"}`. The process holds nothing but this:
an empty environment, a working directory of its own, and limits that the scorers cannot raise.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nemo_gym.builtin.resources_servers.reasoning_gym.package import load_package
from nemo_gym.builtin.resources_servers.reasoning_gym.refusals import refusal

_ERROR_LENGTH = 500
_STARTING = b'{"started":true}\n'


def main(memory_mb: int, cpu_s: int) -> None:
    """Score until the standard input ends. `cpu_s` bounds one job, `memory_mb` what scoring adds to the process."""
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    load_package()  # takes a second, and is done before the limits

    # What a scorer prints or reads goes nowhere.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    _limit(memory_mb)
    answers.write(_STARTING)
    for line in jobs:
        _allow_cpu_seconds(cpu_s)
        answers.write(json.dumps(_score(json.loads(line))).encode() + b"\n")


def _score(job: dict[str, Any]) -> dict[str, Any]:
    dataset, entry, answer = job["dataset"], job["entry"], job["answer"]
    refused = refusal(dataset, answer, entry.get("answer"))
    if refused is not None:
        return {"error": refused}
    try:
        score = float(_scorer_of(dataset)(answer, entry))
    except Exception as error:  # noqa: BLE001 - over a hundred third-party scorers: each may raise anything on free text
        return {"error": f"{type(error).__name__}: {error}"[:_ERROR_LENGTH]}
    return {"score": score} if math.isfinite(score) else {"error": f"the scorer said {score}"}


@functools.cache
def _scorer_of(dataset: str) -> Callable[..., float]:
    scorer: Callable[..., float] = load_package().get_score_answer_fn(dataset)
    return scorer


def _limit(memory_mb: int) -> None:
    """Bound memory; forbid files and further processes, for as far as the system and the user allow it."""
    limits = {"RLIMIT_AS": _memory_in_use() + memory_mb * 2**20, "RLIMIT_FSIZE": 0, "RLIMIT_NPROC": 0, "RLIMIT_CORE": 0}
    for name, value in limits.items():
        with contextlib.suppress(ValueError, OSError, AttributeError):
            resource.setrlimit(getattr(resource, name), (value, value))


def _memory_in_use() -> int:
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    except OSError:
        return 2**32


def _allow_cpu_seconds(seconds: int) -> None:
    """Let this job use so much: the parent kills it before that, unless the parent is gone."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(spent.ru_utime + spent.ru_stime) + seconds
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

"""Collection against an agent that answers at once: CPU beside a bare loop, memory, time to the first dispatch."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import orjson

from bench.figures import Figure, cpu_seconds
from bench.start import GYM

IN_FLIGHT = 64
RUNS = {1_000: 5, 10_000: 3, 100_000: 1}
"""How often each number of rows is collected."""
BYTES_PER_ROW = 200_000
"""Disk that a rollout with evidence takes: its captures and its record."""
STARTS = 5


def run() -> list[Figure]:
    """Return CPU per rollout, without and with evidence, peak memory, and the seconds to the first dispatch.

    What the disk of temporary files has no room for is left out, with a word on stderr: 100,000 rows with evidence take
    20 GB.
    """
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for rows, runs in RUNS.items():
            figures += _plain(rows, runs, Path(folder))
        for rows, runs in RUNS.items():
            if shutil.disk_usage(folder).free < rows * BYTES_PER_ROW:
                print(f"no room in {folder} for {rows:,} rollouts with evidence", file=sys.stderr)
                continue
            figures += _with_evidence(rows, runs, Path(folder))
        with instant_agent(None) as ports:
            source = write_rows(Path(folder) / "one.jsonl", 1)
            seconds = [_first_dispatch(source, Path(folder), ports) for _ in range(STARTS)]
    return [*figures, Figure(path="`eval run` to its first dispatch", unit="s", values=seconds, budget=1.0)]


def _plain(rows: int, runs: int, folder: Path) -> list[Figure]:
    source = write_rows(folder / f"{rows}.jsonl", rows)
    with instant_agent(None) as ports:
        floors, values, memory = [], [], []
        for number in range(runs):
            output = folder / f"plain-{rows}-{number}.jsonl"
            bare = output.with_suffix(".floor")
            floors.append(_measured("floor", source, bare, ports)[0] / rows * 1e6)
            cpu, peak = _measured("collect", source, output, ports)
            values.append(cpu / rows * 1e6)
            memory.append(peak)
            output.unlink()
            bare.unlink()
    name = f"{rows:,} instant rollouts"
    return [
        Figure(path=f"{name}: CPU each", unit="us", values=values, floor=floors, ratio_budget=1.5),
        Figure(path=f"{name}: peak memory", unit="MB", values=memory, budget=200),
    ]


def _with_evidence(rows: int, runs: int, folder: Path) -> list[Figure]:
    source = write_rows(folder / f"evidence-{rows}.jsonl", rows)
    captures = folder / f"captures-{rows}"
    captures.mkdir()
    with instant_agent(captures) as ports:
        floors, values, memory = [], [], []
        for number in range(runs):
            output = folder / f"evidence-{rows}-{number}-out.jsonl"
            cpu, peak = _measured("collect", source, output, ports)
            floors.append(_recode_seconds(captures / "0-0.capture.jsonl", output) * 1e6)
            values.append(cpu / rows * 1e6)
            memory.append(peak)
            output.unlink()
            for capture in captures.iterdir():  # a run that finds those of an earlier one has them to remove first
                capture.unlink()
    name = f"{rows:,} rollouts of 10 calls and 10 tools"
    return [
        Figure(path=f"{name}: CPU each", unit="us", values=values, floor=floors, budget=800),
        Figure(path=f"{name}: peak memory", unit="MB", values=memory, budget=200),
    ]


def write_rows(path: Path, rows: int) -> Path:
    """Write the input rows of a run."""
    with path.open("wb") as file:
        for number in range(rows):
            row = {"responses_create_params": {"input": f"question {number}"}, "agent_ref": {"name": "instant"}}
            file.write(orjson.dumps(row) + b"\n")
    return path


@contextlib.contextmanager
def instant_agent(captures: Path | None) -> Iterator[tuple[int, int]]:
    """Run the agent; yield its port and the head server's."""
    words = [sys.executable, "-m", "bench.instant_agent", *([str(captures)] if captures else [])]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        agent, head = process.stdout.readline().split()
        yield int(agent), int(head)
    finally:
        process.kill()
        process.wait()


def _measured(what: str, source: Path, output: Path, ports: tuple[int, int]) -> tuple[float, float]:
    """Return the CPU seconds of the work, after imports, and the peak memory in MB, of a process of its own."""
    words = [sys.executable, "-m", "bench.collect", what, str(source), str(output), *map(str, ports)]
    answer = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    cpu, peak = json.loads(answer.splitlines()[-1])
    return cpu, peak


def _recode_seconds(capture: Path, output: Path) -> float:
    """Return what decoding a rollout's captures and encoding its record alone cost, in seconds."""
    lines = capture.read_bytes().splitlines()
    with output.open("rb") as file:
        record = orjson.loads(file.readline())
    rounds = 50
    begun = cpu_seconds()
    for _ in range(rounds):
        for line in lines:
            orjson.loads(line)
        orjson.dumps(record)
    return (cpu_seconds() - begun) / rounds


def _first_dispatch(source: Path, folder: Path, ports: tuple[int, int]) -> float:
    """Return the seconds from the start of the command to the first line of its output file."""
    output = folder / "first.jsonl"
    output.unlink(missing_ok=True)
    words = [*GYM, "eval", "run", "--no-serve", "-i", str(source), "-o", str(output), f"+head_server.port={ports[1]}"]
    begun = time.perf_counter()
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (output.exists() and output.stat().st_size):
        if process.poll() not in (None, 0):
            raise RuntimeError("`gym eval run` failed")
        time.sleep(0.002)
    seconds = time.perf_counter() - begun
    process.wait()
    return seconds


async def _floor(source: Path, output: Path, agent: int) -> None:
    """Send the rows with nothing but the HTTP client and write the lines that a run writes."""
    with source.open("rb") as rows, output.open("wb", buffering=0) as lines:
        pending = enumerate(rows)

        async def worker(session: aiohttp.ClientSession) -> None:
            for number, line in pending:
                row = {**orjson.loads(line), "_ng_task_index": number, "_ng_rollout_index": 0}
                async with session.post(f"http://127.0.0.1:{agent}/run", data=orjson.dumps(row)) as response:
                    reply = orjson.loads(await response.read())
                reply |= {"_ng_task_index": number, "_ng_rollout_index": 0, "agent_ref": row["agent_ref"]}
                lines.write(orjson.dumps(reply) + b"\n")

        headers = {"Content-Type": "application/json"}
        async with aiohttp.ClientSession(headers=headers) as session, asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(worker(session))


async def _collect(source: Path, output: Path, head: int) -> int:
    from nemo_gym.rollouts.collect import collect_run
    from nemo_gym.rollouts.settings import RolloutCollectionConfig

    config = RolloutCollectionConfig(
        input_jsonl_fpath=str(source), output_jsonl_fpath=str(output), num_samples_in_parallel=IN_FLIGHT,
        retain_results_in_memory=False, disable_aggregation=True, route_failures_to_sidecar=True, overwrite=True,
    )  # fmt: skip
    await collect_run(config, own_config={"head_server": {"host": "127.0.0.1", "port": head}})
    return 0


def _main(what: str, source: str, output: str, agent: str, head: str) -> None:
    # Imports, of which reading the head server's answer needs one, are measured by `start` and by the first dispatch.
    import uvloop  # noqa: F401
    import yaml  # noqa: F401

    import nemo_gym.rollouts.collect  # noqa: F401
    from nemo_gym.cli.interruption import run_until_interrupted

    work: Callable[[], object]
    if what == "floor":
        work = lambda: asyncio.run(_floor(Path(source), Path(output), int(agent)))  # noqa: E731
    else:
        work = lambda: run_until_interrupted(  # noqa: E731 - as `gym eval run` does
            _collect(Path(source), Path(output), int(head)), fast_loop=True
        )
    begun = cpu_seconds()
    work()
    used = cpu_seconds() - begun
    # Not `ru_maxrss`, which begins with what the process that started this one holds.
    status = Path("/proc/self/status").read_text()
    peak_kb = int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1])
    print(json.dumps([used, peak_kb / 1e3]))


if __name__ == "__main__":
    _main(*sys.argv[1:])

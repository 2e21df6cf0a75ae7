"""Health: CPU of checking a run's records beside reading and decoding the same file, memory, and the same bytes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from bench.figures import Figure, alternated, cpu_seconds
from nemo_gym.health.reading import FileRange, iter_lines
from nemo_gym.health.runner import SUMMARY_NAME, VERDICTS_NAME, run_health_checks

RECORDS = 2_000
FEW, MANY = 1_000, 50_000
"""Records of the runs that measure memory. They are small: what could grow is kept per record, whatever its size, and
50,000 large ones are 10 GB."""
_POLICY = {"type": "responses_api_models", "name": "policy"}
_MEASURE = """
import sys
from pathlib import Path
from nemo_gym.health import run_health_checks
run_health_checks([sys.argv[1]], workers=1)
status = Path("/proc/self/status").read_text()
print(int(status.split("VmHWM:")[1].split()[0]) / 1024)
"""
"""`ru_maxrss` would not do: it begins with what the process that starts this one holds."""


class _Call(msgspec.Struct):
    model_call_id: str | None = None
    started_at: float | None = None
    request: Raw = Raw(b"null")
    response: Raw = Raw(b"null")
    response_metadata: dict[str, Any] = {}
    token_stats: dict[str, Any] = {}


class _Trajectory(msgspec.Struct):
    task_id: str
    rollout_id: str
    invocations: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    model_calls: list[_Call] = []
    tool_calls: list[dict[str, Any]] = []
    gaps: list[dict[str, Any]] = []


class _Record(msgspec.Struct):
    """What any reader of the evidence must decode: everything but the bodies of calls, and no rule checked."""

    ng_trajectory: _Trajectory
    response: Raw = Raw(b"null")


def run() -> list[Figure]:
    """Return the CPU per record, the memory for few and for many records, and whether workers change the reports."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        large = _write(folder / "large.jsonl", RECORDS, body_bytes=8_000)
        per_record = 1e6 / RECORDS
        floor, views, checked = alternated(
            lambda: _cpu(lambda: _decode_lines(large)) * per_record,
            lambda: _cpu(lambda: _decode_views(large)) * per_record,
            lambda: _cpu(lambda: run_health_checks(large, workers=1)) * per_record,
        )
        digests = {_reports(large, workers) for workers in (1, 2)}
        few = _write(folder / "few.jsonl", FEW, body_bytes=20, calls=2)
        many = _write(folder / "many.jsonl", MANY, body_bytes=20, calls=2)
        memory = {path: [_peak_megabytes(path) for _ in range(5)] for path in (few, many)}
    size = f"{_kilobytes(8_000)} KB records"
    return [
        Figure(path=f"health, {size}", unit="CPU us/record", values=checked, floor=floor, ratio_budget=1.7),
        Figure(path="  beside a floor with its own reader", unit="CPU us/record", values=checked, floor=views),
        Figure(path="kinds of reports from 1 and 2 workers", unit="", values=[float(len(digests))] * 5, budget=1),
        Figure(path=f"peak memory, {FEW:,} records", unit="MB", values=memory[few]),
        Figure(
            path=f"peak memory, {MANY:,} records", unit="MB", values=memory[many], floor=memory[few], ratio_budget=1.1
        ),
    ]


def _decode_lines(path: Path) -> None:
    """The floor: the lines of the file as Python reads them, each decoded once into types with the bodies left raw."""
    decoder = msgspec.json.Decoder(_Record)
    with path.open("rb") as file:
        for line in file:
            decoder.decode(line)


def _decode_views(path: Path) -> None:
    """The same with the reader of the health checks, which takes larger blocks."""
    decoder = msgspec.json.Decoder(_Record)
    for line in iter_lines(FileRange(path, 0, path.stat().st_size)):
        assert line is not None
        decoder.decode(line)


def _cpu(work: Any) -> float:
    begun = cpu_seconds()
    work()
    return cpu_seconds() - begun


def _reports(path: Path, workers: int) -> str:
    """Return a digest of both reports; ranges are small enough for every worker to get some."""
    with tempfile.TemporaryDirectory() as folder:
        run_health_checks(path, workers=workers, output_dir=folder, min_bytes_per_worker=1 << 20)
        names = (SUMMARY_NAME, VERDICTS_NAME)
        return hashlib.sha256(b"".join((Path(folder) / name).read_bytes() for name in names)).hexdigest()


def _peak_megabytes(path: Path) -> float:
    done = subprocess.run([sys.executable, "-c", _MEASURE, str(path)], check=True, capture_output=True, text=True)
    return float(done.stdout)


def _kilobytes(body_bytes: int) -> int:
    return round(len(json.dumps(_record(0, body_bytes, 10), separators=(",", ":"))) / 1000)


def _write(path: Path, records: int, *, body_bytes: int, calls: int = 10) -> Path:
    with path.open("w", encoding="utf-8") as file:
        for number in range(records):
            file.write(json.dumps(_record(number, body_bytes, calls), separators=(",", ":")) + "\n")
    return path


def _record(number: int, body_bytes: int, calls: int) -> dict[str, Any]:
    """A healthy record: `calls` calls with request and response of `body_bytes` each, as many tools and turns."""
    text = ("the quick brown fox jumps over the lazy dog " * (body_bytes // 44 + 1))[:body_bytes]
    ids = [f"{number:08x}-{call}" for call in range(calls)]
    tools = [f"t{call}" for call in range(calls)]
    items: list[dict[str, Any]] = [{"role": "user", "content": "look it up"}]
    for tool in tools:
        items.append({"type": "function_call", "call_id": tool, "name": "lookup", "arguments": "{}"})
        items.append({"type": "function_call_output", "call_id": tool, "output": text[:500]})
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    references = [{"model_call_id": call, "model_ref": _POLICY, "response_id": f"r-{call}"} for call in ids]
    trajectory = {
        "schema_version": "1.0",
        "task_id": str(number),
        "rollout_id": f"{number}-0",
        "invocations": [
            {
                "kind": "agent_invocation",
                "invocation_id": "root",
                "status": "completed",
                "model_calls": references,
                "conversation": items,
            }
        ],
        "turns": [
            {
                "invocation_id": "root",
                "task_id": str(number),
                "rollout_id": f"{number}-0",
                "turn_no": at + 1,
                "timestamp": float(at),
                "answer": [{"type": "function_call", "call_id": tools[at], "name": "lookup", "arguments": "{}"}],
                "step_count": at,
                "model_calls": [references[at]],
            }
            for at in range(calls)
        ],
        "model_calls": [
            {
                "model_call_id": call,
                "started_at": 1000.0 + at,
                "completed_at": 1000.5 + at,
                "duration_ms": 500.0,
                "request": {"input": [{"role": "user", "content": text}]},
                "response": {"id": f"r-{call}", "status": "completed", "output": [answer]},
                "response_metadata": {
                    "response_id": f"r-{call}",
                    "model_ref": _POLICY,
                    "dialect": "responses",
                    "status_code": 200,
                    "response_status": "completed",
                },
                "token_stats": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
            }
            for at, call in enumerate(ids)
        ],
        "tool_calls": [
            {
                "kind": "tool_call",
                "invocation_id": "root",
                "tool_call_id": tool,
                "tool_name": "lookup",
                "started_at": 1000.5 + at,
                "completed_at": 1000.9 + at,
                "status": "completed",
                "output": text[:500],
            }
            for at, tool in enumerate(tools)
        ],
        "gaps": [],
    }
    usage = {"input_tokens": 10 * calls, "output_tokens": 2 * calls}
    return {
        "_ng_task_index": number // 4,
        "_ng_rollout_index": number % 4,
        "reward": 1.0,
        "response": {"output": items, "usage": usage},
        "ng_trajectory": trajectory,
    }

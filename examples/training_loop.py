"""A training loop in small: worker processes collect each step's rollouts as shards of one folder, all at once.

    python examples/training_loop.py --output runs/policy

starts an environment with a scripted model; `--head-port 11000` uses the servers of a `gym env start` that runs
already, whose rows then come from `--input` and whose agent from `--agent`. Where a real loop would train on the
records, this one looks at the rewards. Afterwards the folder reads like an evaluation run: `gym eval status`,
`gym eval aggregate` and `gym eval health-check` take it as it is, and a shard that was cut short can be resumed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.rollouts import (
    RolloutAggregationConfig,
    RolloutAggregationHelper,
    RolloutCollectionHelper,
    RolloutFailureRecord,
)

GYM = [sys.executable, "-m", "nemo_gym.cli.main"]


class Share(NamedTuple):
    """What one worker collects in one step."""

    step: int
    worker: int
    rows: list[dict[str, Any]]
    output: str
    head_port: int


class Collected(NamedTuple):
    """What came of it: the reward of each rollout that has one, and how many failed."""

    rewards: list[float]
    failed: int


def collect(share: Share) -> Collected:
    """Collect a share in this process; every record is in its shard before it is used here."""
    return asyncio.run(_collect(share))


async def _collect(share: Share) -> Collected:
    completions = RolloutCollectionHelper().run_examples(
        share.rows,
        BaseServerConfig(host="127.0.0.1", port=share.head_port),
        route_failures_to_sidecar=True,  # a failed rollout is a record, not the end of the step
        enrich_results=True,
        max_resident_tasks=16,
        record_output_dir=share.output,
        record_shard=f"step_{share.step:06d}-w{share.worker}",
    )
    rewards, failed = [], 0
    async with completions:
        async for _row, result in completions:
            if isinstance(result, RolloutFailureRecord):
                failed += 1
            elif isinstance(result.get("reward"), (int, float)) and not result.get("mask_sample"):
                # Here a trainer takes `result["ng_trajectory"]`: the calls, with their requests and responses.
                rewards.append(float(result["reward"]))
    return Collected(rewards, failed)


def train(rows: list[dict[str, Any]], options: argparse.Namespace, head_port: int) -> None:
    """Collect every step with all workers at once, then aggregate the folder."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.workers) as pool:
        for step in range(options.steps):
            shares = [
                Share(step, worker, rows[worker :: options.workers], str(options.output), head_port)
                for worker in range(options.workers)
            ]
            collected = pool.map(collect, shares)
            rewards = [reward for part in collected for reward in part.rewards]
            failed = sum(part.failed for part in collected)
            mean = sum(rewards) / len(rewards) if rewards else float("nan")
            print(f"step {step}: mean reward {mean:.3f} over {len(rewards)} rollouts, {failed} failed", flush=True)
    settings = RolloutAggregationConfig(
        input_glob=str(options.output / "rollouts-*.jsonl"), output_jsonl_fpath=str(options.output / "all.jsonl")
    )
    head = {"head_server": {"host": "127.0.0.1", "port": head_port}}
    metrics = asyncio.run(RolloutAggregationHelper().run_from_config(settings, own_config=head))
    print(f"metrics of all steps: {metrics}")


@contextlib.contextmanager
def environment(options: argparse.Namespace) -> Iterator[int]:
    """Yield the head server's port: the given one, or that of an environment started for the time of the block."""
    if options.head_port is not None:
        yield options.head_port
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["env", "start", "--resources-server", "ledger", "--model-type", "scripted_model"]
    settings = [
        f"+head_server.port={port}",
        "+observability_enabled=true",
        f"+model_call_capture_dir={options.output.absolute() / 'model-calls'}",
    ]
    process = subprocess.Popen([*GYM, *words, *settings], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        if not any(line.startswith("Ready") for line in process.stdout):
            raise SystemExit("the environment did not start")
        yield port
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    """Read the options, make the rows, train."""
    parser = argparse.ArgumentParser(description="Collect training steps as shards, from several processes at once.")
    parser.add_argument("--output", type=Path, required=True, help="folder of the shards")
    parser.add_argument("--input", type=Path, help="rows, one JSON object per line; default: tasks of `ledger`")
    parser.add_argument("--agent", default="ledger_simple_agent", help="agent of rows that name none")
    parser.add_argument("--head-port", type=int, help="use the servers that run already")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2, help="rollouts of each row in a step")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    source = options.input
    if source is None:
        source = options.output / "tasks.jsonl"
        subprocess.run([*GYM, "dataset", "make", "ledger", "-o", str(source), "--size", "6"], check=True)
    lines = source.read_text(encoding="utf-8").splitlines()
    rows = RolloutCollectionHelper().preprocess_examples(
        [{"agent_ref": {"name": options.agent}, **json.loads(line)} for line in lines], num_repeats=options.repeats
    )
    with environment(options) as head_port:
        train(rows, options, head_port)


if __name__ == "__main__":
    main()

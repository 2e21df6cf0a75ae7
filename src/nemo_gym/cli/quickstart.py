"""`gym quickstart`: a first evaluation with a real model and one with tools, by the commands that anybody can type."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from nemo_gym.cli.output import note, print_table
from nemo_gym.errors import RunFailedError
from nemo_gym.store import RunFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One environment of the quickstart: `tasks` tasks, each tried `repeats` times."""

    environment: str
    model_type: str
    model_is: str
    tasks: int
    repeats: int
    concurrency: int


PARTS = (
    Part(
        environment="reasoning_gym",
        model_type="local_model",
        model_is="SmolLM2-135M, a real model in this process",
        tasks=8,
        repeats=4,
        concurrency=4,
    ),
    Part(
        environment="ledger",
        model_type="scripted_model",
        model_is="a script, since so small a model calls no tools",
        tasks=4,
        repeats=3,
        concurrency=4,
    ),
)


def command(
    output_dir: Annotated[
        str,
        typer.Option("--output-dir", metavar="DIR", help="Where everything goes."),
    ] = "runs/quickstart",
) -> int:
    """Run a first evaluation, without keys or downloads.

    A small real model does arithmetic, and a script works a ledger with tools; both with evidence for every rollout.
    """
    folder = Path(output_dir)
    for part in PARTS:
        _run_part(part, folder / part.environment)
    print()
    _print_rewards(folder)
    _print_files(folder)
    _print_next(folder)
    return 0


def commands_of(part: Part, folder: Path) -> list[list[str]]:
    """Return the two command lines of one part: its tasks, then its rollouts."""
    tasks = folder / "tasks.jsonl"
    return [
        ["gym", "dataset", "make", part.environment, "-o", str(tasks), "--size", str(part.tasks)],
        [
            *("gym", "eval", "run", "--resources-server", part.environment, "--model-type", part.model_type),
            *("-i", str(tasks), "-o", str(folder / "rollouts.jsonl")),
            *("--num-repeats", str(part.repeats), "--concurrency", str(part.concurrency)),
            *("+num_repeats_add_seed=true", "+overwrite=true", "+observability_enabled=true"),
            f"+model_call_capture_dir={(folder / 'model-calls').absolute()}",
        ],
    ]


def _run_part(part: Part, folder: Path) -> None:
    for words in commands_of(part, folder):
        note(f"\n$ {shlex.join(words)}")
        done = subprocess.run([sys.executable, "-m", "nemo_gym.cli.main", *words[1:]], check=False)
        if done.returncode == 130:
            note("Interrupted. `gym quickstart` starts afresh.")
            raise KeyboardInterrupt
        if done.returncode != 0:
            raise RunFailedError(f"`{shlex.join(words[:3])}` ended with {done.returncode}; what it said is above")


def _print_rewards(folder: Path) -> None:
    rows = []
    for part in PARTS:
        run = folder / part.environment
        metrics = _metrics_of(RunFiles(run / "rollouts.jsonl"))
        verdicts = _json(run / "quality_summary.json").get("run", {}).get("verdicts", {})
        rows.append(
            [
                part.environment,
                part.model_is,
                str(part.tasks * part.repeats),
                _number(metrics.get("mean/reward")),
                _percent(metrics.get("pass@1/accuracy")),
                f"{_percent(metrics.get(f'pass@{part.repeats}/accuracy'))} (k={part.repeats})",
                ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items() if count),
            ]
        )
    print_table(
        ["environment", "model", "rollouts", "mean reward", "pass@1", "pass@k", "health"], rows, wrapped="model"
    )


def _metrics_of(files: RunFiles) -> dict[str, Any]:
    entries = json.loads(files.aggregate_metrics.read_text(encoding="utf-8"))
    metrics: dict[str, Any] = entries[0]["agent_metrics"] if entries else {}
    return metrics


def _json(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f} %"


def _print_files(folder: Path) -> None:
    print(f"\nIn `{folder}/<environment>/`:")
    for name, meaning in (
        ("rollouts.jsonl", "one record per rollout: response, reward, ng_trajectory, ng_perf"),
        ("rollouts_failures.jsonl", "what failed, and why (empty here)"),
        ("rollouts_materialized_inputs.jsonl", "every task as it was dispatched"),
        ("rollouts_aggregate_metrics.json", "rewards and pass@k"),
        ("quality_summary.json, rollout_verdicts.jsonl", "whether the evidence is complete and consistent"),
        ("model-calls/<rollout>.capture.jsonl", "every model call as it went over the wire"),
    ):
        print(f"  {name:<46}{meaning}")


def _print_next(folder: Path) -> None:
    rollouts = folder / "ledger" / "rollouts.jsonl"
    first = folder / "reasoning_gym" / "rollouts.jsonl"
    print("\nTry next (after `source .venv/bin/activate`):")
    print(f"  gym eval status {rollouts}")
    print(f"  gym eval health-check {first.parent}")
    print("  gym list resources-servers")

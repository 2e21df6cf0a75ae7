"""`gym eval status`: how far a run, or each shard of a folder, is."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from nemo_gym.cli.output import print_json, print_table, show
from nemo_gym.config.overrides import parse_override
from nemo_gym.errors import UsageError
from nemo_gym.records.status import LIVE_STATES, RunStatus, mean_reward
from nemo_gym.rollouts.progress import duration_text
from nemo_gym.rollouts.resume import more_attempts_text
from nemo_gym.rollouts.run_progress import RunProgress, read_progress

INCOMPLETE_EXIT_CODE = 3
_SHORTEST_WATCH_S, _LONGEST_WATCH_S = 0.1, 86_400.0
_MEANINGS = {
    "stale": "it says that it is running, but its process is gone or has saved nothing for a minute; its files were "
    "counted",
    "derived": "no progress was saved; its files were counted",
}
COLUMNS = ("run", "state", "done", "masked", "failed", "omitted", "pending", "mean reward", "rate", "left")


def command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH...",
            help="A folder, a rollouts file, or a *_batch_status.json; or +output_jsonl_fpath=FILE.",
            show_default=False,
        ),
    ] = None,
    *,
    watch: Annotated[
        float | None,
        typer.Option("--watch", metavar="[SECONDS]", help="Show again every 2 s, or as often as said, until the end."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 3 unless every run is complete.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> int:
    """Show how far runs are, from the progress they save; a run that saved none is counted from its files.

    \b
    Examples:
      gym eval status runs/policy
      gym eval status runs/policy --watch
    """
    places = [_place(word) for word in paths or ()]
    if not places:
        raise UsageError("which run? Give a folder, a rollouts file or a `*_batch_status.json`.")
    if watch is not None and not _SHORTEST_WATCH_S <= watch <= _LONGEST_WATCH_S:
        raise UsageError(f"`--watch {watch:g}`: it takes seconds, from {_SHORTEST_WATCH_S:g} to {_LONGEST_WATCH_S:g}.")
    while True:
        runs = [run for place in places for run in read_progress(place)]
        if as_json:
            print_json([run.as_dict() for run in runs])
        else:
            _show(runs)
        live = any(run.status.state in LIVE_STATES and not run.stale for run in runs)
        if watch is None or not live:
            break
        time.sleep(watch)
        if sys.stdout.isatty() and not as_json:
            print("\033[H\033[2J", end="")
    return INCOMPLETE_EXIT_CODE if check and not all(run.complete for run in runs) else 0


def _place(word: str) -> Path:
    if word.startswith("+"):
        override = parse_override(word)
        if list(override.path) == ["output_jsonl_fpath"]:
            return Path(str(override.value))
        raise UsageError(f"`{word}`: only `+output_jsonl_fpath=FILE` is read here")
    return Path(word)


def _show(runs: Sequence[RunProgress]) -> None:
    rows = [_row(run) for run in runs]
    if len(runs) > 1:
        rows.append(_total(runs))
    print_table(COLUMNS, rows, wrapped="run")
    marks = {_mark(run) for run in runs}
    print("".join(f"{mark}: {meaning}\n" for mark, meaning in _MEANINGS.items() if mark in marks), end="")
    for run in runs:
        if run.status.failures:
            kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(run.status.failures.items()))
            show(f"{_name(run)} failed by kind: {kinds}")
        if run.status.counts.failed_final and run.status.state not in LIVE_STATES:
            show(f"{_name(run)}: {_final_text(run.status.counts.failed_final)}")
        if run.status.reason:
            show(f"{_name(run)}: {run.status.reason}")


def _mark(run: RunProgress) -> str | None:
    return "stale" if run.stale else "derived" if run.derived else None


def _final_text(final: int) -> str:
    """Say which failures `--resume` leaves alone, and what makes it try them."""
    from nemo_gym.rollouts.rollout_collection import get_max_rollout_attempts  # few runs need it, and it takes long

    which = "1 of the failures is final" if final == 1 else f"{final} of the failures are final"
    return f"{which}, so `--resume` leaves them; {more_attempts_text(get_max_rollout_attempts())}"


def _row(run: RunProgress) -> list[object]:
    status = run.status
    counts = status.counts
    state = status.state + (f" ({mark})" if (mark := _mark(run)) else "")
    rate = None if run.derived else _rate(status)
    left = (
        None
        if rate is None or run.stale or status.state not in LIVE_STATES
        else (counts.pending + counts.in_flight) / rate
    )
    return [
        _name(run),
        state,
        _done(counts.succeeded, counts.expected),
        counts.masked,
        counts.failed,
        counts.omitted,
        counts.pending + counts.in_flight,
        _reward(mean_reward(status)),
        "" if rate is None else f"{rate * 60:.1f}/min",
        "" if left is None else duration_text(left),
    ]


def _total(runs: Sequence[RunProgress]) -> list[object]:
    counts = [run.status.counts for run in runs]
    rewards = sum(run.status.reward.count for run in runs)
    reward = sum(run.status.reward.sum for run in runs) / rewards if rewards else None
    return [
        "total",
        "",
        _done(sum(each.succeeded for each in counts), sum(each.expected for each in counts)),
        sum(each.masked for each in counts),
        sum(each.failed for each in counts),
        sum(each.omitted for each in counts),
        sum(each.pending + each.in_flight for each in counts),
        _reward(reward),
        "",
        "",
    ]


def _rate(status: RunStatus) -> float | None:
    """Return rollouts per second since the run began or was resumed; what was there before does not count."""
    end = status.finished_at or status.updated_at
    seconds = end - status.started_at
    done = status.counts.succeeded + status.counts.failed - status.counts.restored
    return done / seconds if done > 0 and seconds > 0 else None


def _name(run: RunProgress) -> str:
    return run.status.shard or run.path.name


def _done(succeeded: int, expected: int) -> str:
    return f"{succeeded}/{expected}" + (f" ({100 * succeeded / expected:.0f}%)" if expected else "")


def _reward(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"

"""`gym eval profile`: rewards task by task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from nemo_gym.cli.eval_run import flag_overrides
from nemo_gym.cli.output import print_json, print_table
from nemo_gym.cli.selection import Selection, compose, flags_of
from nemo_gym.errors import ConfigFileNotFoundError, UsageError
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.keys import AGENT_REF, TASK_INDEX

_SHOWN = 5
_TASKS_SHOWN = 20


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH] [+KEY=VALUE]...",
            help="A rollouts file, or a folder with one, in place of --rollouts; and settings.",
            show_default=False,
        ),
    ] = None,
    *,
    inputs: Annotated[
        str | None,
        typer.Option("--inputs", metavar="FILE", help="The materialized inputs; default: beside --rollouts."),
    ] = None,
    rollouts: Annotated[str | None, typer.Option("--rollouts", metavar="FILE", help="The rollouts file.")] = None,
    allow_partial: Annotated[bool, typer.Option("--allow-partial", help="Accept rollouts that are missing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers of each agent as JSON.")] = False,
) -> int:
    """Show the rewards of each task over its repeats, the lowest first, and write all of them into three files beside
    the rollouts file.

    \b
    Example:
      gym eval profile runs/second
    """
    rollouts, overrides = _place(words or (), rollouts)
    flags = flag_overrides(
        {
            "materialized_inputs_jsonl_fpath": inputs,
            "rollouts_jsonl_fpath": rollouts,
            "allow_partial_rollouts": allow_partial or None,
        }
    )
    # What the profile needs is loaded when it is known that one is wanted: `--help` does not need it.
    from nemo_gym.analysis import RewardProfileConfig, RewardProfiler
    from nemo_gym.rollouts.metrics import slim_row
    from nemo_gym.rollouts.settings import parse_settings
    from nemo_gym.store import materialized_path_for, read_objects, write_atomic, writing

    known = frozenset(RewardProfileConfig.model_fields)
    resolved = compose(
        Selection(),
        overrides,
        known_keys=known,
        flag_overrides=flags,
        flags=flags_of(command),
        allow_missing_model=True,
    )
    data = dict(resolved.data)
    if not data.get("rollouts_jsonl_fpath"):
        raise UsageError("which run? Give its rollouts file, or the folder: `gym eval profile runs/first`.")
    if not data.get("materialized_inputs_jsonl_fpath"):
        data["materialized_inputs_jsonl_fpath"] = str(materialized_path_for(str(data["rollouts_jsonl_fpath"])))
    settings = parse_settings(RewardProfileConfig, data)
    profiler = RewardProfiler()
    try:
        rows = list(read_objects(settings.materialized_inputs_jsonl_fpath))
        results = [slim_row(record) for record in read_objects(settings.rollouts_jsonl_fpath)]
    except FileNotFoundError as error:
        raise ConfigFileNotFoundError(f"`{error.filename}` does not exist") from error
    profile = profiler.profile_from_data(rows, results, allow_partial_rollouts=settings.allow_partial_rollouts)
    files = profiler.files(profile, settings.rollouts_jsonl_fpath)
    instead = "It goes beside the rollouts file: copy that one and its materialized inputs to another folder."
    with writing("the profile", *files, instead=instead):
        for path, content in files.items():
            write_atomic(path, content)
    if as_json:
        print_json(profile.agent_metrics)
    else:
        print(f"{len(results)} of {len(rows)} rollouts, {len(profile.group_level_metrics)} tasks")
        _show(profile.group_level_metrics)
        print("\n".join(str(path) for path in files), flush=True)
    return 0


def _show(tasks: Sequence[JsonObject]) -> None:
    """Print the tasks with the lowest mean reward; those without any reward come last."""
    several = len({_agent(task) for task in tasks}) > 1
    ordered = sorted(tasks, key=lambda task: (task.get("mean/reward") is None, task.get("mean/reward") or 0.0))
    columns = ["task", *(["agent"] if several else []), "rollouts", "mean reward", "min", "max"]
    rows = []
    for task in ordered[:_TASKS_SHOWN]:
        there, owed = task["num_rollouts"], task["expected_num_rollouts"]
        rollouts = str(there) if there == owed else f"{there} of {owed}"
        rewards = [task.get(f"{statistic}/reward") for statistic in ("mean", "min", "max")]
        shown = ["" if reward is None else f"{reward:.4g}" for reward in rewards]
        rows.append([task.get(TASK_INDEX), *([_agent(task)] if several else []), rollouts, *shown])
    if rows:
        print_table(columns, rows)
    if more := len(ordered) - len(rows):
        print(f"{more} tasks more, whose rewards are no lower")


def _agent(task: JsonObject) -> object:
    return (task.get(AGENT_REF) or {}).get("name")


def _place(words: Sequence[str], rollouts: str | None) -> tuple[str | None, list[str]]:
    """Return the rollouts file that a word or the flag names, and the words that are settings."""
    settings = [word for word in words if word.startswith(("+", "~")) or "=" in word]
    places = [word for word in words if word not in settings]
    if len(places) + (rollouts is not None) > 1:
        given = ", ".join(f"`{place}`" for place in [*places, *([rollouts] if rollouts else [])])
        raise UsageError(f"one rollouts file is profiled at a time, not {given}")
    place = places[0] if places else rollouts
    return (None if place is None else str(_rollouts_file(Path(place)))), settings


def _rollouts_file(place: Path) -> Path:
    """Return the file itself, or the one rollouts file of a folder."""
    from nemo_gym.store import find_rollouts_files  # `--help` does not need it

    if not place.exists():
        raise ConfigFileNotFoundError(f"there is no rollouts file or folder `{place}`")
    if not place.is_dir():
        return place
    found = find_rollouts_files(place)
    if not found:
        raise ConfigFileNotFoundError(f"`{place}` holds no rollouts file (`rollouts.jsonl`, `rollouts-*.jsonl`)")
    if len(found) > 1:
        named = ", ".join(f"`{path}`" for path in found[:_SHOWN]) + (" ..." if len(found) > _SHOWN else "")
        raise UsageError(f"`{place}` holds {len(found)} rollouts files; name one of them: {named}")
    return found[0]

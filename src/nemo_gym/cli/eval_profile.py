"""`gym eval profile`: rewards task by task."""

from __future__ import annotations

from typing import Annotated

import typer

from nemo_gym.cli.eval_run import flag_overrides
from nemo_gym.cli.output import print_json
from nemo_gym.cli.selection import Overrides, Selection, compose
from nemo_gym.errors import ConfigFileNotFoundError


def command(
    overrides: Overrides = None,
    *,
    inputs: Annotated[
        str | None,
        typer.Option("--inputs", metavar="FILE", help="The materialized inputs; default: beside --rollouts."),
    ] = None,
    rollouts: Annotated[str | None, typer.Option("--rollouts", metavar="FILE", help="The rollouts file.")] = None,
    allow_partial: Annotated[bool, typer.Option("--allow-partial", help="Accept rollouts that are missing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers of each agent as JSON.")] = False,
) -> int:
    """Describe the rewards of each task over its repeats, in three files beside the rollouts file."""
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
    from nemo_gym.store import materialized_path_for, read_objects, write_atomic

    known = frozenset(RewardProfileConfig.model_fields)
    data = dict(compose(Selection(), overrides, known_keys=known, flag_overrides=flags, allow_missing_model=True).data)
    if data.get("rollouts_jsonl_fpath") and not data.get("materialized_inputs_jsonl_fpath"):
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
    for path, content in files.items():
        write_atomic(path, content)
    if as_json:
        print_json(profile.agent_metrics)
    else:
        print(f"{len(results)} of {len(rows)} rollouts, {len(profile.group_level_metrics)} tasks")
        print("\n".join(str(path) for path in files), flush=True)
    return 0

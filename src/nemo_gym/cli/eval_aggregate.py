"""`gym eval aggregate`: metrics over several rollouts files."""

from __future__ import annotations

from typing import Annotated

import typer

from nemo_gym.cli.eval_run import explicit_settings, flag_overrides
from nemo_gym.cli.interruption import run_until_interrupted
from nemo_gym.cli.output import note, print_json, show
from nemo_gym.cli.selection import ConfigOption, Overrides, Selection, compose, flags_of
from nemo_gym.config import ResolvedConfig
from nemo_gym.config.loading import COMMAND_LINE
from nemo_gym.config.names import HEAD_SERVER
from nemo_gym.rollouts.settings import RolloutAggregationConfig, parse_settings


def command(
    overrides: Overrides = None,
    *,
    input_glob: Annotated[
        str | None,
        typer.Option("--input-glob", "-i", metavar="GLOB", help="Rollouts files: one glob, or several with commas."),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="The merged rollouts file.")
    ] = None,
    config: ConfigOption = None,
    no_health_check: Annotated[bool, typer.Option("--no-health-check", help="Make no health report.")] = False,
    health_check_workers: Annotated[
        int | None, typer.Option("--health-check-workers", metavar="N", help="Processes of the health check.")
    ] = None,
    health_check_ignore: Annotated[
        str | None, typer.Option("--health-check-ignore", metavar="A,B", help="Checks that count for nothing.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> int:
    """Compute metrics over the files of a run, or over a folder of shards; derived files are left out.

    Without --output the merged file is `aggregated.jsonl` beside the first file. Servers that run are asked for
    metrics of their own; when they did not make these rollouts, or none run, metrics are computed here. A head server
    that is named with +head_server.port=N must have made them.

    \b
    Example:
      gym eval aggregate -i 'runs/policy/rollouts-*.jsonl' -o runs/policy/all.jsonl
    """
    flags = flag_overrides(
        {
            "input_glob": input_glob,
            "output_jsonl_fpath": output,
            "disable_health_check": no_health_check or None,
            "health_check_workers": health_check_workers,
            "health_check_ignored_checks": health_check_ignore,
        }
    )
    known = frozenset(RolloutAggregationConfig.model_fields)
    resolved = compose(
        Selection(config=config),
        overrides,
        known_keys=known,
        flag_overrides=flags,
        flags=flags_of(command),
        allow_missing_model=True,
    )
    return run_until_interrupted(_aggregate(resolved, as_json=as_json))


async def _aggregate(resolved: ResolvedConfig, *, as_json: bool) -> int:
    from nemo_gym.rollouts.aggregation import aggregate_files, default_output
    from nemo_gym.rollouts.summary import aggregation_lines

    data = dict(resolved.data)
    if not data.get("output_jsonl_fpath"):
        given = data.get("input_glob")
        # Without an input that alone is missing: an output is made up from it.
        data["output_jsonl_fpath"] = str(default_output(str(given))) if given else ""
    settings = parse_settings(RolloutAggregationConfig, data)
    head_named = any(
        path.startswith(f"{HEAD_SERVER}.") and source == COMMAND_LINE for path, source in resolved.provenance.items()
    )
    summary = await aggregate_files(settings, own_config=explicit_settings(resolved), head_named=head_named)
    if as_json:
        print_json(summary.metrics)
        for line in (summary.denominators.text(), *summary.notes):
            note(line)
    else:
        show("\n".join(aggregation_lines(summary)))
    return 0

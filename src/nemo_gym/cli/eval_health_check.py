"""`gym eval health-check`: is the saved evidence of a run complete and consistent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from nemo_gym.cli.output import note, print_json, show
from nemo_gym.errors import ConfigFileNotFoundError, UsageError

UNHEALTHY_EXIT_CODE = 4


def command(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of a run or of its shards.")],
    *,
    rollouts_file: Annotated[
        Path | None,
        typer.Option("--rollouts-file", metavar="PATH", help="Only this file; relative paths are below RUN_DIR."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="Processes; default: CPUs, at most 8.")
    ] = None,
    ignore: Annotated[
        str | None,
        typer.Option("--ignore-checks", "--ignore", metavar="A,B", help="Checks that count for nothing."),
    ] = None,
    fail_on: Annotated[
        Literal["unhealthy", "unobserved"] | None,
        typer.Option("--fail-on", help="Exit with 4 when a rollout is unhealthy (or not even observed)."),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(
            "--junit", metavar="FILE", help="Also write the result as JUnit XML, a case per rollout and task."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one line of JSON.")] = False,
) -> int:
    """Check the evidence of every rollout of a run and write `quality_summary.json` and `rollout_verdicts.jsonl`.

    Needs no server and no configuration. A folder without `rollouts.jsonl` is a folder of shards: all of them are
    checked together. The verdicts do not change the exit code unless --fail-on is given.
    """
    from nemo_gym.health import (
        explain_failures,
        explain_gaps,
        explain_verdicts,
        files_to_check,
        format_health_report,
        health_check_run_dir,
        junit_report,
        normalize_ignored_checks,
        should_fail,
    )
    from nemo_gym.rollouts.output_check import check_no_run
    from nemo_gym.store import staged, writing

    if not run_dir.exists():
        raise ConfigFileNotFoundError(f"there is no `{run_dir}`; give the folder of a run, or its rollouts file")
    if junit is not None:
        check_no_run(junit)
    if run_dir.is_file() and rollouts_file is None:
        run_dir, rollouts_file = run_dir.parent, run_dir.absolute()
    try:
        result = health_check_run_dir(
            run_dir, rollout_file=rollouts_file, workers=workers, ignored_checks=normalize_ignored_checks(ignore)
        )
    except (FileNotFoundError, ValueError) as error:
        raise UsageError(str(error)) from error
    if junit is not None:
        with writing("the JUnit report", junit, instead="`--junit FILE` can name another place."):
            junit.parent.mkdir(parents=True, exist_ok=True)
            with staged(junit) as file:
                file.writelines(piece.encode() for piece in junit_report(result))
    failures = explain_failures(files_to_check(run_dir, rollouts_file))
    if as_json:
        print_json(result.summary)
        for line in failures:
            note(line)
    else:
        lines = [format_health_report(result), *failures, *explain_verdicts(result), *explain_gaps(result)]
        show("\n".join(lines))
    return UNHEALTHY_EXIT_CODE if should_fail(result, fail_on) else 0

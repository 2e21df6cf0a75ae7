"""`gym capture check`: whether a capture directory is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nemo_gym.capture.inspection import inspect_rollout
from nemo_gym.cli.capture_places import stores_in
from nemo_gym.cli.output import note, print_json, show


def command(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A capture directory, or a folder above some.")
    ] = Path(),
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> int:
    """Look for damaged lines, calls that began and left no record, and rollouts that are marked incomplete.

    Exits with 1 when there is any. A call that is still being served is none.

    \b
    Examples:
      gym capture check runs/first/model-calls
    """
    rollouts = calls = 0
    wrong = []
    for store in stores_in(directory):
        for rollout_id in store.rollout_ids():
            found = inspect_rollout(store, rollout_id)
            rollouts, calls = rollouts + 1, calls + found.calls
            if found.problems:
                wrong.append((store, found))
    if as_json:
        problems = [
            {
                "directory": str(store.root),
                "rollout_id": found.rollout_id,
                "damaged_lines": found.damaged_lines,
                "missing": found.missing,
                "marked_incomplete": found.unnamed,
                "unreadable": found.unreadable,
            }
            for store, found in wrong
        ]
        print_json({"rollouts": rollouts, "calls": calls, "problems": problems})
        return 1 if wrong else 0
    for store, found in wrong:
        for problem in found.problems:
            show(f"{store.path_for(found.rollout_id)}: {problem}")
    note(f"{calls} calls of {rollouts} rollouts; {len(wrong)} rollouts have problems")
    return 1 if wrong else 0

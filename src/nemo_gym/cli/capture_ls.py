"""`gym capture ls`: the rollouts of a capture directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nemo_gym.capture.inspection import RolloutCapture, inspect_rollout
from nemo_gym.cli.capture_places import size_text, stores_in
from nemo_gym.cli.output import print_json, print_table

COLUMNS = ("rollout", "calls", "errors", "size", "state")


def command(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A capture directory, or a folder above some.")
    ] = Path(),
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> int:
    """List the captured rollouts: how many calls, how many of them failed, and the size on disk.

    \b
    Examples:
      gym capture ls runs/first/model-calls
    """
    found = [(store, inspect_rollout(store, name)) for store in stores_in(directory) for name in store.rollout_ids()]
    if as_json:
        print_json(
            [
                {
                    "directory": str(store.root),
                    "rollout_id": each.rollout_id,
                    "calls": each.calls,
                    "errors": each.errors,
                    "size_bytes": each.size_bytes,
                    "sealed": each.sealed,
                    "serving": each.serving,
                    "complete": not each.problems,
                }
                for store, each in found
            ]
        )
    else:
        # Runs below one folder give their rollouts the same ids.
        several = len({store.root for store, _ in found}) > 1
        rows = [[*_row(each), *([store.root] if several else [])] for store, each in found]
        print_table((*COLUMNS, *(["directory"] if several else [])), rows, wrapped="rollout")
    return 0


def _row(each: RolloutCapture) -> list[object]:
    return [each.rollout_id, each.calls, each.errors, size_text(each.size_bytes), _state(each)]


def _state(each: RolloutCapture) -> str:
    words = [
        *(["sealed"] if each.sealed else []),
        *([f"{each.serving} being served"] if each.serving else []),
        *(["incomplete"] if each.problems else []),
    ]
    return ", ".join(words)

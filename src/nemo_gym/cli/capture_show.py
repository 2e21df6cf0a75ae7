"""`gym capture show`: the calls of a rollout, or one call whole."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from nemo_gym.capture import CaptureStore, ModelCallRecord, build_model_call_record
from nemo_gym.cli.capture_places import stores_in
from nemo_gym.cli.output import note, print_json, print_table
from nemo_gym.errors import UsageError
from nemo_gym.records import identity
from nemo_gym.records.codec import encode_pretty

UNSEEN = "unseen"
"""The status of a failed call of which capture saw none; the end says what is known."""

COLUMNS = ("#", "call", "dialect", "model", "status", "end", "in", "out", "ms")


def command(
    name: Annotated[str, typer.Argument(metavar="ID", help="A rollout's id, or a model call's.")],
    directory: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="A capture directory, or a folder above some.")
    ] = Path(),
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list for a rollout.")] = False,
) -> int:
    """Show the calls of a rollout in the order they were written, or everything about one call.

    \b
    Examples:
      gym capture show 0-0 runs/first/model-calls
      gym capture show 4f5c0c0d4a7f4bb7a1c3f6f2a94b6a1e runs/first/model-calls
    """
    found = []
    if identity.rollout_id_problem(name) is None:
        found = [store for store in stores_in(directory) if name in store.rollout_ids()]
    for number, store in enumerate(found):
        if len(found) > 1 and not as_json:  # runs below one folder give the same ids
            print("\n" * bool(number) + f"{store.root}:", flush=True)
        _show_rollout(store, name, as_json=as_json)
    if not found and not _show_call(directory, name, as_json=as_json):
        raise UsageError(f"no rollout and no call `{name}` in `{directory}`. `gym capture ls` lists the rollouts.")
    return 0


def _show_rollout(store: CaptureStore, rollout_id: str, *, as_json: bool) -> None:
    lines, damaged = store.read_available(rollout_id)
    calls = [build_model_call_record(line, call_index=index) for index, line in lines]
    if as_json:
        print_json([{"directory": str(store.root), **call.model_dump(include_payloads=False)} for call in calls])
    else:
        print_table(COLUMNS, [_row(call) for call in calls], wrapped="model")
    if damaged:
        note(f"`{store.root}`: {damaged} damaged lines are left out")


def _row(call: ModelCallRecord) -> list[object]:
    end = call.error_category or call.finish_reason or call.response_status
    # The handler raised, or the client left: what was sent after that, if anything, capture did not see.
    unseen = UNSEEN if call.error_category else None
    return [
        call.call_index,
        call.model_call_id,
        call.dialect,
        call.model,
        unseen if call.status_code is None else call.status_code,
        end,
        call.tokens_in,
        call.tokens_out,
        None if call.latency_total_ms is None else round(call.latency_total_ms),
    ]


def _show_call(directory: Path, call_id: str, *, as_json: bool) -> bool:
    for store in stores_in(directory):
        for rollout_id in store.rollout_ids():
            for index, line in store.read_available(rollout_id)[0]:
                if line.get("model_call_id") != call_id:
                    continue
                read = build_model_call_record(line, call_index=index).model_dump()
                # What the line says beside the record's fields: tries, conversion notes, what was cut off.
                record = {"rollout_id": rollout_id, **read, **{key: line[key] for key in line if key not in read}}
                if as_json:
                    print_json(record)
                else:
                    sys.stdout.write(encode_pretty(record).decode())
                return True
    return False

"""`gym env status`."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import typer

from nemo_gym.cli.head_client import HeadAddress, whose
from nemo_gym.cli.interruption import run_until_interrupted
from nemo_gym.cli.output import note, print_json, print_table
from nemo_gym.cli.selection import ConfigOption, Overrides, SearchDirOption, Selection, compose, flags_of
from nemo_gym.engine.local import ask
from nemo_gym.errors import HeadServerUnreachableError

_PROBE_TIMEOUT_S = 2.0


def command(
    overrides: Overrides = None,
    *,
    config: ConfigOption = None,
    search_dir: SearchDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the servers as JSON.")] = False,
) -> int:
    """Show the servers that `gym env start` runs, and whether each answers.

    Ends with code 1 when there are none, or when one does not answer.
    """
    selection = Selection(config=config, search_dir=search_dir)
    resolved = compose(selection, overrides, flags=flags_of(command), allow_missing_model=True)
    return run_until_interrupted(_show(HeadAddress.of(resolved.data), as_json=as_json))


async def _show(address: HeadAddress, *, as_json: bool) -> int:
    try:
        entries = await address.instances()
    except HeadServerUnreachableError:
        if as_json:
            print_json([])
        raise
    # All at once: one silent server must not delay the others.
    answers = await asyncio.gather(*(_answers(entry) for entry in entries))
    if as_json:
        print_json([{**entry, "healthy": answer} for entry, answer in zip(entries, answers, strict=True)])
    else:
        rows = [_row(entry, answer) for entry, answer in zip(entries, answers, strict=True)]
        print_table(("", "name", "kind", "url", "pid", "uptime", "log file"), rows, wrapped="log file")
        note(f"{sum(answers)} of {len(entries)} servers answer. {whose(address, entries)}.")
    return 0 if all(answers) else 1


async def _answers(entry: dict[str, Any]) -> bool:
    host, port = entry.get("host"), entry.get("port")
    if not isinstance(host, str) or not isinstance(port, int):
        return False
    answer = await ask(host, port, "/readyz", timeout_s=_PROBE_TIMEOUT_S)
    return answer is not None and answer.status < 500


def _row(entry: dict[str, Any], answers: bool) -> list[object]:
    started = entry.get("start_time")
    uptime = _duration(time.time() - started) if isinstance(started, (int, float)) else None
    shown = [entry.get(key) for key in ("name", "kind", "url", "pid")]
    return ["✓" if answers else "✗", *shown, uptime, entry.get("log_file")]


def _duration(seconds: float) -> str:
    whole = max(0, int(seconds))
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02}:{whole % 60:02}"

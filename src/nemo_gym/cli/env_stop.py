"""`gym env stop`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable

from nemo_gym.cli.head_client import HeadAddress, whose
from nemo_gym.cli.interruption import run_until_interrupted
from nemo_gym.cli.output import note
from nemo_gym.cli.selection import ConfigOption, Overrides, SearchDirOption, Selection, compose, flags_of
from nemo_gym.errors import BoundaryError, HeadServerUnreachableError

_DEADLINE_S = 20.0
_POLL_S = 0.05


def command(overrides: Overrides = None, *, config: ConfigOption = None, search_dir: SearchDirOption = None) -> int:
    """Stop the servers that `gym env start` started, and wait until they are gone.

    The running head server is found by `head_server.host` and `head_server.port` of the configuration, whoever started
    it; what was stopped is said, and the folder from which it was started. `gym env status` shows it before.
    """
    selection = Selection(config=config, search_dir=search_dir)
    resolved = compose(selection, overrides, flags=flags_of(command), allow_missing_model=True)
    return run_until_interrupted(_stop(HeadAddress.of(resolved.data)))


async def _stop(address: HeadAddress) -> int:
    entries = await address.instances()
    await address.ask("/shutdown", method="POST")
    pids = [pid for entry in entries if isinstance(pid := entry.get("pid"), int)]
    deadline = time.monotonic() + _DEADLINE_S
    while await _answers(address) or any(_runs(pids)):
        if time.monotonic() > deadline:
            left = ", ".join(str(pid) for pid, runs in zip(pids, _runs(pids), strict=True) if runs)
            raise BoundaryError(f"not everything ended within {_DEADLINE_S:g} s; still running: {left or address.url}.")
        await asyncio.sleep(_POLL_S)
    names = ", ".join(f"`{entry.get('name')}`" for entry in entries)
    note(
        f"Stopped {len(entries)} server{'s' * (len(entries) != 1)}{': ' * bool(names)}{names}. "
        f"{whose(address, entries)}."
    )
    return 0


async def _answers(address: HeadAddress) -> bool:
    try:
        await address.ask("/livez")
    except HeadServerUnreachableError:
        return False
    return True


def _runs(pids: Iterable[int]) -> list[bool]:
    """Whether each process exists; one of another machine or user counts as gone."""
    result = []
    for pid in pids:
        try:
            os.kill(pid, 0)
        except OSError:
            result.append(False)
        else:
            result.append(True)
    return result

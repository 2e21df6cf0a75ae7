"""What belongs to one process and is needed for every call: its id, and a supply of ids for calls.

Asking the system for either costs more than the rest of starting a call; a forked child starts anew.
"""

from __future__ import annotations

import os

_ID_BYTES = 16
_SUPPLY = 256

pid = os.getpid()
"""The id of this process."""
_ids: list[str] = []


def new_call_id() -> str:
    """Return 32 hexadecimal digits of the system's random source, never used before."""
    try:
        return _ids.pop()
    except IndexError:
        digits = os.urandom(_ID_BYTES * _SUPPLY).hex()
        width = 2 * _ID_BYTES
        # Whoever else finds none meanwhile adds as many more: nothing is handed out twice.
        _ids.extend(digits[at : at + width] for at in range(width, len(digits), width))
        return digits[:width]


def _forked() -> None:
    global pid
    pid = os.getpid()
    _ids.clear()


os.register_at_fork(after_in_child=_forked)

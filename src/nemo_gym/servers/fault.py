"""Where an unhandled exception was raised, for who reads only the answer to it."""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
import traceback
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_SHIPPED = _PACKAGE + "builtin" + os.sep
_LIBRARIES = tuple({str(Path(sysconfig.get_path(name))) + os.sep for name in ("stdlib", "purelib", "platlib")})


def place_of(error: BaseException) -> str | None:
    """Return the innermost line of the server's own code, and the log with the traceback; None if neither is known.

    Own code is that of no library and not of this package, except for the servers that it ships.
    """
    line, log = _own_line(error), _log_file()
    if line is None:
        return None if log is None else f"traceback in `{log}`"
    return f"at `{line}`" + ("" if log is None else f", traceback in `{log}`")


def _own_line(error: BaseException) -> str | None:
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return next((f"{name}:{line}" for name, line in reversed(frames) if _is_own(name)), None)


def _is_own(name: str) -> bool:
    if name.startswith(_SHIPPED):  # first: an installed package lies among the libraries
        return True
    return Path(name).is_absolute() and not name.startswith((_PACKAGE, *_LIBRARIES))


def _log_file() -> str | None:
    """Return the file that this process's errors go to, where its launcher sent them to one."""
    try:
        if not stat.S_ISREG(os.fstat(2).st_mode):
            return None
        return str(Path("/proc/self/fd/2").readlink()) if sys.platform == "linux" else None
    except OSError:
        return None

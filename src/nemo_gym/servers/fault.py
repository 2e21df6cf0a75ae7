"""Where an unhandled exception was raised, for who reads only the answer to it."""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
import traceback
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_SHIPPED = _PACKAGE / "builtin"
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
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if not file.is_absolute() or str(file).startswith(_LIBRARIES):
            continue
        if not file.is_relative_to(_PACKAGE) or file.is_relative_to(_SHIPPED):
            return f"{file}:{frame.lineno}"
    return None


def _log_file() -> str | None:
    """Return the file that this process's errors go to, where its launcher sent them to one."""
    try:
        if not stat.S_ISREG(os.fstat(2).st_mode):
            return None
        return str(Path("/proc/self/fd/2").readlink()) if sys.platform == "linux" else None
    except OSError:
        return None

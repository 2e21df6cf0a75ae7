"""The first code of a server process: `python -m nemo_gym.engine.local.child app.py`.

Runs the entry file as `python app.py` would, with a guard that ends the process when its starter is gone.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from nemo_gym.engine.local.guard import install_guard
from nemo_gym.errors import GymError


def main() -> None:
    """Run the entry file that the command line names."""
    run_entry(sys.argv[1], sys.argv[2:])


def run_entry(name: str, arguments: Sequence[str]) -> None:
    """Run an entry file of the current folder as this process's program."""
    guard = install_guard()
    entry = os.path.abspath(name)  # noqa: PTH100 - keeps a symbolic link as the person made it
    sys.argv[:] = [entry, *arguments]
    folder = os.path.dirname(entry)  # noqa: PTH120
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    try:
        runpy.run_path(entry, run_name="__main__")
    except GymError as error:
        # Whoever started this process shows the end of the log: one line that says what to do, and no traceback.
        print(f"Error: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the process's own last words
        sys.exit(error.exit_code)
    finally:
        if guard is not None:
            guard.finish()


if __name__ == "__main__":
    main()

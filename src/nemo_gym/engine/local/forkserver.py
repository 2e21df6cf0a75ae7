"""A process that imports what all servers of a launch need, forks one process for each, and ends.

`python -m nemo_gym.engine.local.forkserver MODULE...`, started by `adoption.ForkServer`. The imports are most of
what the start of a server costs; done once, three servers start in the time of one. Standard input holds the servers
as a JSON list; each copy answers with its place in the list and its process id, a JSON line. The copies then belong to
the starter, which adopts orphans meanwhile (`adoption`), so a server is nobody's grandchild.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import threading
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import NoReturn

import nemo_gym
from nemo_gym.engine.local.child import run_entry

FAILED = 3
"""The exit code when nothing was forked: the starter then starts each server on its own."""


def main() -> None:
    """Import the modules that the command line names, then fork what standard input lists."""
    answer = os.dup(1)
    os.dup2(2, 1)  # what an import prints is no answer
    try:
        for name in sys.argv[1:]:
            importlib.import_module(name)
    except ImportError:
        sys.exit(FAILED)  # each server says what is missing, in its own log
    servers: list[dict[str, str]] = json.load(sys.stdin)
    if threading.active_count() > 1:
        sys.exit(FAILED)  # a thread does not survive a fork, and what it had locked stays locked
    if any(_has_own(Path(server["directory"], server["entrypoint"]).parent) for server in servers):
        sys.exit(FAILED)
    gc.collect()
    gc.freeze()  # the copies share these objects with this process as long as nobody writes to them
    for index, server in enumerate(servers):
        if not os.fork():
            # The copy tells of itself: a copy that runs is known, whatever becomes of this process meanwhile.
            os.write(answer, f"[{index}, {os.getpid()}]\n".encode())
            os.close(answer)
            _become(**server)
    # Not as a program ends: nothing here may run that the copies will run too.
    os._exit(0)


def _has_own(folder: Path) -> bool:
    """Whether the folder, the first that a server's imports look into, has a module of a name that is imported."""
    for entry in folder.iterdir():
        name, _, ending = entry.name.partition(".")
        if name in sys.modules and (f".{ending}" in all_suffixes() or (entry / "__init__.py").is_file()):
            return True
    return False


def _become(*, directory: str, entrypoint: str, log_file: str, name_variable: str, name: str) -> NoReturn:
    """Be the server from here on: a session, an output, a folder and a name of its own, as if it had been started."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)
    os.environ[name_variable] = name
    os.chdir(directory)
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - what `python -m` does
    nemo_gym.settle_in_working_folder()
    run_entry(entrypoint, ())
    sys.exit(0)


if __name__ == "__main__":
    main()

"""What a server process does so that it does not outlive the process that started it, SIGKILL included.

The starter holds the only writing end of a pipe. When the reading end reports its end, the starter is gone, and the
server ends everything of the launch, itself last. Every server of a launch does the same, so one that is stuck is
ended by another. The kernel's own signal at a parent's death (PR_SET_PDEATHSIG) would be in the way: it ends the
server before the server can end what it started.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from dataclasses import dataclass

from nemo_gym.engine.local.leftovers import DEATH_PIPE_ENV, LAUNCH_ID_ENV, end_launch_from_inside

_GRACE_S = 1.0


@dataclass(slots=True)
class Guard:
    """Watches the starter from a thread of its own."""

    pipe: int
    launch_id: str
    thread: threading.Thread | None = None

    def watch(self) -> None:
        """Wait for the end of the starter, then end all processes of the launch, this one and its group last."""
        with contextlib.suppress(OSError):
            while os.read(self.pipe, 1):
                pass
        end_launch_from_inside(self.launch_id, grace_s=_GRACE_S)
        os.killpg(0, signal.SIGTERM)
        time.sleep(_GRACE_S)
        os.killpg(0, signal.SIGKILL)

    def finish(self) -> None:
        """Called when the server is done: if the starter is gone, wait until the rest of the launch is ended too."""
        readable, _, _ = select.select([self.pipe], [], [], 0)
        if readable and self.thread is not None:
            self.thread.join()


def install_guard() -> Guard | None:
    """Start watching the starter that the environment names; None when this process was not started by a launcher."""
    pipe = os.environ.pop(DEATH_PIPE_ENV, "")
    if not pipe:
        return None
    os.set_inheritable(int(pipe), False)
    guard = Guard(int(pipe), os.environ.get(LAUNCH_ID_ENV, ""))
    guard.thread = threading.Thread(target=guard.watch, name="gym-guard", daemon=True)
    guard.thread.start()
    return guard

"""Folders of our own on the user's machine: logs, and the output of what runs detached."""

from __future__ import annotations

import os
from pathlib import Path

from nemo_gym.config.names import LOG_DIR
from nemo_gym.store.atomic import writing


def state_folder(name: str) -> Path:
    """Return a folder of the user's state directory; it need not be there."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "nemo-gym" / name


def make_log_folder(folder: Path) -> Path:
    """Make a folder for logs; raises ConfigError that says which other one can be named."""
    instead = f"`+{LOG_DIR}=DIR` names another folder for logs of servers, the variable `XDG_STATE_HOME` for all logs."
    with writing(f"logs in `{folder}`", folder, instead=instead):
        folder.mkdir(parents=True, exist_ok=True)
    return folder

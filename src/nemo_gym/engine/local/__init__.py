"""Servers as processes of this machine.

Names are imported when they are first used: a server process passes through this package before its own code runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_gym.engine.local.launch import RunningServers, start_servers
    from nemo_gym.engine.local.probe import Answer, ask
    from nemo_gym.engine.local.process import ServerInstance, log_tail

_HOMES = {
    "Answer": "probe",
    "RunningServers": "launch",
    "ServerInstance": "process",
    "ask": "probe",
    "log_tail": "process",
    "start_servers": "launch",
}

__all__ = ["Answer", "RunningServers", "ServerInstance", "ask", "log_tail", "start_servers"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

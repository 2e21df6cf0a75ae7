"""What really happened, written down by the parties that it happened to: the model, the tools and the verifier.

The witness knows nothing of capture, observations or trajectories; that is what makes it one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.records import codec

MODEL_CALL = "model_call"
TOOL_STARTED = "tool_started"
TOOL_ENDED = "tool_ended"
VERIFIED = "verified"
CUT_OFF = "cut_off"
"""The runner ended the rollout: it is the witness of that."""


class WitnessFile:
    """A file that several processes append events to, one line each."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, what: str, scenario: str, **facts: Any) -> None:
        """Append one event, with its time (UTC Unix seconds); the line reaches the file whole."""
        line = codec.encode_line({"what": what, "scenario": scenario, "at": time.time(), **facts})
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def read(self) -> dict[str, WhatHappened]:
        """Return what happened so far, by scenario."""
        said: dict[str, WhatHappened] = {}
        if not self.path.exists():
            return said
        for line in self.path.read_bytes().splitlines():
            event = codec.decode_object(line)
            said.setdefault(event["scenario"], WhatHappened()).add(event)
        return said


@dataclass(slots=True)
class WhatHappened:
    """What happened in one scenario, in the order in which the witnesses wrote it.

    `before_cut_off`: how many model calls, tool starts and tool ends there were when the rollout was ended from
    outside; None when it was not.
    """

    model_calls: list[Mapping[str, Any]] = field(default_factory=list)
    tools_started: list[Mapping[str, Any]] = field(default_factory=list)
    tools_ended: list[Mapping[str, Any]] = field(default_factory=list)
    verdicts: list[Mapping[str, Any]] = field(default_factory=list)
    before_cut_off: tuple[int, int, int] | None = None

    def add(self, event: Mapping[str, Any]) -> None:
        """Take one event."""
        if event["what"] == CUT_OFF:
            self.before_cut_off = len(self.model_calls), len(self.tools_started), len(self.tools_ended)
            return
        lists = {
            MODEL_CALL: self.model_calls,
            TOOL_STARTED: self.tools_started,
            TOOL_ENDED: self.tools_ended,
            VERIFIED: self.verdicts,
        }
        lists[event["what"]].append(event)

    @property
    def finished_calls(self) -> list[Mapping[str, Any]]:
        """The model calls that were answered whole."""
        return [call for call in self.model_calls if call["finished"]]

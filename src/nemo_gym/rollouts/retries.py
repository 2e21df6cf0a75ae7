"""Trying a rollout again within its run, where its `/run` had no outcome (`rollout_retries`)."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_gym.records.failure_kinds import AGENT_REQUEST_FAILED
from nemo_gym.records.failures import RunFailure

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


@dataclass(slots=True)
class Retries:
    """The further tries that one rollout has left in this run. Each is an attempt like one that a resume makes."""

    left: int
    pause_s: float = 0.0
    """How long was waited before the last one."""

    def allow(self, failure: RunFailure) -> bool:
        """Return whether to try again after this failure.

        A lost connection, a timeout and 429, 502, 503 and 504 leave open what became of the rollout. Every other
        answer, also one that says no, is an outcome.
        """
        return self.left > 0 and failure.failure_class == AGENT_REQUEST_FAILED

    def take(self) -> float:
        """Use one; return the seconds to wait before it, which double: an agent that is starting anew needs time."""
        self.left -= 1
        self.pause_s = min(2 * self.pause_s or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        return self.pause_s

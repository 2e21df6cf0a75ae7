"""Every error this package raises on purpose.

    GymError                       what a caller catches; `exit_code` is what the command line returns
     ├─ UsageError                 you can fix it: a flag, a value, a name                      exit 2
     │   ├─ ConfigError            a configuration key, file or value (also a ValueError)
     │   │   ├─ ResumeRefusedError saved rollouts that belong to another configuration
     │   │   ├─ UnsupportedPairingError  an agent or model type that an environment does not list; one class each
     │   │   └─ InputDataError     a file that the command was given is unreadable (also a DataError)
     │   ├─ ConfigFileNotFoundError  a named file is nowhere on the search path (also FileNotFoundError)
     │   └─ MissingExtraError      an optional dependency or its data is not installed
     ├─ DataError                  a file holds something unreadable: path, line, byte, reason  exit 1
     ├─ RemoteError                another server did not do its part: which, status, attempt   exit 1
     │   └─ HeadServerUnreachableError
     ├─ BoundaryError              the failure crossed a process or a disk                       exit 1
     │   ├─ ServerStartError       a server process died or never answered while starting
     │   └─ RecordingError         a record could not be made durable
     ├─ RunFailedError             the run ended with failures to be seen (also a RuntimeError)  exit 1
     │   └─ IncompleteEvaluationError  rollouts are still owed, and were required            exit 3
     └─ InvalidRolloutResultError  a reply that cannot represent a completed rollout (also ValueError)

A message says what happened, where, and what to do, in that order, with values in backticks. A failed rollout is a
record, not an exception.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class GymError(Exception):
    """Base of every error raised on purpose by this package."""

    exit_code = 1


class UsageError(GymError):
    """The caller can fix it: a flag, a value, a name."""

    exit_code = 2


class ConfigError(UsageError, ValueError):
    """A configuration key, value or file is wrong."""


class ResumeRefusedError(ConfigError):
    """The saved rollouts were made under a different configuration; nothing was touched."""


class UnsupportedPairingError(ConfigError):
    """An environment says what it works with, and this is not among it; the message lists what is."""


class UnsupportedAgentPairingError(UnsupportedPairingError):
    """The agent is not in the environment's `allowed_agents`."""


class UnsupportedModelPairingError(UnsupportedPairingError):
    """The type of model server is not in the environment's `allowed_model_types`."""


class ConfigFileNotFoundError(UsageError, FileNotFoundError):
    """A named file is in none of the places that were searched; the message lists them."""


class MissingExtraError(UsageError, ImportError):
    """An optional dependency is not installed; the message names the command that installs it."""


class DataError(GymError, ValueError):
    """A file holds something that cannot be read.

    Attributes: `path`; `line`, 1-based physical line, or None; `byte`, 0-based offset of the line's first byte, or
    None; `reason`; `hint`, what to do.
    """

    def __init__(
        self, reason: str, *, path: str | Path, line: int | None = None, byte: int | None = None, hint: str = ""
    ) -> None:
        self.reason, self.path, self.line, self.byte, self.hint = reason, str(path), line, byte, hint
        where = f"`{path}`"
        if line is not None:
            where += f" line {line}"
        if byte is not None:
            where += f" (byte {byte:,})"
        super().__init__(f"{where}: {reason}." + (f" {hint}" if hint else ""))


class InputDataError(ConfigError, DataError):
    """A file that the command was given holds something that cannot be read; nothing was sent."""

    @classmethod
    def of(cls, error: DataError) -> InputDataError:
        """Return the same error about a file that the caller gave."""
        return cls(error.reason, path=error.path, line=error.line, byte=error.byte, hint=error.hint)


class RemoteError(GymError):
    """Another server answered with an error, or did not answer.

    Attributes: `server`, the name or URL; `status`, the HTTP status or None when there was no answer; `attempt`,
    1-based.
    """

    def __init__(self, message: str, *, server: str, status: int | None = None, attempt: int = 1) -> None:
        self.server, self.status, self.attempt = server, status, attempt
        super().__init__(message)


class HeadServerUnreachableError(RemoteError, ValueError):
    """No head server answers at the configured address."""


class BoundaryError(GymError):
    """The failure crossed a process or a disk."""


class ServerStartError(BoundaryError):
    """A server process died, or never became ready, while starting; the message ends with its last log lines."""


class RecordingError(BoundaryError):
    """A record could not be made durable; nothing after it is claimed to be recorded."""


class RunFailedError(GymError, RuntimeError):
    """The run ended and has failures that the user must see."""


class IncompleteEvaluationError(RunFailedError):
    """What was collected is fine, but rollouts are still owed."""

    exit_code = 3


class InvalidRolloutResultError(GymError, ValueError):
    """A reply that cannot represent a completed rollout."""


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean `x`?" for the closest known name, or "" when none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean `{close[0]}`?" if close else ""

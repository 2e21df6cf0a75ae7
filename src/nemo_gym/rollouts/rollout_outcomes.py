"""What a rollout can come to, beside a result: the errors that a caller of `run_examples` or a run can see."""

from __future__ import annotations

from nemo_gym.errors import InvalidRolloutResultError, RemoteError
from nemo_gym.records.failures import (
    FailedEpisodeId,
    FailureDetail,
    RolloutFailure,
    RolloutFailureRecord,
    RunFailure,
    is_terminal_failure,
    observed_elapsed,
)

InvalidRolloutResult = InvalidRolloutResultError


class StaleRolloutResult(InvalidRolloutResultError):
    """A reply that names another rollout or attempt than the one that was sent."""


class RolloutRequestError(RemoteError):
    """A `/run` failed and failures are not routed to the sidecar. `record` is what routing would have returned."""

    def __init__(self, failure: RunFailure, record: RolloutFailureRecord, *, server: str) -> None:
        super().__init__(failure.message, server=server, status=failure.status)
        self.failure = failure
        self.record = record


__all__ = [
    "FailedEpisodeId",
    "FailureDetail",
    "InvalidRolloutResult",
    "RolloutFailure",
    "RolloutFailureRecord",
    "RolloutRequestError",
    "StaleRolloutResult",
    "is_terminal_failure",
    "observed_elapsed",
]

"""How a model call ended, by the one rule that health, performance and conformance share."""

from __future__ import annotations

from nemo_gym.records.evidence import TrajectoryModelCall

FAILED_STATUSES = frozenset({"failed", "error", "cancelled"})


def failed(call: TrajectoryModelCall) -> bool:
    """Return whether a call ended in an error of any kind."""
    facts = call.response_metadata
    status = facts.status_code
    return (
        (status is not None and status >= 400) or bool(facts.error_category) or facts.response_status in FAILED_STATUSES
    )


def successful(call: TrajectoryModelCall) -> bool:
    """Return whether a call did not fail and was answered."""
    return answered(call) and not failed(call)


def answered(call: TrajectoryModelCall) -> bool:
    """Return whether the status of a call, when known, is 200 to 399."""
    status = call.response_metadata.status_code
    return status is None or 200 <= status <= 399

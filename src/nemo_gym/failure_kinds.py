"""The public names of failure kinds."""

from nemo_gym.records.failure_kinds import *  # noqa: F403
from nemo_gym.records.failure_kinds import (
    FAILURE_KINDS,
    FailureStage,
    is_namespaced,
    is_registered,
)
from nemo_gym.servers.failure_kind_check import validate_failure_kind

__all__ = [  # noqa: PLE0604 - every constant is a member of the vocabulary
    "FAILURE_KINDS",
    "FailureStage",
    "is_namespaced",
    "is_registered",
    "validate_failure_kind",
    *(kind.upper() for kind in FAILURE_KINDS),
]

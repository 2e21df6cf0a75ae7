"""The types of health checks, by their public path."""

from nemo_gym.health.types import (
    CheckInput,
    CheckScope,
    CheckSpec,
    CheckSubject,
    Finding,
    HealthCheckResult,
    RolloutDigest,
    Verdict,
)

__all__ = [
    "CheckInput",
    "CheckScope",
    "CheckSpec",
    "CheckSubject",
    "Finding",
    "HealthCheckResult",
    "RolloutDigest",
    "Verdict",
]

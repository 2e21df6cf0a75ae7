"""Health checks, by their public path."""

from nemo_gym.health import (
    CHECK_REGISTRY,
    CheckInput,
    CheckScope,
    CheckSpec,
    CheckSubject,
    Finding,
    HealthCheckResult,
    RolloutDigest,
    Verdict,
    format_health_report,
    health_check_run_dir,
    normalize_ignored_checks,
    run_health_checks,
)

__all__ = [
    "CHECK_REGISTRY",
    "CheckInput",
    "CheckScope",
    "CheckSpec",
    "CheckSubject",
    "Finding",
    "HealthCheckResult",
    "RolloutDigest",
    "Verdict",
    "format_health_report",
    "health_check_run_dir",
    "normalize_ignored_checks",
    "run_health_checks",
]

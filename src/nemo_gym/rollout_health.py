"""Door to the health checks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from nemo_gym import health
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
    normalize_ignored_checks,
    run_health_checks,
)
from nemo_gym.records import codec


def health_check_run_dir(
    run_dir: str | Path,
    *,
    rollout_file: str | Path | None = None,
    workers: int | None = None,
    ignored_checks: Sequence[str] | str | None = (),
    json_output: bool = False,
) -> HealthCheckResult:
    """Check a run's folder as `nemo_gym.health.health_check_run_dir` does, and write what came out to stdout.

    Two lines for people, or with `json_output` the summary as one line of JSON.
    """
    result = health.health_check_run_dir(
        run_dir, rollout_file=rollout_file, workers=workers, ignored_checks=ignored_checks
    )
    report = codec.encode(result.summary).decode() if json_output else format_health_report(result)
    sys.stdout.write(f"{report}\n")
    return result


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

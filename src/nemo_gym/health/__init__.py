"""Is the saved evidence of a run complete and consistent with itself (A8, A26).

Health reads the records of rollouts files and nothing else: it opens no capture file, changes no record, and leaves it
to the verifier whether a task was solved.
"""

from nemo_gym.health.beside import explain_failures
from nemo_gym.health.checks import ROLLOUT_CHECKS
from nemo_gym.health.evaluate import evaluate_line
from nemo_gym.health.registry import CHECK_REGISTRY, normalize_ignored_checks
from nemo_gym.health.report import (
    FailOn,
    explain_gaps,
    explain_verdicts,
    format_health_report,
    junit_report,
    should_fail,
)
from nemo_gym.health.runner import files_to_check, health_check_run_dir, run_health_checks
from nemo_gym.health.tasks import TASK_CHECKS
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
    "CHECK_REGISTRY",
    "ROLLOUT_CHECKS",
    "TASK_CHECKS",
    "CheckInput",
    "CheckScope",
    "CheckSpec",
    "CheckSubject",
    "FailOn",
    "Finding",
    "HealthCheckResult",
    "RolloutDigest",
    "Verdict",
    "evaluate_line",
    "explain_failures",
    "explain_gaps",
    "explain_verdicts",
    "files_to_check",
    "format_health_report",
    "health_check_run_dir",
    "junit_report",
    "normalize_ignored_checks",
    "run_health_checks",
    "should_fail",
]

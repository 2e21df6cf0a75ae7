"""Collecting rollouts: send rows to agents, record what comes back with its evidence, resume what is missing.

Names are imported when they are first used, so that a command that only reads files does not load the dispatcher.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_gym.analysis import RewardProfileConfig
    from nemo_gym.capture import (
        CaptureStore,
        aggregate_model_call_metrics,
        await_model_call_capture_quiescence,
        clear_model_call_captures_for_rollouts,
        model_call_capture_dirs_from_config,
        observability_enabled_from_config,
        read_available_model_call_records,
        read_model_call_records,
    )
    from nemo_gym.errors import IncompleteEvaluationError, ResumeRefusedError
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
    from nemo_gym.records.failures import (
        RolloutFailure,
        RolloutFailureRecord,
        is_terminal_failure,
        observed_elapsed,
    )
    from nemo_gym.records.manifest import RunManifest
    from nemo_gym.records.status import RunStatus
    from nemo_gym.rollouts.aggregation import RolloutAggregationHelper
    from nemo_gym.rollouts.batch_status import RunStatusTracker, disable_run_status
    from nemo_gym.rollouts.budget import DispatchLatencyTracker
    from nemo_gym.rollouts.dispatch import Completions
    from nemo_gym.rollouts.enrich import attach_evidence, merge_model_call_capture_into_record
    from nemo_gym.rollouts.execute import omitted_rollout_record
    from nemo_gym.rollouts.resume import migrate_invalid_judge_main_rows
    from nemo_gym.rollouts.rollout_collection import (
        RolloutCollectionHelper,
        get_max_rollout_attempts,
        loads_jsonl_line,
    )
    from nemo_gym.rollouts.rollout_outcomes import InvalidRolloutResult, RolloutRequestError, StaleRolloutResult
    from nemo_gym.rollouts.rollout_records import RolloutRecord, RolloutRecords, logical_rollout_id
    from nemo_gym.rollouts.route import AgentWithoutEnvironmentServerError, AmbiguousEnvironmentServerError
    from nemo_gym.rollouts.run_progress import read_run_status
    from nemo_gym.rollouts.settings import (
        E2ERolloutCollectionConfig,
        RolloutAggregationConfig,
        RolloutCollectionConfig,
        SharedRolloutCollectionConfig,
    )
    from nemo_gym.store.rollout_store import RolloutStore, raw_outcomes_are_selected

_HOMES = {
    "AgentWithoutEnvironmentServerError": "nemo_gym.rollouts.route",
    "AmbiguousEnvironmentServerError": "nemo_gym.rollouts.route",
    "CHECK_REGISTRY": "nemo_gym.health",
    "CaptureStore": "nemo_gym.capture",
    "CheckInput": "nemo_gym.health",
    "CheckScope": "nemo_gym.health",
    "CheckSpec": "nemo_gym.health",
    "CheckSubject": "nemo_gym.health",
    "Completions": "nemo_gym.rollouts.dispatch",
    "DispatchLatencyTracker": "nemo_gym.rollouts.budget",
    "E2ERolloutCollectionConfig": "nemo_gym.rollouts.settings",
    "Finding": "nemo_gym.health",
    "HealthCheckResult": "nemo_gym.health",
    "IncompleteEvaluationError": "nemo_gym.errors",
    "InvalidRolloutResult": "nemo_gym.rollouts.rollout_outcomes",
    "ResumeRefusedError": "nemo_gym.errors",
    "RewardProfileConfig": "nemo_gym.analysis",
    "RolloutAggregationConfig": "nemo_gym.rollouts.settings",
    "RolloutAggregationHelper": "nemo_gym.rollouts.aggregation",
    "RolloutCollectionConfig": "nemo_gym.rollouts.settings",
    "RolloutCollectionHelper": "nemo_gym.rollouts.rollout_collection",
    "RolloutDigest": "nemo_gym.health",
    "RolloutFailure": "nemo_gym.records.failures",
    "RolloutFailureRecord": "nemo_gym.records.failures",
    "RolloutRecord": "nemo_gym.rollouts.rollout_records",
    "RolloutRecords": "nemo_gym.rollouts.rollout_records",
    "RolloutRequestError": "nemo_gym.rollouts.rollout_outcomes",
    "RolloutStore": "nemo_gym.store.rollout_store",
    "RunManifest": "nemo_gym.records.manifest",
    "RunStatus": "nemo_gym.records.status",
    "RunStatusTracker": "nemo_gym.rollouts.batch_status",
    "SharedRolloutCollectionConfig": "nemo_gym.rollouts.settings",
    "StaleRolloutResult": "nemo_gym.rollouts.rollout_outcomes",
    "Verdict": "nemo_gym.health",
    "aggregate_model_call_metrics": "nemo_gym.capture",
    "attach_evidence": "nemo_gym.rollouts.enrich",
    "await_model_call_capture_quiescence": "nemo_gym.capture",
    "clear_model_call_captures_for_rollouts": "nemo_gym.capture",
    "disable_run_status": "nemo_gym.rollouts.batch_status",
    "format_health_report": "nemo_gym.health",
    "get_max_rollout_attempts": "nemo_gym.rollouts.rollout_collection",
    "health_check_run_dir": "nemo_gym.health",
    "is_terminal_failure": "nemo_gym.records.failures",
    "loads_jsonl_line": "nemo_gym.rollouts.rollout_collection",
    "logical_rollout_id": "nemo_gym.rollouts.rollout_records",
    "merge_model_call_capture_into_record": "nemo_gym.rollouts.enrich",
    "migrate_invalid_judge_main_rows": "nemo_gym.rollouts.resume",
    "model_call_capture_dirs_from_config": "nemo_gym.capture",
    "normalize_ignored_checks": "nemo_gym.health",
    "observability_enabled_from_config": "nemo_gym.capture",
    "observed_elapsed": "nemo_gym.records.failures",
    "omitted_rollout_record": "nemo_gym.rollouts.execute",
    "raw_outcomes_are_selected": "nemo_gym.store.rollout_store",
    "read_available_model_call_records": "nemo_gym.capture",
    "read_model_call_records": "nemo_gym.capture",
    "read_run_status": "nemo_gym.rollouts.run_progress",
    "run_health_checks": "nemo_gym.health",
}

__all__ = [
    "CHECK_REGISTRY",
    "AgentWithoutEnvironmentServerError",
    "AmbiguousEnvironmentServerError",
    "CaptureStore",
    "CheckInput",
    "CheckScope",
    "CheckSpec",
    "CheckSubject",
    "Completions",
    "DispatchLatencyTracker",
    "E2ERolloutCollectionConfig",
    "Finding",
    "HealthCheckResult",
    "IncompleteEvaluationError",
    "InvalidRolloutResult",
    "ResumeRefusedError",
    "RewardProfileConfig",
    "RolloutAggregationConfig",
    "RolloutAggregationHelper",
    "RolloutCollectionConfig",
    "RolloutCollectionHelper",
    "RolloutDigest",
    "RolloutFailure",
    "RolloutFailureRecord",
    "RolloutRecord",
    "RolloutRecords",
    "RolloutRequestError",
    "RolloutStore",
    "RunManifest",
    "RunStatus",
    "RunStatusTracker",
    "SharedRolloutCollectionConfig",
    "StaleRolloutResult",
    "Verdict",
    "aggregate_model_call_metrics",
    "attach_evidence",
    "await_model_call_capture_quiescence",
    "clear_model_call_captures_for_rollouts",
    "disable_run_status",
    "format_health_report",
    "get_max_rollout_attempts",
    "health_check_run_dir",
    "is_terminal_failure",
    "loads_jsonl_line",
    "logical_rollout_id",
    "merge_model_call_capture_into_record",
    "migrate_invalid_judge_main_rows",
    "model_call_capture_dirs_from_config",
    "normalize_ignored_checks",
    "observability_enabled_from_config",
    "observed_elapsed",
    "omitted_rollout_record",
    "raw_outcomes_are_selected",
    "read_available_model_call_records",
    "read_model_call_records",
    "read_run_status",
    "run_health_checks",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

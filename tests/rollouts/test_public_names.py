from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

NAMES = {
    "nemo_gym.rollouts": ["RolloutCollectionHelper", "RolloutFailureRecord", "RolloutStore", "attach_evidence"],
    "nemo_gym.rollout_collection": [
        "RolloutCollectionHelper", "RolloutCollectionConfig", "E2ERolloutCollectionConfig", "RolloutAggregationConfig",
        "SharedRolloutCollectionConfig", "RolloutAggregationHelper", "DispatchLatencyTracker", "is_terminal_failure",
        "get_max_rollout_attempts", "observed_elapsed", "loads_jsonl_line", "migrate_invalid_judge_main_rows",
    ],
    "nemo_gym.rollout_outcomes": ["RolloutFailure", "RolloutFailureRecord", "InvalidRolloutResult"],
    "nemo_gym.path_utils": ["failures_path_for", "materialized_path_for", "aggregate_metrics_path_for"],
    "nemo_gym.rollouts.rollout_collection": [
        "RolloutCollectionHelper", "RolloutCollectionConfig", "RolloutAggregationHelper", "is_terminal_failure",
        "migrate_invalid_judge_main_rows", "NG_FAILURE_CLASS_KEY", "FAILURE_CLASS_AGENT_RUN_ERROR",
    ],
    "nemo_gym.core.failure_kinds": ["FAILURE_KINDS", "validate_failure_kind"],
    "nemo_gym.utils.path_utils": ["failures_path_for", "materialized_path_for", "aggregate_metrics_path_for"],
    "nemo_gym.rollouts.health.checks": ["CHECK_REGISTRY", "normalize_ignored_checks"],
    "nemo_gym.rollouts.health.types": ["CheckSpec", "Finding", "HealthCheckResult", "RolloutDigest", "Verdict"],
    "nemo_gym.rollout_correlation": ["ROLLOUT_ID_PATTERN", "maybe_rollout_id_from_run_body"],
    "nemo_gym.rollouts.rollout_health": ["run_health_checks", "health_check_run_dir", "CHECK_REGISTRY"],
    "nemo_gym.rollouts.rollout_outcomes": ["RolloutFailureRecord", "InvalidRolloutResult", "StaleRolloutResult"],
    "nemo_gym.rollouts.rollout_recovery": ["RunManifest", "ResumeRefusedError", "IncompleteEvaluationError"],
    "nemo_gym.rollouts.rollout_store": ["RolloutStore", "raw_outcomes_are_selected"],
    "nemo_gym.rollouts.rollout_records": ["RolloutRecord", "RolloutRecords", "logical_rollout_id"],
    "nemo_gym.rollouts.batch_status": ["RunStatusTracker", "disable_run_status"],
    "nemo_gym.rollouts.omitted_rollouts": ["omitted_rollout_record"],
    "nemo_gym.rollouts.model_calls": ["CaptureStore", "read_model_call_records", "await_model_call_capture_quiescence"],
}  # fmt: skip


@pytest.mark.parametrize("module", NAMES)
def test_public_names_are_importable(module):
    for name in NAMES[module]:
        assert getattr(importlib.import_module(module), name) is not None


@pytest.mark.parametrize("module", [name for name in NAMES if name.startswith("nemo_gym.rollouts.rollout_")])
def test_the_package_offers_what_its_modules_offer(module):
    package = importlib.import_module("nemo_gym.rollouts")
    # Keys and classes as constants belong to collection alone.
    offered = [name for name in NAMES[module] if not name.startswith(("NG_", "FAILURE_CLASS_"))]
    for name in offered:
        assert getattr(package, name) is getattr(importlib.import_module(module), name)


def test_both_paths_of_collection_offer_the_same_names_and_no_others():
    inner, door = (
        importlib.import_module(name)
        for name in ("nemo_gym.rollouts.rollout_collection", "nemo_gym.rollout_collection")
    )
    for name in door.__all__:
        assert getattr(inner, name) is getattr(door, name)
    for module in (inner, door):
        with pytest.raises(AttributeError, match="nothing_like_it"):
            _ = module.nothing_like_it


def test_every_exported_name_exists_and_is_listed_once():
    module = importlib.import_module("nemo_gym.rollouts")
    assert len(module.__all__) == len(set(module.__all__))
    assert set(module.__all__) == set(module._HOMES)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = module.nothing_like_it


def test_reading_a_run_loads_no_http_client_and_no_server():
    code = (
        "import sys; from nemo_gym.rollouts import RolloutStore, read_run_status; "
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('aiohttp', 'fastapi', 'uvicorn', 'openai')))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"

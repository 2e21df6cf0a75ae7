"""Where the names live that `rollout_collection` offers, at either of its two paths."""

from __future__ import annotations

import importlib
from typing import Any, Final

HOMES: Final = {
    "AGENT_REF_KEY_NAME": ("nemo_gym.records.keys", "AGENT_REF"),
    "NG_ATTEMPT_INDEX_KEY": ("nemo_gym.records.keys", "ATTEMPT_INDEX"),
    "NG_FAILURE_CLASS_KEY": ("nemo_gym.records.keys", "FAILURE_CLASS"),
    "NG_FAILURE_TERMINAL_KEY": ("nemo_gym.records.keys", "FAILURE_TERMINAL"),
    "NG_NO_PERSIST_KEY": ("nemo_gym.records.keys", "NO_PERSIST"),
    "NG_OMITTED_ROLLOUT_KEY": ("nemo_gym.records.keys", "OMITTED_ROLLOUT"),
    "NG_ROLLOUT_ID_KEY": ("nemo_gym.records.keys", "ROLLOUT_ID"),
    "NG_ROLLOUT_INDEX_KEY": ("nemo_gym.records.keys", "ROLLOUT_INDEX"),
    "NG_TASK_INDEX_KEY": ("nemo_gym.records.keys", "TASK_INDEX"),
    "FAILURE_CLASS_AGENT_REQUEST_FAILED": ("nemo_gym.records.failure_kinds", "AGENT_REQUEST_FAILED"),
    "FAILURE_CLASS_AGENT_RUN_ERROR": ("nemo_gym.records.failure_kinds", "AGENT_RUN_ERROR"),
    "FAILURE_CLASS_CANCELLED": ("nemo_gym.records.failure_kinds", "CANCELLED"),
    "FAILURE_CLASS_ENVIRONMENT_SERVER_FAILED": ("nemo_gym.records.failures", "ENVIRONMENT_SERVER_FAILED"),
    "FAILURE_CLASS_JUDGE_INVALID": ("nemo_gym.records.failures", "JUDGE_INVALID"),
    "DispatchLatencyTracker": ("nemo_gym.rollouts", "DispatchLatencyTracker"),
    "E2ERolloutCollectionConfig": ("nemo_gym.rollouts", "E2ERolloutCollectionConfig"),
    "RolloutAggregationConfig": ("nemo_gym.rollouts", "RolloutAggregationConfig"),
    "RolloutAggregationHelper": ("nemo_gym.rollouts", "RolloutAggregationHelper"),
    "RolloutCollectionConfig": ("nemo_gym.rollouts", "RolloutCollectionConfig"),
    "RolloutCollectionHelper": ("nemo_gym.rollouts", "RolloutCollectionHelper"),
    "SharedRolloutCollectionConfig": ("nemo_gym.rollouts", "SharedRolloutCollectionConfig"),
    "get_max_rollout_attempts": ("nemo_gym.rollouts", "get_max_rollout_attempts"),
    "is_terminal_failure": ("nemo_gym.rollouts", "is_terminal_failure"),
    "loads_jsonl_line": ("nemo_gym.rollouts", "loads_jsonl_line"),
    "migrate_invalid_judge_main_rows": ("nemo_gym.rollouts", "migrate_invalid_judge_main_rows"),
    "observed_elapsed": ("nemo_gym.rollouts", "observed_elapsed"),
}


def find(module: str, name: str) -> Any:
    """Return what `name` means; raises AttributeError, as `module` would, for a name that is not offered."""
    if name not in HOMES:
        raise AttributeError(f"module `{module}` has no attribute `{name}`")
    home, attribute = HOMES[name]
    return getattr(importlib.import_module(home), attribute)

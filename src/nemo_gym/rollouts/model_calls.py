"""Captured model calls, by their public path."""

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
from nemo_gym.rollouts.enrich import merge_model_call_capture_into_record

__all__ = [
    "CaptureStore",
    "aggregate_model_call_metrics",
    "await_model_call_capture_quiescence",
    "clear_model_call_captures_for_rollouts",
    "merge_model_call_capture_into_record",
    "model_call_capture_dirs_from_config",
    "observability_enabled_from_config",
    "read_available_model_call_records",
    "read_model_call_records",
]

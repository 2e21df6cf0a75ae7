"""Model-call capture: what passed between agents and a model server, one durable file per rollout."""

from __future__ import annotations

from nemo_gym.capture.attachment import (
    AttachedCapture,
    attach_model_call_capture,
    clear_model_call_captures_for_rollouts,
    seal_rollout,
)
from nemo_gym.capture.correlation import (
    RolloutContextMiddleware,
    RolloutPath,
    apply_rollout_prefix,
    current_invocation_id,
    current_rollout_id,
    maybe_rollout_id_from_run_body,
    rollout_context,
    rollout_path_prefix,
    split_rollout_path,
    url_path_for_request,
)
from nemo_gym.capture.execution import report_execution
from nemo_gym.capture.middleware import (
    CaptureMiddleware,
    capture_health,
    install_model_call_capture,
    model_call_id_of,
)
from nemo_gym.capture.open_calls import OpenCall
from nemo_gym.capture.reading import (
    aggregate_model_call_metrics,
    aggregate_model_call_records,
    build_model_call_record,
    read_available_model_call_records,
    read_model_call_records,
    sum_model_calls,
)
from nemo_gym.capture.settings import (
    ModelCallCaptureConfig,
    capture_archive_from_config,
    make_capture_store,
    model_call_capture_dirs_from_config,
    observability_enabled_from_config,
)
from nemo_gym.capture.store import CaptureStore, await_model_call_capture_quiescence, await_quiescence
from nemo_gym.capture.writer import CaptureWriter
from nemo_gym.records.model_calls import ModelCallRecord

__all__ = [
    "AttachedCapture",
    "CaptureMiddleware",
    "CaptureStore",
    "CaptureWriter",
    "ModelCallCaptureConfig",
    "ModelCallRecord",
    "OpenCall",
    "RolloutContextMiddleware",
    "RolloutPath",
    "aggregate_model_call_metrics",
    "aggregate_model_call_records",
    "apply_rollout_prefix",
    "attach_model_call_capture",
    "await_model_call_capture_quiescence",
    "await_quiescence",
    "build_model_call_record",
    "capture_archive_from_config",
    "capture_health",
    "clear_model_call_captures_for_rollouts",
    "current_invocation_id",
    "current_rollout_id",
    "install_model_call_capture",
    "make_capture_store",
    "maybe_rollout_id_from_run_body",
    "model_call_capture_dirs_from_config",
    "model_call_id_of",
    "observability_enabled_from_config",
    "read_available_model_call_records",
    "read_model_call_records",
    "report_execution",
    "rollout_context",
    "rollout_path_prefix",
    "seal_rollout",
    "split_rollout_path",
    "sum_model_calls",
    "url_path_for_request",
]

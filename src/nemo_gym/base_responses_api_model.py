"""Door: what model servers are written with, and how their captured calls are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Body, Request

from nemo_gym.capture import (
    CaptureStore,
    ModelCallCaptureConfig,
    ModelCallRecord,
    aggregate_model_call_metrics,
    aggregate_model_call_records,
    await_model_call_capture_quiescence,
    build_model_call_record,
    clear_model_call_captures_for_rollouts,
    install_model_call_capture,
    make_capture_store,
    model_call_capture_dirs_from_config,
    observability_enabled_from_config,
    read_available_model_call_records,
    read_model_call_records,
    report_execution,
)
from nemo_gym.servers.event_stream import EventStream
from nemo_gym.servers.model import BaseResponsesAPIModel, BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.servers.upstream import UpstreamError

if TYPE_CHECKING:
    from nemo_gym.rollouts import merge_model_call_capture_into_record

__all__ = [
    "BaseResponsesAPIModel",
    "BaseResponsesAPIModelConfig",
    "Body",
    "CaptureStore",
    "EventStream",
    "ModelCallCaptureConfig",
    "ModelCallRecord",
    "Request",
    "SimpleResponsesAPIModel",
    "UpstreamError",
    "aggregate_model_call_metrics",
    "aggregate_model_call_records",
    "await_model_call_capture_quiescence",
    "build_model_call_record",
    "clear_model_call_captures_for_rollouts",
    "install_model_call_capture",
    "make_capture_store",
    "merge_model_call_capture_into_record",
    "model_call_capture_dirs_from_config",
    "observability_enabled_from_config",
    "read_available_model_call_records",
    "read_model_call_records",
    "report_execution",
]


def __getattr__(name: str) -> Any:
    if name == "merge_model_call_capture_into_record":
        # Collection is above the servers; a model server that never reads records must not load it.
        from nemo_gym.rollouts import merge_model_call_capture_into_record

        return merge_model_call_capture_into_record
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")

"""Door: which rollout a request belongs to."""

from __future__ import annotations

from nemo_gym.capture.correlation import (
    RolloutContextMiddleware,
    apply_rollout_prefix,
    current_invocation_id,
    current_rollout_id,
    maybe_rollout_id_from_run_body,
    rollout_context,
    rollout_path_prefix,
    url_path_for_request,
)
from nemo_gym.records.identity import ROLLOUT_ID_PATTERN

__all__ = [
    "ROLLOUT_ID_PATTERN",
    "RolloutContextMiddleware",
    "apply_rollout_prefix",
    "current_invocation_id",
    "current_rollout_id",
    "maybe_rollout_id_from_run_body",
    "rollout_context",
    "rollout_path_prefix",
    "url_path_for_request",
]

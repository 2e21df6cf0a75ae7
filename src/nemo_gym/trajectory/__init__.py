"""Join, projection and performance of a rollout's evidence. Pure: values in, values out."""

from __future__ import annotations

from nemo_gym.records.gaps import GAP_REGISTRY, GapSpec
from nemo_gym.trajectory.claude_compaction import CLAUDE_CODE, attach_summary_calls
from nemo_gym.trajectory.join import join_bundle, join_observations
from nemo_gym.trajectory.payloads import drop_captured_payloads, payloads_are_redacted
from nemo_gym.trajectory.perf import build_perf, owned_calls
from nemo_gym.trajectory.perf_detail import build_perf_detail
from nemo_gym.trajectory.project import (
    PROJECTION_ERRORS,
    Captured,
    add_gap,
    project_onto,
    project_record,
    project_trajectory,
)

__all__ = [
    "CLAUDE_CODE",
    "GAP_REGISTRY",
    "PROJECTION_ERRORS",
    "Captured",
    "GapSpec",
    "add_gap",
    "attach_summary_calls",
    "build_perf",
    "build_perf_detail",
    "drop_captured_payloads",
    "join_bundle",
    "join_observations",
    "owned_calls",
    "payloads_are_redacted",
    "project_onto",
    "project_record",
    "project_trajectory",
]

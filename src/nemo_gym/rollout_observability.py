"""Door: the observation and trajectory schemas for people who write agents.

The models live in `nemo_gym.records.observation_models`.
"""

from __future__ import annotations

from nemo_gym.records.identity import trajectory_identity_of
from nemo_gym.records.observation_models import (
    AgentInvocation,
    AgentObservationBundle,
    ContextCompactionObservation,
    ModelCallRef,
    ModelServerRef,
    ObservationGap,
    SandboxObservation,
    ToolCallObservation,
    TrajectoryModelCall,
    TrajectoryRecord,
    TrajectoryResponseMetadata,
    TrajectoryTokenStats,
    TrajectoryToolCall,
    TrajectoryTurn,
)
from nemo_gym.records.trajectory_versions import UnknownSchemaVersionError, read_trajectory

__all__ = [
    "AgentInvocation",
    "AgentObservationBundle",
    "ContextCompactionObservation",
    "ModelCallRef",
    "ModelServerRef",
    "ObservationGap",
    "SandboxObservation",
    "ToolCallObservation",
    "TrajectoryModelCall",
    "TrajectoryRecord",
    "TrajectoryResponseMetadata",
    "TrajectoryTokenStats",
    "TrajectoryToolCall",
    "TrajectoryTurn",
    "UnknownSchemaVersionError",
    "read_trajectory",
    "trajectory_identity_of",
]

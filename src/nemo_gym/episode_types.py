"""Door: identities of episodes."""

from __future__ import annotations

from nemo_gym.records.identity import is_materialized_row as is_materialized_task_row
from nemo_gym.servers.session_types import (
    BaseEpisodeRequest,
    BaseEpisodeResponse,
    EpisodeFailure,
    EpisodeId,
    MaterializedTask,
    TaskId,
)

__all__ = [
    "BaseEpisodeRequest",
    "BaseEpisodeResponse",
    "EpisodeFailure",
    "EpisodeId",
    "MaterializedTask",
    "TaskId",
    "is_materialized_task_row",
]

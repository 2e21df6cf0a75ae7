"""The public names of what a rollout can come to."""

from nemo_gym.records.failures import RolloutFailure, RolloutFailureRecord
from nemo_gym.rollouts.rollout_outcomes import InvalidRolloutResult, StaleRolloutResult

__all__ = ["InvalidRolloutResult", "RolloutFailure", "RolloutFailureRecord", "StaleRolloutResult"]

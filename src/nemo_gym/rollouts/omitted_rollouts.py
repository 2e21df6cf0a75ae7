"""Rows of tries without an outcome, by their public path."""

from nemo_gym.rollouts.execute import (
    omitted_rollout_record,
)

__all__ = [
    "omitted_rollout_record",
]

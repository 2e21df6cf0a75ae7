"""The Store, by its public path."""

from nemo_gym.store.rollout_store import (
    RolloutStore,
    raw_outcomes_are_selected,
)

__all__ = [
    "RolloutStore",
    "raw_outcomes_are_selected",
]

"""Building `ng_trajectory`, by its public path."""

from nemo_gym.trajectory import project_record

__all__ = ["project_record"]

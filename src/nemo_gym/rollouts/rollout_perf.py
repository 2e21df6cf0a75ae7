"""Building `ng_perf`, by its public path."""

from nemo_gym.trajectory import build_perf

__all__ = ["build_perf"]

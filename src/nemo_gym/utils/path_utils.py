"""The public names of the files beside a rollouts file, by their newer path."""

from nemo_gym.path_utils import aggregate_metrics_path_for, failures_path_for, materialized_path_for

__all__ = ["aggregate_metrics_path_for", "failures_path_for", "materialized_path_for"]

"""The public names of the files beside a rollouts file."""

from nemo_gym.store.run_files import aggregate_metrics_path_for, failures_path_for, materialized_path_for

__all__ = ["aggregate_metrics_path_for", "failures_path_for", "materialized_path_for"]

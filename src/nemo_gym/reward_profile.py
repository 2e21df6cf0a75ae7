"""Door to the metrics that environments compute with."""

from nemo_gym.analysis import (
    AggregateMetricsMixin,
    RewardProfileConfig,
    RewardProfiler,
    add_avg_sample_std_dev,
    compute_pass_majority_metrics,
    compute_perf_summary,
    compute_subset_metrics,
    coverage_by_agent,
    highest_k_metrics,
    select_measured,
)
from nemo_gym.servers.metrics import compute_aggregate_metrics

__all__ = [
    "AggregateMetricsMixin",
    "RewardProfileConfig",
    "RewardProfiler",
    "add_avg_sample_std_dev",
    "compute_aggregate_metrics",
    "compute_pass_majority_metrics",
    "compute_perf_summary",
    "compute_subset_metrics",
    "coverage_by_agent",
    "highest_k_metrics",
    "select_measured",
]

"""What rewards and measurements add up to: aggregates, pass@k, performance, reward profiles. Pure, without I/O."""

from nemo_gym.analysis.aggregate import compute_aggregate_metrics
from nemo_gym.analysis.mixin import AggregateMetricsMixin
from nemo_gym.analysis.passes import (
    add_avg_sample_std_dev,
    compute_pass_majority_metrics,
    compute_subset_metrics,
    highest_k_metrics,
)
from nemo_gym.analysis.perf import compute_perf_summary
from nemo_gym.analysis.profile import RewardProfile, RewardProfileConfig, RewardProfiler
from nemo_gym.analysis.rows import coverage_by_agent, select_measured

__all__ = [
    "AggregateMetricsMixin",
    "RewardProfile",
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

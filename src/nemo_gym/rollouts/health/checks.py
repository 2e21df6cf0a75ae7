"""The health checks, by their public path."""

from nemo_gym.health.checks import ROLLOUT_CHECKS
from nemo_gym.health.registry import CHECK_REGISTRY, normalize_ignored_checks

__all__ = ["CHECK_REGISTRY", "ROLLOUT_CHECKS", "normalize_ignored_checks"]

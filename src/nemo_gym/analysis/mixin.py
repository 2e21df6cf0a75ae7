"""The three hooks by which a server adds its own numbers to a run's."""

from __future__ import annotations

from typing import Any

from nemo_gym.analysis.aggregate import default_key_metrics


class AggregateMetricsMixin:
    """Override a hook to add or select metrics; all get and return plain dicts and run in the server's process."""

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Return metrics over the measured rows, given as one list per task in rollout order.

        `per_task_metrics`, a list of dicts with `_ng_task_index`, goes to the tasks it names.
        """
        return {}

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the few numbers to show first, selected from all; default: every `mean/*`."""
        return default_key_metrics(agent_metrics)

    def compute_repeat_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Return point estimates of one repeat, given as one list per task; called once per repeat."""
        return {}

"""What a server answers on `/aggregate_metrics`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from nemo_gym import analysis


class AggregateMetricsRequest(BaseModel):
    """Result rows of one agent, without bulky fields, sorted by task and rollout."""

    verify_responses: list[dict[str, Any]]


class AggregateMetrics(BaseModel):
    """Metrics of those rows; empty when there were none."""

    group_level_metrics: list[dict[str, Any]] = Field(default_factory=list)
    agent_metrics: dict[str, Any] = Field(default_factory=dict)
    key_metrics: dict[str, Any] = Field(default_factory=dict)
    perf_summary: dict[str, Any] | None = None
    repeat_level_metrics: list[dict[str, Any]] = Field(default_factory=list)


def compute_aggregate_metrics(
    verify_responses: Sequence[Mapping[str, Any]],
    compute_metrics_fn: Callable[[list[list[dict[str, Any]]]], dict[str, Any]] | None = None,
    get_key_metrics_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    compute_repeat_metrics_fn: Callable[[list[list[dict[str, Any]]]], dict[str, Any]] | None = None,
) -> AggregateMetrics:
    """Return the metrics of result rows, with the three hooks of a server applied in their fixed order."""
    computed = analysis.compute_aggregate_metrics(
        [dict(row) for row in verify_responses],
        compute_metrics_fn=compute_metrics_fn,
        get_key_metrics_fn=get_key_metrics_fn,
        compute_repeat_metrics_fn=compute_repeat_metrics_fn,
    )
    return AggregateMetrics.model_validate(computed)

"""The checks of one task over its repeats. A task has flags, not a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from nemo_gym.health import registry


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """What the checks of a task read: its repeats by verdict, and what is true of all or of any of its records.

    The records of one rollout index are one repeat, of which the verdict is unobserved when they do not share one.
    `all_calls_observed`: of every record the calls of its turns are known completely.
    """

    healthy: int
    unhealthy: int
    unobserved: int
    all_calls_observed: bool
    any_successful_call: bool


TaskCheck: TypeAlias = Callable[[TaskFacts], bool | None]


def consistently_unhealthy(task: TaskFacts) -> bool | None:
    """Return whether every repeat with a computable verdict is unhealthy; None with fewer than two of them."""
    return None if task.healthy + task.unhealthy < 2 else task.healthy == 0


def no_successful_calls(task: TaskFacts) -> bool | None:
    """Return whether no turn of any repeat names a successful call; None unless all know the calls of their turns."""
    return not task.any_successful_call if task.all_calls_observed else None


TASK_CHECKS: Mapping[str, TaskCheck] = MappingProxyType(
    {
        registry.CONSISTENTLY_UNHEALTHY: consistently_unhealthy,
        registry.NO_SUCCESSFUL_CALLS: no_successful_calls,
    }
)
"""The task checks by id, in evaluation order: True is a flag, None unobserved."""

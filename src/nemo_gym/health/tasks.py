"""The checks of one task over its repeats. A task has flags, not a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from nemo_gym.health import registry
from nemo_gym.health.types import IdentityValue, RolloutDigest, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """The records of one rollout index as one: a verdict that the copies do not share is unobserved.

    `calls_observed`: in every copy the calls of the turns are known completely; `successful_calls`: the largest number.
    """

    verdict: Verdict
    calls_observed: bool
    successful_calls: int


TaskCheck: TypeAlias = Callable[[Sequence[Repeat]], bool | None]


def repeats_of(digests: Iterable[RolloutDigest]) -> list[Repeat]:
    """Return the repeats of one task."""
    copies: dict[IdentityValue, list[RolloutDigest]] = {}
    for digest in digests:
        copies.setdefault(digest.rollout_index, []).append(digest)
    repeats = []
    for members in copies.values():
        verdicts = {digest.verdict for digest in members}
        repeats.append(
            Repeat(
                verdict=verdicts.pop() if len(verdicts) == 1 else Verdict.UNOBSERVED,
                calls_observed=all(digest.policy_calls_observed for digest in members),
                successful_calls=max(digest.successful_model_calls for digest in members),
            )
        )
    return repeats


def consistently_unhealthy(repeats: Sequence[Repeat]) -> bool | None:
    """Return whether every repeat with a computable verdict is unhealthy; None with fewer than two of them."""
    computable = [repeat.verdict for repeat in repeats if repeat.verdict is not Verdict.UNOBSERVED]
    return None if len(computable) < 2 else all(verdict is Verdict.UNHEALTHY for verdict in computable)


def no_successful_calls(repeats: Sequence[Repeat]) -> bool | None:
    """Return whether no turn of any repeat names a successful call; None unless all know the calls of their turns."""
    if not all(repeat.calls_observed for repeat in repeats):
        return None
    return not any(repeat.successful_calls for repeat in repeats)


TASK_CHECKS: Mapping[str, TaskCheck] = MappingProxyType(
    {
        registry.CONSISTENTLY_UNHEALTHY: consistently_unhealthy,
        registry.NO_SUCCESSFUL_CALLS: no_successful_calls,
    }
)
"""The task checks by id, in evaluation order: True is a flag, None unobserved."""

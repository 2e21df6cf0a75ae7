"""`ng_perf`: how much a rollout did and how well that is observed (A27, A28)."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym.records.codec import JsonObject
from nemo_gym.records.evidence import ModelCallRef, TrajectoryRecord, ValidationError, read
from nemo_gym.records.gaps import IDENTITY_DUPLICATE
from nemo_gym.records.matching import CallIdentity, CallIndex, identity_of

_TOKEN_TOTALS = {
    "prompt_tokens": "prompt_tokens",
    "cached_prompt_tokens": "cached_tokens",
    "completion_tokens": "completion_tokens",
    "reasoning_tokens": "reasoning_tokens",
}
_token_counts = operator.attrgetter(*_TOKEN_TOTALS.values())


def build_perf(
    trajectory: JsonObject | TrajectoryRecord | None,
    *,
    rollout_latency_ms: Any = None,
    owners: Mapping[int, str] | None = None,
) -> JsonObject | None:
    """Return the summary of a trajectory, or None when it is missing, invalid or without an invocation.

    `num_turns` sums, per invocation, its explicit turns, else its owned calls, else one. Token totals cover the owned
    calls that report the count; a total nobody reports is absent. `total_latency_ms` is the measured wall clock of
    the rollout, absent when it was not measured. `owners` spares working out again what `owned_calls` returned.
    """
    if not isinstance(trajectory, TrajectoryRecord):
        try:
            trajectory = read(TrajectoryRecord, trajectory)
        except ValidationError:
            return None
    if not trajectory.invocations:
        return None
    owned = owned_calls(trajectory) if owners is None else owners
    calls_of = Counter(owned.values())
    turns_of = Counter(turn.invocation_id for turn in trajectory.turns)
    names = {invocation.invocation_id for invocation in trajectory.invocations}
    num_turns = sum(turns_of[name] or calls_of[name] or 1 for name in names)
    perf: JsonObject = {
        "num_turns": num_turns,
        "num_tool_calls": len([tool for tool in trajectory.tool_calls if tool.invocation_id in names]),
        "token_observability_coverage": min(1.0, len(owned) / num_turns),
    }
    stats = [trajectory.model_calls[position].token_stats for position in owned]
    for key, counts in zip(_TOKEN_TOTALS, zip(*map(_token_counts, stats), strict=True), strict=False):
        known = [count for count in counts if count is not None] if None in counts else counts
        if known:
            perf[key] = sum(known)
    if _is_duration(rollout_latency_ms):
        perf["total_latency_ms"] = rollout_latency_ms
    return perf


def owned_calls(trajectory: TrajectoryRecord, index: CallIndex | None = None) -> dict[int, str]:
    """Return the owned calls: position in `model_calls` -> invocation id; a call has one owner, the first claimant.

    `index` is that of `model_calls`.
    """
    if index is None:
        index = CallIndex(trajectory.model_calls)
    repeated = {gap.detail for gap in trajectory.gaps if gap.code == IDENTITY_DUPLICATE}
    nameless = [identity for identity in index.identities if identity.model_call_id is None] if repeated else []
    owners: dict[int, str] = {}
    for invocation in trajectory.invocations:
        for ref in invocation.model_calls:
            matches = index.match(ref)
            if len(matches) == 1 and not (ref.model_call_id in repeated and _may_mean_one_of(ref, nameless)):
                owners.setdefault(matches[0], invocation.invocation_id)
    return owners


def _may_mean_one_of(ref: ModelCallRef, nameless: Sequence[CallIdentity]) -> bool:
    """Return whether a reference by a repeated id may as well mean a call that lost that id."""
    _, server, response_id = identity_of(ref)
    return any(
        (server is None or server == identity.model_ref)
        and (response_id is None or response_id == identity.response_id)
        for identity in nameless
    )


def _is_duration(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0

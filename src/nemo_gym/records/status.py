"""Saved progress of a run: `<stem>_batch_status.json`.

expected = succeeded + failed + in_flight + pending + omitted; `succeeded` includes masked rollouts, `failed` counts
rollouts that have no success, `failed_final` those of them that a resume would not run again.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

SCHEMA_VERSION = 1

RunState: TypeAlias = Literal["preparing", "running", "completed", "incomplete", "interrupted", "failed", "disabled"]
LIVE_STATES = frozenset({"preparing", "running"})


class Counts(msgspec.Struct, kw_only=True):
    """How many rollouts are where. `restored` of the succeeded and failed ones come from before a resume."""

    expected: int = 0
    succeeded: int = 0
    masked: int = 0
    failed: int = 0
    failed_final: int = 0
    omitted: int = 0
    in_flight: int = 0
    pending: int = 0
    restored: int = 0


class RewardTotal(msgspec.Struct, kw_only=True):
    """Sum of the rewards seen, and how many there were: rollouts without a reward and masked ones are not in it."""

    count: int = 0
    sum: float = 0.0


class AgentCounts(msgspec.Struct, kw_only=True):
    """The same for one agent."""

    expected: int = 0
    succeeded: int = 0
    masked: int = 0
    failed: int = 0
    reward_count: int = 0
    reward_sum: float = 0.0


class AggregationState(msgspec.Struct, kw_only=True):
    """Whether the metrics of the run were made; `error` is an exception type and the start of its message."""

    state: Literal["pending", "done", "skipped", "failed"] = "pending"
    error: str | None = None


class RunStatus(msgspec.Struct, kw_only=True):
    """One run's progress. Times are Unix seconds. `reason` says why it was interrupted, failed or disabled."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    output: str
    shard: str | None = None
    state: RunState = "preparing"
    started_at: float
    updated_at: float
    finished_at: float | None = None
    host: str | None = None
    pid: int | None = None
    gym_version: str | None = None
    counts: Counts = msgspec.field(default_factory=Counts)
    failures: dict[str, int] = msgspec.field(default_factory=dict)
    reward: RewardTotal = msgspec.field(default_factory=RewardTotal)
    agents: dict[str, AgentCounts] = msgspec.field(default_factory=dict)
    aggregation: AggregationState = msgspec.field(default_factory=AggregationState)
    reason: str | None = None


def encode_status(status: RunStatus) -> bytes:
    """Return the status as one line of JSON."""
    return msgspec.json.encode(status) + b"\n"


def decode_status(data: bytes) -> RunStatus:
    """Return the status in `data`; raises ValueError when it is unreadable."""
    try:
        return msgspec.json.decode(data, type=RunStatus)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a run status: {error}") from error


def mean_reward(status: RunStatus) -> float | None:
    """Return the mean reward, or None when no rollout had one."""
    return status.reward.sum / status.reward.count if status.reward.count else None

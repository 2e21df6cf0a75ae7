"""The words of the health checks: what a check is, what it found, what a record came to.

Checks give findings, never verdicts; a verdict is made from findings by one rule (`Verdict`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

import msgspec

from nemo_gym.health.meanings import CheckMeaning
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.gaps import GAP_REGISTRY, BlockedInput

IdentityValue: TypeAlias = int | str


class CheckScope(StrEnum):
    """What is evaluated at once."""

    ROLLOUT = "rollout"
    TASK = "task"
    RUN = "run"


class CheckSubject(StrEnum):
    """What a finding is about."""

    CHECK_EXECUTION = "check_execution"
    RECORD = "record"
    ROLLOUT = "rollout"
    AGENT_TURN = "agent_turn"
    MODEL_CALL = "model_call"
    TRAJECTORY_CAPTURE = "trajectory_capture"
    TASK = "task"


class CheckInput(StrEnum):
    """What a check reads; missing input makes it unobserved."""

    RECORD = "record"
    TRAJECTORY = "trajectory"
    AGENT_TURNS = "agent_turns"
    BOUND_CALLS = "bound_calls"
    OWNED_MODEL_CALLS = "owned_model_calls"
    OBSERVED_MODEL_CALLS = "observed_model_calls"
    REPEAT_VERDICTS = "repeat_verdicts"
    REPEAT_DIGESTS = "repeat_digests"


class Verdict(StrEnum):
    """Unhealthy with any finding; else unobserved with any unobserved check that is not ignored; else healthy."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNOBSERVED = "unobserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSpec:
    """One check as it is known outside: its id never changes its meaning.

    `reads` is what it is made from, and `blocked_by` what makes it unobserved when a gap says that it is missing.
    `in_verdict=False` is an id that is still accepted in ignore lists and has a row in the coverage, and no longer
    runs. `meaning` holds the sentences that people read.
    """

    id: str
    evaluation_scope: CheckScope
    subject: CheckSubject
    reads: frozenset[CheckInput]
    meaning: CheckMeaning
    blocked_by: frozenset[BlockedInput] = frozenset()
    in_verdict: bool = True

    @property
    def blocking_gaps(self) -> tuple[str, ...]:
        """The registered gap codes that make the check unobserved, in the registry's order."""
        return tuple(spec.code for spec in GAP_REGISTRY.values() if spec.blocks & self.blocked_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One defect of the evidence: `subject` says whose, `locator` where inside it, `detail` what."""

    check: str
    subject: dict[str, IdentityValue]
    locator: JsonObject | None = None
    detail: JsonObject

    def as_row(self) -> JsonObject:
        """Return the finding as it stands in `rollout_verdicts.jsonl`: without subject, without an absent locator."""
        row: JsonObject = {"check": self.check}
        if self.locator is not None:
            row["locator"] = self.locator
        row["detail"] = self.detail
        return row


class RolloutDigest(msgspec.Struct, frozen=True, kw_only=True):
    """What health keeps of one record.

    Token counts are sums of known values, None when none is known. `successful_model_calls` counts calls that turns
    name; `model_calls` and `model_call_errors` count every call of the trajectory. `policy_calls_observed` says that
    the calls of the turns are known completely. `scope` is the run that the record belongs to (a run id, a shard's
    prefix or a file), and `line` the 1-based physical line in `source_file`. `gap_codes` are distinct; of codes that
    are not registered a limited number is kept, and `other` stands for the rest.
    """

    task_index: IdentityValue
    rollout_index: IdentityValue
    stage_index: IdentityValue | None
    rollout_id: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    unobserved: tuple[str, ...]
    capture_observed: bool
    policy_calls_observed: bool
    model_calls: int
    successful_model_calls: int
    model_call_errors: int
    errors_by_status: dict[str, int]
    ended_on_error: bool
    duplicated_calls: int
    transcript_prompt_tokens: int | None
    transcript_completion_tokens: int | None
    capture_prompt_tokens: int | None
    capture_completion_tokens: int | None
    scope: str
    run_id: str | None
    source_file: str
    line: int
    gap_codes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HealthCheckResult:
    """What one check run came to, and where its reports were written.

    `run` are the counts of the whole run. `tasks` (by name, in report order) and `rollouts` (in report order) are on
    disk and read when they are asked for, so that a result of any number of records is small; both stay as they are
    when the report files are replaced.
    """

    run: JsonObject
    tasks: Mapping[str, JsonObject]
    rollouts: Sequence[RolloutDigest]
    summary_path: Path
    verdicts_path: Path

    @functools.cached_property
    def summary(self) -> JsonObject:
        """`quality_summary.json` as an object; it holds every task, and is made when it is first asked for."""
        return {"run": self.run, "tasks": dict(self.tasks.items())}

"""What a saved run still owes, and moving unusable judgements back to be judged again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject, encode_line
from nemo_gym.records.failures import (
    JUDGE_INVALID,
    count_label,
    is_attempt,
    is_terminal_failure,
    observed_elapsed,
    prior_failure,
)
from nemo_gym.records.rows import RolloutKey, rollout_key
from nemo_gym.store.atomic import staged
from nemo_gym.store.jsonl import LineAppender, read_objects
from nemo_gym.store.key_set import Inventory, RolloutKeySet
from nemo_gym.store.run_files import RunFiles

_REUSE = "reuse_cached_deliverable"
_INVALID_JUDGE = "invalid_judge_response"


@dataclass(slots=True)
class ResumePlan:
    """Which rollouts are done or must not be tried again; everything else is owed. Empty for a fresh run.

    `attempts` counts failed tries: it numbers the next one. `tries` are all that began and left a row without success,
    interrupted ones included.
    """

    done: RolloutKeySet = field(default_factory=RolloutKeySet)
    attempts: dict[RolloutKey, int] = field(default_factory=dict)
    tries: dict[RolloutKey, int] = field(default_factory=dict)
    terminal: set[RolloutKey] = field(default_factory=set)
    exhausted: set[RolloutKey] = field(default_factory=set)
    last_kind: dict[RolloutKey, str] = field(default_factory=dict)
    prior_failures: dict[RolloutKey, list[JsonObject]] = field(default_factory=dict)
    elapsed: dict[RolloutKey, float] = field(default_factory=dict)
    reusable: dict[RolloutKey, Any] = field(default_factory=dict)

    @property
    def owes_everything(self) -> bool:
        """Whether there is nothing of an earlier run: every rollout is owed, as its row is."""
        return not (self.done or self.terminal or self.exhausted or self.attempts or self.reusable)

    def is_owed(self, key: RolloutKey) -> bool:
        """Return whether the rollout is to be run now."""
        return key not in self.done and key not in self.terminal and key not in self.exhausted

    def prepared(self, row: JsonObject, key: RolloutKey) -> JsonObject:
        """Return the row as it is dispatched: with its attempt number, which the first try does not carry (C11)."""
        attempt = self.attempts.get(key, 0)
        if attempt == 0 and key not in self.reusable:
            return row
        row = dict(row)
        if attempt > 0:
            row[keys.ATTEMPT_INDEX] = attempt
        if key in self.reusable:
            row[_REUSE] = self.reusable[key]
        return row

    def executions(self) -> dict[str, int]:
        """Return how often each rollout was sent, the one that is owed now included, for those sent more than once."""
        sent = {str(key): tries + (key in self.done or self.is_owed(key)) for key, tries in sorted(self.tries.items())}
        return {key: times for key, times in sent.items() if times > 1}

    def text(self, expected: Inventory, *, max_attempts: int) -> str:
        """Return the line that says what a resume found, and how what is out of attempts can be tried again."""
        owed = sum(1 for key in expected if self.is_owed(key))
        failed, final = _outside(self.attempts, self.done), _outside(self.terminal, self.done)
        spent = sum(key not in self.done and key not in self.terminal for key in self.exhausted)
        return (
            f"resuming: {len(expected)} rollouts, {len(self.done)} done, {failed} with earlier failures "
            f"({final} final, {spent} out of attempts), {owed} to run"
        ) + (f"; {more_attempts_text(max_attempts)}" if spent else "")


def more_attempts_text(max_attempts: int) -> str:
    """Say what lets a resume try again what is out of attempts."""
    return (
        f"what is out of attempts is tried again when `{keys.MAX_ATTEMPTS_ENV}`, which is {max_attempts} here, is set "
        "to more"
    )


def plan_resume(
    done: Iterable[RolloutKey],
    sidecar: Iterable[Mapping[str, Any]],
    *,
    max_attempts: int,
    retry_terminal_timeouts: bool = False,
) -> ResumePlan:
    """Return the plan for saved successes and sidecar rows.

    A success is done for ever, whatever its reward and whatever the sidecar says. A failed try counts as an attempt;
    omitted tries and errors that ended a run do not.
    """
    plan = ResumePlan(done=RolloutKeySet(done))
    for row in sidecar:
        key = rollout_key(row)
        if key is None:
            continue
        if row.get(_REUSE) is not None:
            plan.reusable[key] = row[_REUSE]
        seconds = observed_elapsed(row)
        if seconds is not None:
            plan.elapsed[key] = seconds
        if not row.get(keys.DISPATCH_DRAINED):
            plan.tries[key] = plan.tries.get(key, 0) + 1
        if not is_attempt(row):
            continue
        attempt = plan.attempts.get(key, 0)
        plan.attempts[key] = attempt + 1
        plan.last_kind[key] = count_label(row)
        plan.prior_failures.setdefault(key, []).append(prior_failure(row, attempt))
        if is_terminal_failure(row, retry_terminal_timeouts=retry_terminal_timeouts):
            plan.terminal.add(key)
    plan.exhausted = {key for key, attempts in plan.attempts.items() if attempts >= max_attempts}
    return plan


def longest_first(rows: Iterable[JsonObject], elapsed: Mapping[RolloutKey, float]) -> list[JsonObject]:
    """Return rows whose duration is known first, longest first, then the others in order. Holds all rows at once."""

    def seconds(row: JsonObject) -> float:
        key = rollout_key(row)
        return -elapsed.get(key, 0.0) if key is not None else 0.0

    return sorted(rows, key=seconds)


def migrate_invalid_judge_main_rows(output: str | Path) -> int:
    """Move results with `invalid_judge_response` from the rollouts file to the sidecar; return how many.

    They then count as failed attempts of class `judge_invalid` and leave the score. Sidecar first, rollouts file
    second: a kill in between leaves a row in both, which the next call repairs.
    """
    files = RunFiles(output)
    moved = [row for row in read_objects(files.rollouts) if row.get(_INVALID_JUDGE)]
    if not moved:
        return 0
    already = set()
    if files.failures.exists():
        already = {_try_of(row) for row in read_objects(files.failures) if row.get(keys.FAILURE_CLASS) == JUDGE_INVALID}
    sidecar = LineAppender(files.failures)
    try:
        for row in moved:
            if _try_of(row) not in already:
                failed = {key: value for key, value in row.items() if key != keys.FAILURE_TERMINAL}
                sidecar.append(encode_line({**failed, keys.FAILURE_CLASS: JUDGE_INVALID}))
    finally:
        sidecar.close()
    mode = files.rollouts.stat().st_mode
    with staged(files.rollouts) as file:
        for row in read_objects(files.rollouts):
            if not row.get(_INVALID_JUDGE):
                file.write(encode_line(row))
    files.rollouts.chmod(mode)
    return len(moved)


def _outside(keys: Iterable[RolloutKey], done: RolloutKeySet) -> int:
    return sum(key not in done for key in keys)


def _try_of(row: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return (row.get(keys.TASK_INDEX), row.get(keys.ROLLOUT_INDEX), row.get(keys.ATTEMPT_INDEX))

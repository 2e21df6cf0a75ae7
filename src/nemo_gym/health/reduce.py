"""From the outcome of a line to a digest, and from digests and tasks to the summary's counts. Pure.

The order in which lines are evaluated leaves no trace; digests are added up in the order of the input. Records of
different runs or shards never meet: everything that compares records does so inside one `scope`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from nemo_gym.health import registry
from nemo_gym.health.evaluate import Outcome
from nemo_gym.health.gap_codes import GapCounts
from nemo_gym.health.tasks import TASK_CHECKS, TaskFacts
from nemo_gym.health.types import CheckScope, Finding, IdentityValue, RolloutDigest, Verdict
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject

_ORDER = {check: position for position, check in enumerate(registry.CHECK_REGISTRY)}
_TOKENS = {
    "prompt": "transcript_prompt_tokens",
    "completion": "transcript_completion_tokens",
    "capture_prompt": "capture_prompt_tokens",
    "capture_completion": "capture_completion_tokens",
}
"""Name in the summary -> field of a digest."""
_SHARD_PREFIX = re.compile(r"([0-9a-f]{32})-")


class Place(NamedTuple):
    """Where an outcome's line is: input number from 0, its name in reports, physical line from 1, ordinal from 0."""

    input_number: int
    source_file: str
    line: int
    ordinal: int


def digest_of(outcome: Outcome, place: Place) -> RolloutDigest:
    """Return the digest of one outcome, with the identity that it lacks filled in from its place."""
    task: IdentityValue
    if not outcome.readable:
        task = f"__unreadable_record__:input-{place.input_number}:line-{place.line}"
    else:
        task = place.ordinal if outcome.task_index is None else outcome.task_index
    rollout = 0 if outcome.rollout_index is None else outcome.rollout_index
    rollout_id = outcome.rollout_id or outcome.trajectory_rollout_id or f"{task}-{rollout}"
    findings: tuple[Finding, ...] = ()
    if outcome.findings:
        subject = _subject(task, rollout, rollout_id)
        where = None if outcome.readable else {"source_file": place.source_file, "line": place.line}
        findings = tuple(
            Finding(check=found.check, subject=subject, locator=found.locator or where, detail=found.detail)
            for found in outcome.findings
        )
    return RolloutDigest(
        task_index=task,
        rollout_index=rollout,
        stage_index=outcome.stage_index,
        rollout_id=rollout_id,
        verdict=_verdict(findings, outcome.unobserved),
        findings=findings,
        unobserved=tuple(outcome.unobserved),
        capture_observed=outcome.capture_observed,
        policy_calls_observed=outcome.policy_calls_observed,
        model_calls=outcome.model_calls,
        successful_model_calls=outcome.successful_model_calls,
        model_call_errors=sum(outcome.errors_by_status.values()),
        errors_by_status=outcome.errors_by_status,
        ended_on_error=outcome.ended_on_error,
        duplicated_calls=outcome.duplicated_calls,
        transcript_prompt_tokens=outcome.transcript_prompt_tokens,
        transcript_completion_tokens=outcome.transcript_completion_tokens,
        capture_prompt_tokens=outcome.capture_prompt_tokens,
        capture_completion_tokens=outcome.capture_completion_tokens,
        scope=_scope(outcome, place),
        run_id=outcome.run_id,
        source_file=place.source_file,
        line=place.line,
        gap_codes=outcome.gap_codes,
    )


def _subject(task: IdentityValue, rollout: IdentityValue, rollout_id: str) -> dict[str, IdentityValue]:
    return {keys.TASK_INDEX: task, keys.ROLLOUT_INDEX: rollout, "rollout_id": rollout_id}


def _verdict(findings: Sequence[object], unobserved: Sequence[str]) -> Verdict:
    if findings:
        return Verdict.UNHEALTHY
    return Verdict.UNOBSERVED if unobserved else Verdict.HEALTHY


def _scope(outcome: Outcome, place: Place) -> str:
    """Return the run a record belongs to: its run id, else the prefix of its rollout id, else its file.

    A line that is no record belongs to none: its task is named after its place.
    """
    if not outcome.readable:
        return ""
    if outcome.run_id:
        return outcome.run_id
    rollout_id = outcome.rollout_id or ""
    prefix = _SHARD_PREFIX.match(rollout_id)
    return prefix[1] if prefix else place.source_file


def as_duplicate(digest: RolloutDigest, count: int) -> RolloutDigest:
    """Return the digest of a record whose identity stands `count` times in its scope."""
    subject = _subject(digest.task_index, digest.rollout_index, digest.rollout_id)
    finding = Finding(check=registry.DUPLICATE_IDENTITY, subject=subject, detail={"duplicate_count": count})
    findings = tuple(sorted((*digest.findings, finding), key=lambda item: _ORDER[item.check]))
    return msgspec.structs.replace(digest, findings=findings, verdict=Verdict.UNHEALTHY)


class Totals:
    """What the summary says of the whole run, added up record by record and task by task.

    The order matters only to which of many unknown gap codes are counted by name: the first.
    """

    def __init__(self, ignored: Sequence[str]) -> None:
        self._ignored = ignored
        self._task_checks = {check: answer for check, answer in TASK_CHECKS.items() if check not in ignored}
        self._records = self._tasks = 0
        self._counts: Counter[str] = Counter()
        self._verdicts: Counter[Verdict] = Counter()
        self._issues: Counter[str] = Counter()
        self._unobserved: Counter[str] = Counter()
        self._errors_by_status: Counter[str] = Counter()
        self._tokens: dict[str, int | None] = dict.fromkeys(_TOKENS)
        self._gaps = GapCounts()

    def add(self, digest: RolloutDigest) -> None:
        """Count one record."""
        self._records += 1
        self._verdicts[digest.verdict] += 1
        for finding in digest.findings:
            self._issues[finding.check] += 1
        for check in digest.unobserved:
            self._unobserved[check] += 1
        self._counts["captures"] += digest.model_calls > 0
        if digest.errors_by_status:
            self._errors_by_status.update(digest.errors_by_status)
            self._counts["with_errors"] += 1
            self._counts["ended_on_error"] += digest.ended_on_error
        if digest.duplicated_calls:
            self._counts["replayed"] += digest.duplicated_calls
            self._counts["with_replayed"] += 1
        if digest.gap_codes:
            self._gaps.add(digest.gap_codes)
        for name, field in _TOKENS.items():
            if (count := getattr(digest, field)) is not None:
                self._tokens[name] = (self._tokens[name] or 0) + count

    def add_copy(self, digest: RolloutDigest) -> None:
        """Say of a record already counted that its identity stands more than once."""
        self._verdicts[digest.verdict] -= 1
        self._verdicts[Verdict.UNHEALTHY] += 1
        self._issues[registry.DUPLICATE_IDENTITY] += 1

    def add_task(self, task: TaskFacts) -> JsonObject:
        """Count one task; return what the summary says of it."""
        self._tasks += 1
        answers = {check: answer(task) for check, answer in self._task_checks.items()}
        flags = [check for check, answer in answers.items() if answer]
        self._issues.update(flags)
        self._unobserved.update(check for check, answer in answers.items() if answer is None)
        return {
            "repeats": task.healthy + task.unhealthy + task.unobserved,
            "healthy": task.healthy,
            "unhealthy": task.unhealthy,
            "unobserved": task.unobserved,
            "flags": flags,
        }

    def run(self) -> JsonObject:
        """Return the summary's `run`; token totals are None when no record knows a count."""
        counts = self._counts
        coverage: JsonObject = {}
        for check, spec in registry.CHECK_REGISTRY.items():
            subjects = self._tasks if spec.evaluation_scope is CheckScope.TASK else self._records
            if check in self._ignored or not spec.in_verdict:
                coverage[check] = {"evaluated": 0, "unobserved": 0, "ignored": subjects}
            else:
                missed = self._unobserved[check]
                coverage[check] = {"evaluated": subjects - missed, "unobserved": missed, "ignored": 0}
        return {
            "ignored_checks": sorted(self._ignored),
            "artifacts": {"records": self._records, "captures": counts["captures"], "coverage": coverage},
            "verdicts": {verdict.value: self._verdicts[verdict] for verdict in Verdict},
            "issues": {check: self._issues[check] for check in registry.CHECK_REGISTRY},
            "stats": {
                "model_call_errors": {
                    "total": self._errors_by_status.total(),
                    "by_status": dict(sorted(self._errors_by_status.items())),
                    "rollouts_affected": counts["with_errors"],
                    "ended_on_error": counts["ended_on_error"],
                },
                "duplicated_calls": {"replayed": counts["replayed"], "rollouts": counts["with_replayed"]},
                "tokens": dict(self._tokens),
            },
            "gap_counts": self._gaps.by_code(),
        }


def row_of(digest: RolloutDigest, *, several_files: bool) -> JsonObject:
    """Return a digest as its line of `rollout_verdicts.jsonl`."""
    row: JsonObject = {
        keys.TASK_INDEX: digest.task_index,
        keys.ROLLOUT_INDEX: digest.rollout_index,
        "rollout_id": digest.rollout_id,
        "verdict": digest.verdict.value,
        "findings": [finding.as_row() for finding in digest.findings],
        "unobserved": list(digest.unobserved),
    }
    if digest.stage_index is not None:
        row[keys.STAGE_INDEX] = digest.stage_index
    if several_files:
        row["source_file"] = digest.source_file
        if digest.run_id is not None:
            row[keys.RUN_ID] = digest.run_id
    return row


__all__ = ["Place", "Totals", "as_duplicate", "digest_of", "row_of"]

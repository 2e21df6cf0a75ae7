"""From the outcomes of all lines to digests, task flags and the summary. Pure; the order of evaluation leaves no trace.

Records of different runs or shards never meet: everything that compares records does so inside one `scope`.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from nemo_gym.health import registry
from nemo_gym.health.evaluate import Outcome
from nemo_gym.health.tasks import TASK_CHECKS, Repeat, repeats_of
from nemo_gym.health.types import CheckScope, Finding, IdentityValue, RolloutDigest, Verdict
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject

_ORDER = {check: position for position, check in enumerate(registry.CHECK_REGISTRY)}
_SHARD_PREFIX = re.compile(r"([0-9a-f]{32})-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
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


def flag_duplicates(digests: list[RolloutDigest], ignored: Iterable[str]) -> list[RolloutDigest]:
    """Put a finding on every copy of an identity that occurs more than once, in place; `digests` are ordered."""
    if registry.DUPLICATE_IDENTITY in ignored:
        return digests
    start = 0
    for _, copies in itertools.groupby(digests, key=_identity):
        count = sum(1 for _ in copies)
        for position in range(start, start + count if count > 1 else start):
            digests[position] = _as_duplicate(digests[position], count)
        start += count
    return digests


def _as_duplicate(digest: RolloutDigest, count: int) -> RolloutDigest:
    subject = _subject(digest.task_index, digest.rollout_index, digest.rollout_id)
    finding = Finding(check=registry.DUPLICATE_IDENTITY, subject=subject, detail={"duplicate_count": count})
    findings = tuple(sorted((*digest.findings, finding), key=lambda item: _ORDER[item.check]))
    return msgspec.structs.replace(digest, findings=findings, verdict=Verdict.UNHEALTHY)


def _identity(digest: RolloutDigest) -> tuple[object, ...]:
    return (digest.scope, _key(digest.stage_index), _key(digest.task_index), _key(digest.rollout_index))


def _key(value: IdentityValue | None) -> tuple[int, int, str]:
    """Sort key: absent, then whole numbers by value, then texts; 1 and "1" stay apart."""
    if value is None:
        return (0, 0, "")
    return (1, value, "") if isinstance(value, int) else (2, 0, value)


def ordered(digests: list[RolloutDigest]) -> list[RolloutDigest]:
    """Order the digests by task, rollout, stage, and then by where they came from, in place.

    One stable sort per part, last part first: a key of all parts would take more memory than the digests.
    """
    digests.sort(key=lambda item: item.line)
    digests.sort(key=lambda item: item.source_file)
    digests.sort(key=lambda item: item.scope)
    digests.sort(key=lambda item: _key(item.stage_index))
    digests.sort(key=lambda item: _key(item.rollout_index))
    digests.sort(key=lambda item: _key(item.task_index))
    return digests


def _tasks(digests: Sequence[RolloutDigest]) -> Iterator[tuple[str, list[Repeat]]]:
    """Yield name and repeats of each task, in report order; the name says its scope when there are several."""
    several_scopes = len({digest.scope for digest in digests if digest.scope}) > 1
    for _, members in itertools.groupby(digests, key=lambda item: _key(item.task_index)):
        scopes: dict[str, list[RolloutDigest]] = defaultdict(list)
        for digest in members:
            scopes[digest.scope].append(digest)
        for scope, own in sorted(scopes.items()):
            name = str(own[0].task_index)
            yield f"{scope}/{name}" if several_scopes and scope else name, repeats_of(own)


def summary_of(digests: Sequence[RolloutDigest], ignored: Sequence[str]) -> JsonObject:
    """Return `quality_summary.json` as an object; token totals are None when no record knows a count.

    `digests` are ordered.
    """
    issues: Counter[str] = Counter(finding.check for digest in digests for finding in digest.findings)
    unobserved: Counter[str] = Counter(check for digest in digests for check in digest.unobserved)
    checks = {check: answer for check, answer in TASK_CHECKS.items() if check not in ignored}
    tasks: JsonObject = {}
    task_count = 0
    for name, repeats in _tasks(digests):
        task_count += 1
        answers = {check: answer(repeats) for check, answer in checks.items()}
        flags = [check for check, answer in answers.items() if answer]
        issues.update(flags)
        unobserved.update(check for check, answer in answers.items() if answer is None)
        tasks[name] = {
            "repeats": len(repeats),
            **_verdict_counts(repeat.verdict for repeat in repeats),
            "flags": flags,
        }
    coverage: JsonObject = {}
    for check, spec in registry.CHECK_REGISTRY.items():
        subjects = task_count if spec.evaluation_scope is CheckScope.TASK else len(digests)
        if check in ignored or not spec.in_verdict:
            coverage[check] = {"evaluated": 0, "unobserved": 0, "ignored": subjects}
        else:
            missed = unobserved[check]
            coverage[check] = {"evaluated": subjects - missed, "unobserved": missed, "ignored": 0}
    return {
        "run": {
            "ignored_checks": sorted(ignored),
            "artifacts": {
                "records": len(digests),
                "captures": sum(digest.model_calls > 0 for digest in digests),
                "coverage": coverage,
            },
            "verdicts": _verdict_counts(digest.verdict for digest in digests),
            "issues": {check: issues[check] for check in registry.CHECK_REGISTRY},
            "stats": _stats(digests),
        },
        "tasks": tasks,
    }


def _verdict_counts(verdicts: Iterable[Verdict]) -> dict[str, int]:
    counts = Counter(verdicts)
    return {verdict.value: counts[verdict] for verdict in Verdict}


def _stats(digests: Sequence[RolloutDigest]) -> JsonObject:
    by_status: Counter[str] = Counter()
    for digest in digests:
        by_status.update(digest.errors_by_status)

    def total(count: Callable[[RolloutDigest], int | None]) -> int | None:
        known = [value for digest in digests if (value := count(digest)) is not None]
        return sum(known) if known else None

    return {
        "model_call_errors": {
            "total": by_status.total(),
            "by_status": dict(sorted(by_status.items())),
            "rollouts_affected": sum(digest.model_call_errors > 0 for digest in digests),
            "ended_on_error": sum(digest.ended_on_error for digest in digests),
        },
        "duplicated_calls": {
            "replayed": sum(digest.duplicated_calls for digest in digests),
            "rollouts": sum(digest.duplicated_calls > 0 for digest in digests),
        },
        "tokens": {
            "prompt": total(lambda digest: digest.transcript_prompt_tokens),
            "completion": total(lambda digest: digest.transcript_completion_tokens),
            "capture_prompt": total(lambda digest: digest.capture_prompt_tokens),
            "capture_completion": total(lambda digest: digest.capture_completion_tokens),
        },
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


__all__ = ["Place", "digest_of", "flag_duplicates", "ordered", "row_of", "summary_of"]

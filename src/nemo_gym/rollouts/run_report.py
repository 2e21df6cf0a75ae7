"""What is made of a finished run: metrics, coverage, health."""

from __future__ import annotations

import asyncio
import functools
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError, GymError
from nemo_gym.records.codec import JsonObject, encode_pretty
from nemo_gym.records.rows import rollout_key
from nemo_gym.records.status import AggregationState, RunStatus
from nemo_gym.rollouts.accounting import Denominators
from nemo_gym.rollouts.denominators import RealRows, stand_ins
from nemo_gym.rollouts.metrics import MetricRows, RouterMetricsSource, aggregate_groups, grouped_rows
from nemo_gym.rollouts.progress import CollectionObserver
from nemo_gym.rollouts.route import Router
from nemo_gym.rollouts.run_client import RunClient
from nemo_gym.rollouts.run_setup import PreparedRun
from nemo_gym.rollouts.settings import RolloutCollectionConfig
from nemo_gym.rollouts.tool_failures import ToolFailures
from nemo_gym.store.atomic import write_atomic
from nemo_gym.store.jsonl import read_objects
from nemo_gym.store.key_set import RolloutKeySet
from nemo_gym.store.run_files import RunFiles, find_rollouts_files


@dataclass(slots=True)
class RunReport:
    """What was made: metric entries, files, lines for the user."""

    metrics: list[JsonObject] = field(default_factory=list)
    metrics_path: Path | None = None
    imputed: int = 0
    health: str | None = None
    notes: list[str] = field(default_factory=list)
    aggregation: AggregationState = field(default_factory=AggregationState)


async def report_run(
    config: RolloutCollectionConfig,
    prepared: PreparedRun,
    router: Router,
    status: RunStatus,
    observer: CollectionObserver,
) -> RunReport:
    """Make the reports of a run; a failing report is noted and does not fail the run."""
    report = RunReport()
    files = prepared.files
    if config.disable_aggregation:
        report.aggregation = AggregationState(state="skipped")
        await asyncio.to_thread(write_coverage, files, status, report)
        return report
    tools = ToolFailures()
    groups, report.imputed = await asyncio.to_thread(_metric_rows, config, prepared, router, tools)
    if (failed_tools := tools.line()) is not None:
        report.notes.append(failed_tools)
    if groups:
        urls: dict[str, str] = {}
        for target in router.targets():
            urls[target.environment_server] = target.metrics_url
            urls.setdefault(target.label, target.metrics_url)
        try:
            async with RunClient() as client:
                report.metrics, notes = await aggregate_groups(groups, RouterMetricsSource(urls), client)
        except (ConfigError, ValueError) as error:
            report.aggregation = AggregationState(state="failed", error=f"{type(error).__name__}: {str(error)[:500]}")
            report.notes.append(f"no metrics: {error}")
        else:
            report.notes.extend(notes)
            report.metrics_path = files.aggregate_metrics
            await asyncio.to_thread(write_atomic, files.aggregate_metrics, encode_pretty(report.metrics))
            report.aggregation = AggregationState(state="done", error="; ".join(notes)[:500] or None)
    else:
        report.aggregation = AggregationState(state="skipped")
    await asyncio.to_thread(write_coverage, files, status, report)
    if not config.disable_health_check and files.rollouts.exists():
        await _check_health(files, config, report)
    return report


async def _check_health(files: RunFiles, config: RolloutCollectionConfig, report: RunReport) -> None:
    from nemo_gym.health import (  # a run without reports does not need it
        explain_failures,
        explain_gaps,
        explain_verdicts,
        format_health_report,
        run_health_checks,
    )

    check = functools.partial(
        run_health_checks,
        [files.rollouts],
        workers=config.health_check_workers,
        ignored_checks=tuple(config.health_check_ignored_checks),
    )
    try:
        result = await asyncio.to_thread(check)
        said = [*explain_failures([files.rollouts]), *explain_verdicts(result), *explain_gaps(result)]
        report.health = "\n".join([format_health_report(result), *said])
        if any(path != files.rollouts for path in find_rollouts_files(files.folder)):
            # The usual names are those of the folder's last run; with several runs each keeps its own as well.
            for made, own in zip((result.summary_path, result.verdicts_path), files.health_reports(), strict=True):
                await asyncio.to_thread(shutil.copyfile, made, own)
    except (GymError, OSError, ValueError) as error:
        report.notes.append(f"no health report: {error}")


def write_coverage(files: RunFiles, status: RunStatus, report: RunReport) -> None:
    """Write how much of what is owed the run has, and how much of it the metrics cover."""
    counts = status.counts
    parts = Denominators.of_counts(counts)
    coverage: dict[str, Any] = {
        "run_id": status.run_id,
        "expected": parts.expected,
        "scored": parts.scored,
        "failed": parts.failed,
        "omitted": parts.omitted,
        "missing": parts.missing,
        "masked": counts.masked,
        "with_reward": status.reward.count,
        "failures": {
            "total": counts.failed,
            "final": counts.failed_final,
            "non_final": counts.failed - counts.failed_final,
            "by_kind": dict(sorted(status.failures.items())),
        },
        "imputed": report.imputed,
    }
    write_atomic(files.coverage, encode_pretty(coverage))


def _metric_rows(
    config: RolloutCollectionConfig, prepared: PreparedRun, router: Router, tools: ToolFailures
) -> tuple[dict[str, MetricRows], int]:
    """Return the rows that metrics are made of, and how many of them are stand-ins with reward 0.

    The results are read here, once: `tools` counts them on their way.
    """
    files = prepared.files
    imputed: list[JsonObject] = []
    if config.count_failure_classes_as_zero or config.count_missing_rollouts_as_zero:
        imputed = imputed_rows(files, config, router)
    results = read_objects(files.rollouts) if files.rollouts.exists() else iter(())
    return grouped_rows(_chained(tools.counting(first_of_each(results)), imputed)), len(imputed)


def imputed_rows(files: RunFiles, config: RolloutCollectionConfig, router: Router) -> list[JsonObject]:
    """Return the reward-0 rows that the settings ask for, ordered by task and rollout."""
    real, done = RealRows(), RolloutKeySet()
    for record in read_objects(files.rollouts) if files.rollouts.exists() else ():
        real.add(record)
        key = rollout_key(record)
        if key is not None:
            done.add(key)
    return stand_ins(
        files,
        real,
        done,
        classes=config.count_failure_classes_as_zero,
        missing=config.count_missing_rollouts_as_zero,
        server_of=lambda row: router.target(row).environment_server,
    )


def first_of_each(records: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """Yield the first result of each rollout; results without indices all count."""
    seen = RolloutKeySet()
    for record in records:
        key = rollout_key(record)
        if key is None:
            yield record
        elif key not in seen:
            seen.add(key)
            yield record


def _chained(*parts: Iterable[JsonObject]) -> Iterator[JsonObject]:
    for part in parts:
        yield from part

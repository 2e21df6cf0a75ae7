"""Metrics over several rollouts files: shards of one run, or of many (A17).

Rows of the same run in two files are one rollout: the first counts. When two runs use the same indices, as the shards
of a training run do, the metric input gets task indices of its own for each run's tasks; files keep theirs.
"""

from __future__ import annotations

import asyncio
import functools
import glob
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nemo_gym.errors import ConfigError, GymError, HeadServerUnreachableError
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject, decode_object, encode_pretty
from nemo_gym.records.rows import agent_name_of, rollout_key
from nemo_gym.rollouts.denominators import failed_keys, failures_as_zero, missing_as_zero
from nemo_gym.rollouts.head import fetch_config_async, head_address
from nemo_gym.rollouts.metrics import MetricRows, RouterMetricsSource, aggregate_groups, grouped_rows, sortable
from nemo_gym.rollouts.route import Router
from nemo_gym.rollouts.run_client import RunClient
from nemo_gym.rollouts.settings import RolloutAggregationConfig
from nemo_gym.rollouts.topology import AGENTS, Topology
from nemo_gym.store.atomic import staged, write_atomic
from nemo_gym.store.jsonl import decode_line, read_lines, read_objects
from nemo_gym.store.rollout_store import read_manifest
from nemo_gym.store.run_files import RunFiles, rollouts_files

logger = logging.getLogger(__name__)

AGGREGATED_NAME = "aggregated.jsonl"
_SHARD = "_ng_shard"


class Place(NamedTuple):
    """Where a row that counts is: which file, and its bytes there."""

    task: Any
    rollout: Any
    file: int
    offset: int
    length: int


@dataclass(slots=True)
class AggregationSummary:
    """What was aggregated. `expected` is None when no materialized inputs are there to tell."""

    shards: list[Path]
    records: int = 0
    duplicates: int = 0
    failures: int = 0
    expected: int | None = None
    imputed: int = 0
    metrics: list[JsonObject] = field(default_factory=list)
    metrics_path: Path | None = None
    merged_path: Path | None = None
    health: str | None = None
    notes: list[str] = field(default_factory=list)


class RolloutAggregationHelper:
    """Aggregates saved rollouts."""

    async def run_from_config(
        self, config: RolloutAggregationConfig, *, own_config: Mapping[str, Any] | None = None
    ) -> Path | None:
        """Write the merged file and the metrics; return the metrics file, None when there is nothing to score."""
        return (await aggregate_files(config, own_config=own_config or {})).metrics_path


async def aggregate_files(config: RolloutAggregationConfig, *, own_config: Mapping[str, Any]) -> AggregationSummary:
    """Aggregate the rollouts files that the glob names.

    Raises ConfigError when it names none, DataError for a damaged line; a last line that is being written is skipped.
    """
    output = RunFiles(config.output_jsonl_fpath)
    shards = matching_shards(config.input_glob, output.rollouts)
    summary = AggregationSummary(shards)
    merge = _Merge(shards, summary)
    await asyncio.to_thread(merge.scan)
    output.folder.mkdir(parents=True, exist_ok=True)
    if config.merge_shards:
        await asyncio.to_thread(merge.write, output.rollouts)
        summary.merged_path = output.rollouts
    groups = await asyncio.to_thread(merge.metric_rows, config)
    if groups:
        source, note = await _metrics_source(own_config)
        if note:
            summary.notes.append(note)
        async with RunClient() as client:
            summary.metrics, notes = await aggregate_groups(groups, source, client)
        summary.notes.extend(notes)
        merge.name_shards(summary.metrics)
        summary.metrics_path = output.aggregate_metrics
        await asyncio.to_thread(write_atomic, output.aggregate_metrics, encode_pretty(summary.metrics))
    if not config.disable_health_check:
        await _check_health(config, shards, output.folder, summary)
    return summary


def matching_shards(patterns: str, output: Path) -> list[Path]:
    """Return the rollouts files that comma-separated globs name, without derived files and the output itself."""
    found: list[Path] = []
    for pattern in patterns.split(","):
        found.extend(Path(match) for match in sorted(glob.glob(pattern.strip(), recursive=True)))  # noqa: PTH207 - absolute patterns too
    own = output.absolute()
    shards = [path for path in rollouts_files(found) if path.absolute() != own and path.is_file()]
    if not shards:
        raise ConfigError(f"`{patterns}` matches no rollouts file, seen from `{Path.cwd()}`")
    return shards


def default_output(patterns: str) -> Path:
    """Return where the merged file goes when nothing says so: beside the first file that the globs name."""
    return matching_shards(patterns, Path(AGGREGATED_NAME))[0].parent / AGGREGATED_NAME


class _Merge:
    """Two passes over the shards: find what counts, then read it again where it lies. Only keys stay in memory."""

    def __init__(self, shards: list[Path], summary: AggregationSummary) -> None:
        self._shards = shards
        self._summary = summary
        self._runs = [_run_of(path) for path in shards]
        self._places: list[Place] = []
        self._clash = False
        self._dense: dict[tuple[str, Any], int] = {}
        self._shard_of_dense: dict[int, str] = {}

    def scan(self) -> None:
        """Find the rows that count, and whether two runs use the same indices."""
        seen: set[tuple[str, str, Any, Any]] = set()
        run_of_key: dict[tuple[str, Any, Any], str] = {}
        expected: int | None = None
        for number, path in enumerate(self._shards):
            for record, offset, length in self._records(path):
                server, run = _server_of(record), str(record.get(keys.RUN_ID) or self._runs[number])
                task, rollout = record.get(keys.TASK_INDEX), record.get(keys.ROLLOUT_INDEX)
                if (server, run, task, rollout) in seen and rollout_key(record) is not None:
                    self._summary.duplicates += 1
                    continue
                seen.add((server, run, task, rollout))
                if run_of_key.setdefault((server, task, rollout), run) != run:
                    self._clash = True
                self._places.append(Place(task, rollout, number, offset, length))
            files = RunFiles(path)
            if files.materialized.exists():
                expected = (expected or 0) + sum(1 for _ in read_lines(files.materialized))
            if files.failures.exists():
                self._summary.failures += sum(
                    1 for row in read_objects(files.failures) if not row.get(keys.OMITTED_ROLLOUT)
                )
        self._places.sort(key=lambda place: (sortable(place.task), sortable(place.rollout), place.file, place.offset))
        self._summary.records = len(self._places)
        self._summary.expected = expected

    def write(self, target: Path) -> None:
        """Write the rows that count, unchanged, sorted by task and rollout."""
        with staged(target) as out:
            for raw, _ in self._raw_rows():
                out.write(raw + b"\n")

    def metric_rows(self, config: RolloutAggregationConfig) -> dict[str, MetricRows]:
        """Return what the metrics are made of."""
        return grouped_rows(self._scored(config))

    def name_shards(self, entries: list[JsonObject]) -> None:
        """Put the shard's name on each task's entry, where tasks of several runs were told apart."""
        for entry in entries:
            for group in entry.get("group_level_metrics") or ():
                task = group.get(keys.TASK_INDEX) if isinstance(group, dict) else None
                shard = self._shard_of_dense.get(task) if isinstance(task, int) else None
                if shard is not None:
                    group[_SHARD] = shard

    def _scored(self, config: RolloutAggregationConfig) -> Iterator[JsonObject]:
        for raw, number in self._raw_rows():
            yield self._reindexed(decode_object(raw), number)
        if not config.count_failure_classes_as_zero and not config.count_missing_rollouts_as_zero:
            return
        for number, path in enumerate(self._shards):
            files = RunFiles(path)
            done = {key for record, _, _ in self._records(path) if (key := rollout_key(record)) is not None}
            sidecar = list(read_objects(files.failures)) if files.failures.exists() else []
            stand_ins: list[JsonObject] = []
            if config.count_failure_classes_as_zero:
                stand_ins.extend(failures_as_zero(sidecar, done, config.count_failure_classes_as_zero))
            if config.count_missing_rollouts_as_zero and files.materialized.exists():
                owed = read_objects(files.materialized)
                stand_ins.extend(missing_as_zero(owed, done | failed_keys(sidecar)))
            for row in stand_ins:
                self._summary.imputed += 1
                yield self._reindexed(row, number)

    def _reindexed(self, record: JsonObject, number: int) -> JsonObject:
        if not self._clash:
            return record
        run = str(record.get(keys.RUN_ID) or self._runs[number])
        key = (run, record.get(keys.TASK_INDEX))
        dense = self._dense.setdefault(key, len(self._dense))
        self._shard_of_dense[dense] = self._shards[number].stem
        return {**record, keys.TASK_INDEX: dense}

    def _raw_rows(self) -> Iterator[tuple[bytes, int]]:
        files = [path.open("rb") for path in self._shards]
        try:
            for place in self._places:
                files[place.file].seek(place.offset)
                yield files[place.file].read(place.length), place.file
        finally:
            for file in files:
                file.close()

    def _records(self, path: Path) -> Iterator[tuple[JsonObject, int, int]]:
        for line in read_lines(path):
            try:
                record = decode_line(line, path)
            except ValueError:
                if line.complete:
                    raise
                self._summary.notes.append(f"`{path}`: the last line is still being written, or was cut; it is skipped")
                continue
            yield record, line.offset, len(line.data)


async def _metrics_source(own_config: Mapping[str, Any]) -> tuple[RouterMetricsSource | None, str]:
    head = head_address(own_config)
    try:
        topology = Topology(await fetch_config_async(head))
    except HeadServerUnreachableError:
        return None, f"no head server at {head.url}: metrics are computed here, without the servers' own"
    router = Router(topology)
    urls: dict[str, str] = {}
    for agent in topology.of_kind(AGENTS):
        try:
            target = router.target({keys.AGENT_REF: {"name": agent.name}})
        except ConfigError:  # it cannot be reached by a row, so no saved row ran on it
            continue
        urls[target.environment_server] = urls[agent.name] = target.metrics_url
    return RouterMetricsSource(urls), ""


async def _check_health(
    config: RolloutAggregationConfig, shards: list[Path], folder: Path, summary: AggregationSummary
) -> None:
    from nemo_gym.health import format_health_report, run_health_checks  # not needed with the check disabled

    check = functools.partial(
        run_health_checks,
        shards,
        output_dir=folder,
        workers=config.health_check_workers,
        ignored_checks=tuple(config.health_check_ignored_checks),
    )
    try:
        summary.health = format_health_report(await asyncio.to_thread(check))
    except (GymError, OSError, ValueError) as error:
        summary.notes.append(f"no health report: {error}")


def _run_of(path: Path) -> str:
    manifest = read_manifest(RunFiles(path))
    return path.name if manifest is None else manifest.run_id


def _server_of(record: Mapping[str, Any]) -> str:
    return str(record.get(keys.ENVIRONMENT_SERVER) or agent_name_of(record) or "agent")

"""Metrics over several rollouts files: shards of one run, or of many (A17).

Rows of the same run in two files are one rollout: the first counts. When two runs use the same indices, as the shards
of a training run do, the metric input gets task indices of its own for each run's tasks; files keep theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import glob
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.config.names import HEAD_SERVER
from nemo_gym.errors import ConfigError, DataError, GymError, HeadServerUnreachableError, RemoteError
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject, decode_non_finite, decode_object, encode, encode_pretty
from nemo_gym.records.rows import RolloutKey, agent_name_of, rollout_key
from nemo_gym.rollouts.accounting import Denominators, Ledger
from nemo_gym.rollouts.denominators import RealRows, stand_ins
from nemo_gym.rollouts.head import TIMEOUT_S, HeadAddress, fetch_config_async, head_address
from nemo_gym.rollouts.metrics import MetricRows, RouterMetricsSource, aggregate_groups, grouped_rows
from nemo_gym.rollouts.output_check import check_name
from nemo_gym.rollouts.route import Router
from nemo_gym.rollouts.run_client import RunClient
from nemo_gym.rollouts.settings import RolloutAggregationConfig
from nemo_gym.rollouts.topology import AGENTS, Topology
from nemo_gym.store.atomic import staged, write_atomic, writing
from nemo_gym.store.jsonl import decode_line, read_lines, read_objects
from nemo_gym.store.key_set import RolloutKeySet
from nemo_gym.store.rollout_store import read_manifest
from nemo_gym.store.row_index import Place, RowIndex
from nemo_gym.store.run_files import MATERIALIZED, RunFiles, find_rollouts_files, rollouts_files

logger = logging.getLogger(__name__)

AGGREGATED_NAME = "aggregated.jsonl"
_SHARD = "_ng_shard"
_COMPUTED_HERE = "metrics are computed here, without the servers' own"
_UNNAMED_HEAD_TIMEOUT_S = 3.0
"""How long a head server that nobody named may take to answer: whatever else listens there says nothing for ever."""
_ELSEWHERE = "`--output FILE` (`output_jsonl_fpath`) names another place."


@dataclass(slots=True)
class AggregationSummary:
    """What was aggregated. Without the inventory of `without_inventory` files their missing rollouts are unknown."""

    shards: list[Path]
    records: int = 0
    duplicates: int = 0
    failed_tries: int = 0
    without_inventory: int = 0
    denominators: Denominators = Denominators(scored=0, failed=0, omitted=0, missing=0)  # noqa: RUF009 - frozen
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


async def aggregate_files(
    config: RolloutAggregationConfig, *, own_config: Mapping[str, Any], head_named: bool | None = None
) -> AggregationSummary:
    """Aggregate the rollouts files that the glob names.

    `head_named`: somebody meant the head server of `own_config`, so that one which did not run these rollouts is an
    error; otherwise metrics are then computed here. Default: whether `own_config` has one. Raises ConfigError when the
    glob names no file or the output is no place for a merged file, DataError for a damaged line; a last line that is
    being written is skipped.
    """
    check_name(config.output_jsonl_fpath)
    output = RunFiles(config.output_jsonl_fpath)
    if config.merge_shards:
        _check_replaceable(output)
    shards = matching_shards(config.input_glob, output.rollouts)
    summary = AggregationSummary(shards)
    summary.notes.extend(f"`{pattern}` matches nothing" for pattern in _unmatched(config.input_glob))
    merge = _Merge(shards, summary, _without_results(config.input_glob), config)
    await asyncio.to_thread(merge.scan)
    with writing("the merged file", output.rollouts, instead=_ELSEWHERE):
        output.folder.mkdir(parents=True, exist_ok=True)
        if config.merge_shards:
            await asyncio.to_thread(merge.write, output.rollouts)
            summary.merged_path = output.rollouts
    groups = await asyncio.to_thread(merge.metric_rows)
    if groups:
        named = HEAD_SERVER in own_config if head_named is None else head_named
        source, note = await _metrics_source(head_address(own_config), named=named)
        if note:
            summary.notes.append(note)
        async with RunClient() as client:
            summary.metrics, notes = await aggregate_groups(groups, source, client)
        summary.notes.extend(notes)
        merge.name_shards(summary.metrics)
        summary.metrics_path = output.aggregate_metrics
        with writing("the metrics", output.aggregate_metrics, instead=_ELSEWHERE):
            await asyncio.to_thread(write_atomic, output.aggregate_metrics, encode_pretty(summary.metrics))
    if not config.disable_health_check:
        await _check_health(config, shards, output.folder, summary)
    return summary


def matching_shards(patterns: str, output: Path) -> list[Path]:
    """Return the rollouts files that comma-separated globs name, without derived files and the output itself.

    A glob that names a folder means the rollouts files in it.
    """
    found: list[Path] = []
    for match in _matches(patterns):
        found.extend(find_rollouts_files(match))
    own = output.absolute()
    shards = [path for path in rollouts_files(found) if path.absolute() != own and path.is_file()]
    if not shards:
        raise ConfigError(f"`{patterns}` matches no rollouts file, seen from `{Path.cwd()}`")
    return shards


def _check_replaceable(output: RunFiles) -> None:
    """Raise ConfigError unless what lies at the output is a merged file of an earlier aggregation.

    Metrics lie beside such a file; rollouts without them may be the only copy that there is.
    """
    path = output.rollouts
    if output.is_described():
        raise ConfigError(f"`{path}` is a run of its own, which the merged file would replace. {_ELSEWHERE}")
    if not path.is_file() or path.stat().st_size == 0:
        return
    with contextlib.suppress(DataError):
        if output.aggregate_metrics.is_file() and keys.TASK_INDEX in next(read_objects(path), {}):
            return
    raise ConfigError(f"`{path}` is no earlier merged file with its metrics, and would be replaced. {_ELSEWHERE}")


def _without_results(patterns: str) -> list[RunFiles]:
    """Return the shards that were killed before their rollouts file was there: all that they owe is missing."""
    found = []
    for match in _matches(patterns):
        for path in sorted(match.glob(f"*{MATERIALIZED}.jsonl")) if match.is_dir() else [match]:
            if path.stem.endswith(MATERIALIZED):
                files = RunFiles(path.with_name(f"{path.stem.removesuffix(MATERIALIZED)}.jsonl"))
                if not files.rollouts.exists():
                    found.append(files)
    return found


def _matches(patterns: str) -> Iterator[Path]:
    for pattern in _split(patterns):
        yield from _expanded(pattern)


def _unmatched(patterns: str) -> list[str]:
    """Return the globs that name nothing at all, as a misspelled one does beside others."""
    return [pattern for pattern in _split(patterns) if not _expanded(pattern)]


def _split(patterns: str) -> list[str]:
    return [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]


def _expanded(pattern: str) -> list[Path]:
    return [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207 - absolute ones too


def default_output(patterns: str) -> Path:
    """Return where the merged file goes when nothing says so: beside the first file that the globs name."""
    return matching_shards(patterns, Path(AGGREGATED_NAME))[0].parent / AGGREGATED_NAME


class _Merge:
    """Two passes over the shards: find what counts, then read it again where it lies. Only keys stay in memory."""

    def __init__(
        self,
        shards: list[Path],
        summary: AggregationSummary,
        without_results: list[RunFiles],
        config: RolloutAggregationConfig,
    ) -> None:
        self._shards = shards
        self._config = config
        self._without_results = without_results
        self._summary = summary
        self._runs = [_run_of(path) for path in shards]
        self._places = RowIndex()
        self._done: dict[str, RolloutKeySet] = defaultdict(RolloutKeySet)
        self._of_server: dict[str, RolloutKeySet] = defaultdict(RolloutKeySet)
        self._real = RealRows()
        self._clash = False
        self._dense: dict[tuple[str, bytes], int] = {}
        self._shard_of_dense: dict[int, str] = {}
        self._not_finite: set[tuple[int, int]] = set()
        """File and offset of the rows that hold NaN or infinity, which is never written again."""

    def scan(self) -> None:
        """Find the rows that count, and whether two runs use the same indices."""
        seen: dict[tuple[str, str], RolloutKeySet] = defaultdict(RolloutKeySet)
        imputes = self._imputes
        ledger = Ledger()
        for number, path in enumerate(self._shards):
            for record, offset, length in self._records(path, number):
                server, run = _server_of(record), str(record.get(keys.RUN_ID) or self._runs[number])
                key = rollout_key(record)
                if key is not None:
                    if key in seen[server, run]:
                        self._summary.duplicates += 1
                        continue
                    seen[server, run].add(key)
                    self._done[run].add(key)
                    self._take(server, key)
                if imputes:
                    self._real.add(record)
                ledger.scored(run, record)
                place = Place(record.get(keys.TASK_INDEX), record.get(keys.ROLLOUT_INDEX), number, offset, length)
                self._places.add(place)
            ledger.read_beside(RunFiles(path), self._runs[number])
        for files in self._without_results:
            ledger.read_beside(files, _run_of(files.rollouts))
        self._summary.records = len(self._places)
        self._summary.denominators = ledger.denominators()
        self._summary.failed_tries = ledger.failed_tries
        self._summary.without_inventory = ledger.without_inventory

    def write(self, target: Path) -> None:
        """Write the rows that count, unchanged, sorted by task and rollout."""
        with staged(target) as out:
            for raw, _ in self._raw_rows():
                out.write(raw + b"\n")

    def metric_rows(self) -> dict[str, MetricRows]:
        """Return what the metrics are made of."""
        return grouped_rows(self._scored())

    def name_shards(self, entries: list[JsonObject]) -> None:
        """Put the shard's name on each task's entry, where tasks of several runs were told apart."""
        for entry in entries:
            for group in entry.get("group_level_metrics") or ():
                task = group.get(keys.TASK_INDEX) if isinstance(group, dict) else None
                shard = self._shard_of_dense.get(task) if isinstance(task, int) else None
                if shard is not None:
                    group[_SHARD] = shard

    @property
    def _imputes(self) -> bool:
        return bool(self._config.count_failure_classes_as_zero or self._config.count_missing_rollouts_as_zero)

    def _take(self, server: str, key: RolloutKey) -> None:
        """Note that a run uses these indices; when another one does, tasks get indices of their own."""
        self._clash = self._clash or key in self._of_server[server]
        self._of_server[server].add(key)

    def _scored(self) -> Iterator[JsonObject]:
        found = list(self._stand_ins()) if self._imputes else []  # before indices are given: they may clash
        self._summary.imputed = len(found)
        for raw, number in self._raw_rows():
            yield self._reindexed(decode_object(raw), self._runs[number], self._shards[number].stem)
        for row, run, stem in found:
            yield self._reindexed(row, run, stem)

    def _stand_ins(self) -> Iterator[tuple[JsonObject, str, str]]:
        """Yield the rows that count as 0 with their run and file, each rollout of a run once."""
        beside = [(RunFiles(path), run) for path, run in zip(self._shards, self._runs, strict=True)]
        beside += [(files, _run_of(files.rollouts)) for files in self._without_results]
        for files, run in beside:
            rows = stand_ins(
                files,
                self._real,
                self._done[run],
                classes=self._config.count_failure_classes_as_zero,
                missing=self._config.count_missing_rollouts_as_zero,
            )
            for row in rows:
                key = rollout_key(row)
                if key is not None:
                    self._done[run].add(key)
                    self._take(_server_of(row), key)
                yield row, run, files.stem

    def _reindexed(self, record: JsonObject, run_of_file: str, stem: str) -> JsonObject:
        if not self._clash:
            return record
        key = (str(record.get(keys.RUN_ID) or run_of_file), encode(record.get(keys.TASK_INDEX)))
        dense = self._dense.setdefault(key, len(self._dense))
        self._shard_of_dense[dense] = stem
        return {**record, keys.TASK_INDEX: dense}

    def _raw_rows(self) -> Iterator[tuple[bytes, int]]:
        files = [path.open("rb") for path in self._shards]
        try:
            for place in self._places:
                files[place.file].seek(place.offset)
                raw = files[place.file].read(place.length)
                if (place.file, place.offset) in self._not_finite:
                    raw = encode(decode_non_finite(raw))
                yield raw, place.file
        finally:
            for file in files:
                file.close()

    def _records(self, path: Path, number: int) -> Iterator[tuple[JsonObject, int, int]]:
        unreadable: DataError | None = None
        not_finite: list[int] = []
        for line in read_lines(path):
            if unreadable is not None:  # only a last line can be one that a kill cut
                raise unreadable
            try:
                record = decode_line(line, path)
            except DataError as error:
                try:
                    record = decode_non_finite(line.data)
                except ValueError:
                    unreadable = error
                    continue
                self._not_finite.add((number, line.offset))
                not_finite.append(line.number)
            yield record, line.offset, len(line.data)
        if not_finite:
            more = f" and {len(not_finite) - 1} more" if len(not_finite) > 1 else ""
            self._summary.notes.append(
                f"`{path}` line {not_finite[0]}{more}: NaN and infinity are not JSON; they are read as null"
            )
        if unreadable is not None:
            self._summary.notes.append(f"`{path}`: the last line is still being written, or was cut; it is skipped")


async def _metrics_source(head: HeadAddress, *, named: bool) -> tuple[RouterMetricsSource | None, str]:
    """Return where metrics are asked for, and what to say when that is nowhere.

    Whatever happens to listen at an address that nobody named says nothing about saved rollouts.
    """
    try:
        topology = Topology(await fetch_config_async(head, timeout_s=TIMEOUT_S if named else _UNNAMED_HEAD_TIMEOUT_S))
    except HeadServerUnreachableError:
        return None, f"no head server at {head.url}: {_COMPUTED_HERE}"
    except RemoteError as error:
        if named:
            raise
        return None, f"{error}: {_COMPUTED_HERE}"
    router = Router(topology, any_pairing=True)  # the rows have run already
    urls: dict[str, str] = {}
    for agent in topology.of_kind(AGENTS):
        try:
            target = router.target({keys.AGENT_REF: {"name": agent.name}})
        except ConfigError:  # it cannot be reached by a row, so no saved row ran on it
            continue
        urls[target.environment_server] = urls[agent.name] = target.metrics_url
    return RouterMetricsSource(urls, head=None if named else head.url), ""


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
    """Return the run that a file is of: its manifest's, else the one that its first record names, else its name."""
    manifest = read_manifest(RunFiles(path))
    if manifest is not None:
        return manifest.run_id
    named: object = None
    with contextlib.suppress(FileNotFoundError, DataError):  # what cannot be read is told where all of it is read
        named = next(read_objects(path), {}).get(keys.RUN_ID)
    return named if isinstance(named, str) and named else path.name


def _server_of(record: Mapping[str, Any]) -> str:
    return str(record.get(keys.ENVIRONMENT_SERVER) or agent_name_of(record) or "agent")

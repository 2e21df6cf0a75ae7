"""A whole evaluation run: prepare, dispatch, record, then metrics, coverage and health."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from nemo_gym.config.names import ALLOW_UNSUPPORTED_PAIRING
from nemo_gym.config.roots import component_search_roots, find_file
from nemo_gym.errors import RunFailedError
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.failures import is_attempt
from nemo_gym.records.rows import rollout_key
from nemo_gym.records.status import RunStatus
from nemo_gym.rollouts.batch_status import RunStatusTracker
from nemo_gym.rollouts.budget import DispatchBudget, DispatchLatencyTracker
from nemo_gym.rollouts.capture_owner import claim
from nemo_gym.rollouts.capture_settings import CaptureSettings, reconciled
from nemo_gym.rollouts.dispatch import Dispatch
from nemo_gym.rollouts.evidence import EvidencePolicy
from nemo_gym.rollouts.execute import RolloutExecutor
from nemo_gym.rollouts.head import fetch_config_async, head_address
from nemo_gym.rollouts.output_check import check_output
from nemo_gym.rollouts.progress import CollectionObserver, LoggingObserver
from nemo_gym.rollouts.prompts import load_prompt
from nemo_gym.rollouts.record import RunRecorder, reward_of
from nemo_gym.rollouts.recorded_run import finish_recording
from nemo_gym.rollouts.rollout_collection import get_max_rollout_attempts
from nemo_gym.rollouts.rollout_outcomes import RolloutRequestError
from nemo_gym.rollouts.route import Router
from nemo_gym.rollouts.run_client import RunClient
from nemo_gym.rollouts.run_report import RunReport, report_run
from nemo_gym.rollouts.run_setup import PreparedRun, RunSetup
from nemo_gym.rollouts.settings import RolloutCollectionConfig
from nemo_gym.rollouts.topology import AGENTS, Topology
from nemo_gym.store.jsonl import read_objects
from nemo_gym.store.key_set import RolloutKeySet
from nemo_gym.store.lock import RunLock
from nemo_gym.store.rollout_store import RolloutStore
from nemo_gym.store.run_files import RunFiles

# Without a limit of its own a run is limited by the connections to one host; this many more wait in memory.
_RESIDENT_WITHOUT_LIMIT = 2048
_RARE_COLLECTIONS = (50_000, 20, 50)
_T = TypeVar("_T")
UNSENT_BEFORE_STOP = 5
"""How many rollouts in a row that could not be sent to an agent end a run."""


@dataclass(slots=True)
class RunSummary:
    """How a run ended. `implementations`: what runs under each agent's name. `records` is empty unless results are kept
    in memory.
    """

    files: RunFiles
    status: RunStatus
    latencies: DispatchLatencyTracker
    report: RunReport
    implementations: dict[str, str] = field(default_factory=dict)
    records: list[JsonObject] = field(default_factory=list)


async def collect_run(
    config: RolloutCollectionConfig,
    *,
    own_config: Mapping[str, Any],
    observer: CollectionObserver | None = None,
    gym_version: str | None = None,
    resolve_input: Callable[[str], Path] | None = None,
    why_cancelled: Callable[[], str | None] | None = None,
) -> RunSummary:
    """Do the run that `config` describes against the running servers.

    `own_config` is the collector's merged configuration: where the head server is, and its explicit capture settings.
    Raises HeadServerUnreachableError, ConfigError or DataError before any file of an earlier run is touched;
    RunFailedError when a `/run` failed and failures are not routed, or no rollout succeeded; IncompleteEvaluationError
    under `require_complete`. Cancelling ends every rollout and saves the state `interrupted`, or `failed` when
    `why_cancelled` then returns a reason.
    """
    observer = observer or LoggingObserver()
    input_path = (resolve_input or _find_input)(config.input_jsonl_fpath)
    check_output(config.output_jsonl_fpath, input_path=input_path, resume=config.resume_from_cache)
    topology = Topology(await fetch_config_async(head_address(own_config)))
    capture = reconciled(topology.config, own_config)
    if capture.warning:
        observer.note(f"Warning: {capture.warning}")
    setup = _setup(config, topology, own_config, input_path=input_path, observer=observer, gym_version=gym_version)
    router = setup.router
    files = config.files
    new = [place for place in (files.lock, *files.lock.parents) if not place.exists()]
    with RunLock(files.lock, make_folder=True) as lock:
        await asyncio.to_thread(files.drop_staged)
        try:
            prepared = await _in_thread(setup, setup.prepare)
        except BaseException:
            _leave_nothing(new, lock)
            raise
        if prepared.manifest.kind == "eval":
            for directory in capture.capture_dirs:
                run_id = prepared.manifest.run_id
                for text in await asyncio.to_thread(claim, directory, run_id=run_id, output=files.rollouts):
                    observer.note(text)
        collection = EvalCollection(config, prepared, router, capture, observer, why_cancelled=why_cancelled)
        with rare_collections():
            await collection.collect()
        report = await report_run(config, prepared, router, collection.tracker.status, observer)
        tracker = collection.tracker
        tracker.aggregated(report.aggregation)
        tracker.save(durable=True)
        implementations = {agent.name: agent.implementation for agent in router.topology.of_kind(AGENTS)}
        summary = RunSummary(files, tracker.status, collection.latencies, report, implementations)
        if config.retain_results_in_memory:
            summary.records = await asyncio.to_thread(saved_records, files)
    try:
        check_outcome(config, tracker.status)
    except RunFailedError:
        if report.health is not None:
            observer.note(report.health)
        raise
    return summary


def _leave_nothing(new: Sequence[Path], lock: RunLock) -> None:
    """Remove the places that were made for a run of which nothing came: its lock, and folders that are empty."""
    if lock.path in new:
        lock.remove()
    for folder in new:
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Collect cyclic garbage rarely: rows and records are trees, which need none of it, and walking them costs."""
    before = gc.get_threshold()
    gc.set_threshold(*_RARE_COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def check_before_serving(
    config: RolloutCollectionConfig, *, servers: Mapping[str, Any], input_path: Path
) -> None:
    """Raise what the run would be refused for, before the servers that `servers` describes are started for it.

    Rows that are unreadable, cannot be routed or run; a saved run that another process writes, or that was made under
    another configuration. Raises as `collect_run` does, and writes nothing.
    """
    setup = _setup(
        config, Topology(servers), servers, input_path=input_path, observer=LoggingObserver(), max_attempts=1
    )
    with RunLock(config.files.lock) if config.files.lock.exists() else contextlib.nullcontext():
        await _in_thread(setup, setup.check)


def _setup(
    config: RolloutCollectionConfig,
    topology: Topology,
    own_config: Mapping[str, Any],
    *,
    input_path: Path,
    observer: CollectionObserver,
    gym_version: str | None = None,
    max_attempts: int | None = None,
) -> RunSetup:
    prompt, prompt_digest = load_prompt(config.prompt_config)
    return RunSetup(
        config,
        input_path=input_path,
        router=Router(
            topology,
            mode=config.environment_routing_mode,
            environment_server_name=config.environment_server_name,
            routes=config.environment_server_routes,
            any_pairing=bool(own_config.get(ALLOW_UNSUPPORTED_PAIRING)),
        ),
        observer=observer,
        max_attempts=get_max_rollout_attempts() if max_attempts is None else max_attempts,
        gym_version=gym_version,
        prompt=prompt,
        prompt_digest=prompt_digest,
    )


async def _in_thread(setup: RunSetup, step: Callable[[], _T]) -> _T:
    """Do a step in a thread; a cancellation ends the thread first, so that nothing is written without the lock."""
    work = asyncio.ensure_future(asyncio.to_thread(step))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        setup.stop()
        await asyncio.wait({work})
        work.exception()
        raise


def _find_input(path: str) -> Path:
    return find_file(path, component_search_roots(), what="input file")


class EvalCollection:
    """The dispatching part of a run: also what a dispatch does before, for each row, and after."""

    def __init__(
        self,
        config: RolloutCollectionConfig,
        prepared: PreparedRun,
        router: Router,
        capture: CaptureSettings,
        observer: CollectionObserver,
        *,
        why_cancelled: Callable[[], str | None] | None = None,
    ) -> None:
        self._why_cancelled = why_cancelled
        self._config = config
        self._prepared = prepared
        self._observer = observer
        self.latencies = DispatchLatencyTracker()
        files, manifest = prepared.files, prepared.manifest
        self.tracker = RunStatusTracker(
            files.status,
            run_id=manifest.run_id,
            output=files.rollouts.name,
            shard=manifest.shard,
            gym_version=manifest.gym_version,
        )
        for label, rollouts in prepared.inventory.counts().items():
            self.tracker.expect(label, rollouts)
        self.tracker.enter("preparing")
        self._restore_counts()
        self._client = RunClient(connection_retries=config.connection_retries, timeout_s=config.rollout_timeout_s)
        self._recorder = RunRecorder(
            files,
            run_id=manifest.run_id,
            tracker=self.tracker,
            done=prepared.plan.done,
            max_attempts=prepared.max_attempts,
            truncate=not prepared.resumed,
        )
        concurrency = config.num_samples_in_parallel
        self._executor = RolloutExecutor(
            client=self._client,
            router=router,
            run_id=manifest.run_id,
            evidence=EvidencePolicy(
                capture_dirs=capture.capture_dirs, attach=True, seal_captures=capture.archive, encoded_bodies=True
            ),
            route_failures=config.route_failures_to_sidecar,
            typed_failures=False,
            recorder=self._recorder,
            record_omitted=config.record_omitted_rollouts,
            # Where no more rows are resident than may run, nothing has to wait for a place.
            semaphore=(
                None if concurrency is None or self._max_resident() <= concurrency else asyncio.Semaphore(concurrency)
            ),
            budget=DispatchBudget(config.dispatch_budget_s, margin=config.drain_margin_s, latencies=self.latencies),
            latencies=self.latencies,
            prior_failures=prepared.plan.prior_failures,
            stop_after_unsent=UNSENT_BEFORE_STOP,
            rollout_retries=config.rollout_retries,
        )

    async def collect(self) -> None:
        """Run everything that is owed; raises RunFailedError when a failed `/run` ended the run."""
        owed = self._prepared.owed()
        if owed == 0:
            self._recorder.close()
            self.tracker.close()
            return
        if self._config.dispatch_budget_s is not None:
            self._observer.note(f"rollouts may start for {self._config.dispatch_budget_s:.0f} s")
        dispatch = Dispatch(self._prepared.rows(), self, max_resident=self._max_resident(), total=owed)
        try:
            await dispatch.run_out()
        except RolloutRequestError as error:
            raise RunFailedError(
                f"{error} The run was stopped; {self.tracker.status.counts.succeeded} rollouts are saved in "
                f"`{self._prepared.files.rollouts}`. `+route_failures_to_sidecar=true` makes a run go on, "
                "and `--resume` continues this one."
            ) from error

    async def open(self) -> None:
        """Open the connections."""
        await self._client.__aenter__()
        self.tracker.enter("running")

    async def background(self) -> None:
        """Sync, save and show progress."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._recorder.housekeeping())
            group.create_task(self._observer.watch(self.tracker.status))

    async def close(self, error: BaseException | None, remaining: Iterator[JsonObject]) -> None:
        """Close the connections and the recording."""
        await self._client.__aexit__(None, None, None)
        reason = self._why_cancelled() if self._why_cancelled and isinstance(error, asyncio.CancelledError) else None
        ended_by = error if reason is None else RunFailedError(reason)
        await finish_recording(self._recorder, self._executor, ended_by, remaining)

    def is_fatal(self, error: BaseException) -> bool:
        """Any error ends an evaluation run; failed rollouts are none when they are routed."""
        return True

    async def run(self, row: JsonObject) -> Any:
        """Run and record one row."""
        return await self._executor.run(row)

    def _max_resident(self) -> int:
        if self._config.max_resident_rollout_tasks is not None:
            return self._config.max_resident_rollout_tasks
        concurrency = self._config.num_samples_in_parallel
        return _RESIDENT_WITHOUT_LIMIT if concurrency is None else concurrency

    def _restore_counts(self) -> None:
        prepared, tracker = self._prepared, self.tracker
        if not prepared.resumed:
            return
        plan = prepared.plan
        if plan.done:
            counted = RolloutKeySet()
            for record in read_objects(prepared.files.rollouts):
                key = rollout_key(record)
                if key is not None and key not in counted:
                    counted.add(key)
                    masked = bool(record.get("mask_sample"))
                    label = prepared.inventory.label_of(key) or "?"
                    tracker.restore_success(label, reward=reward_of(record), masked=masked)
        for key in plan.terminal | plan.exhausted:
            owing = None if key in plan.done else prepared.inventory.label_of(key)
            if owing is not None:
                tracker.restore_failure(owing, plan.last_kind[key])


def check_outcome(config: RolloutCollectionConfig, status: RunStatus) -> None:
    """Raise when the user must not miss how the run ended."""
    counts = status.counts
    failed = counts.failed and not config.count_failure_classes_as_zero
    if not counts.succeeded and (failed or counts.omitted):
        kinds = [f"{kind} {count}" for kind, count in sorted(status.failures.items())]
        kinds += [f"{counts.omitted} omitted"] if counts.omitted else []
        raise RunFailedError(
            f"none of {counts.expected} rollouts succeeded ({', '.join(kinds)})."
            + (f" The reasons are in `{config.files.failures}`." if counts.failed else "")
            + (" `--resume` runs what was omitted." if counts.omitted else "")
        )
    config.check_completion(counts.expected, counts.succeeded)


def saved_records(files: RunFiles) -> list[JsonObject]:
    """Return one record for each rollout that has an outcome, sorted by task and rollout.

    That is its result, or its newest failure when it has none; earlier tries, and those without an outcome, are in the
    sidecar only.
    """
    with RolloutStore(files.rollouts, read_only=True) as store:
        found = {key: record for record in store.results() if (key := rollout_key(record)) is not None}
        for record in store.latest_failures().values():
            key = rollout_key(record)
            if key is not None and is_attempt(record):
                found.setdefault(key, record)
    return [found[key] for key in sorted(found)]

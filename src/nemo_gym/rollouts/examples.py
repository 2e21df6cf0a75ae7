"""What `run_examples` does with its options: check them, route the rows, and set up a plain or a recorded dispatch."""

from __future__ import annotations

import asyncio
import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.records.codec import JsonObject
from nemo_gym.records.rows import check_recordable
from nemo_gym.rollouts.budget import DispatchBudget, DispatchLatencyTracker
from nemo_gym.rollouts.dispatch import Completions, Dispatch
from nemo_gym.rollouts.evidence import EvidencePolicy
from nemo_gym.rollouts.execute import RolloutExecutor
from nemo_gym.rollouts.record import RunRecorder
from nemo_gym.rollouts.recorded_run import PlainRun, ShardRun, new_run_id
from nemo_gym.rollouts.rollout_ids import check_row_ids
from nemo_gym.rollouts.rollout_recovery import configuration_of
from nemo_gym.rollouts.route import Router
from nemo_gym.rollouts.row_places import POSITIONS
from nemo_gym.rollouts.run_client import RunClient
from nemo_gym.store.run_files import shard_files


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleOptions:
    """The options of `RolloutCollectionHelper.run_examples`, where each is described."""

    semaphore: asyncio.Semaphore | None
    route_failures: bool
    max_resident_tasks: int | None
    dispatch_budget_s: float | None
    drain_margin_s: float | None
    latency_tracker: DispatchLatencyTracker | None
    enrich_results: bool
    include_payloads: bool
    delete_captures: bool
    output_dir: str | Path | None
    shard: str | None
    record_omitted: bool
    connection_retries: int

    @property
    def recording(self) -> bool:
        """Whether rollouts are written into a shard."""
        return self.output_dir is not None

    @property
    def enriching(self) -> bool:
        """Whether results carry identity and evidence: asked for, or implied by recording."""
        return self.enrich_results or self.recording

    def check(self, rows: Sequence[Any]) -> None:
        """Raise ValueError for options that contradict each other, for what is no row, and for unrecordable rows."""
        check_are_rows(rows)
        if (self.output_dir is None) != (self.shard is None):
            raise ValueError("`record_output_dir` and `record_shard` go together: give both or neither")
        if self.output_dir is not None and self.shard is not None:
            shard_files(self.output_dir, self.shard)
        if self.record_omitted and not self.recording:
            raise ValueError("`record_omitted_rollouts` needs `record_output_dir` and `record_shard`")
        if self.max_resident_tasks is not None and self.max_resident_tasks < 1:
            raise ValueError(f"`max_resident_tasks` must be at least 1, not {self.max_resident_tasks}")
        for name in ("dispatch_budget_s", "drain_margin_s"):
            seconds = getattr(self, name)
            if seconds is not None and (not isinstance(seconds, (int, float)) or math.isnan(seconds)):
                raise ValueError(f"`{name}` must be a number of seconds, not `{seconds}`")
        if self.delete_captures and not self.include_payloads:
            raise ValueError(
                "`delete_model_call_capture` needs `include_model_call_payloads`: otherwise the bodies would be lost"
            )
        if self.delete_captures and not self.enriching:
            raise ValueError(
                "`delete_model_call_capture` needs `enrich_results` or a recording: nothing else keeps the calls"
            )
        if self.recording:
            check_recordable(rows)


def check_are_rows(rows: Sequence[Any]) -> None:
    """Raise ValueError for what is no row."""
    no_rows = [position for position, row in enumerate(rows) if not isinstance(row, Mapping)]
    if no_rows:
        raise ValueError(f"{POSITIONS.many(no_rows)} are no objects; nothing was sent")


def dispatch_examples(
    rows: Sequence[JsonObject],
    options: ExampleOptions,
    router: Router,
    *,
    capture_dirs: Sequence[Path],
    max_attempts: Callable[[], int],
    gym_version: str | None,
) -> Completions[Any]:
    """Return the dispatch of rows that have a route, not begun yet. Raises ValueError for rows without one."""
    labels = Counter(router.target(row).label for row in rows)
    client = RunClient(connection_retries=options.connection_retries)
    latencies = options.latency_tracker or DispatchLatencyTracker()
    make_executor = functools.partial(
        RolloutExecutor,
        client=client,
        router=router,
        evidence=EvidencePolicy(
            capture_dirs=capture_dirs,
            attach=options.enriching,
            include_payloads=options.include_payloads,
            keep_captured_payloads=options.include_payloads,
            delete_captures=options.delete_captures,
        ),
        route_failures=options.route_failures,
        typed_failures=options.enriching,
        record_omitted=options.record_omitted,
        semaphore=options.semaphore,
        budget=DispatchBudget(options.dispatch_budget_s, margin=options.drain_margin_s, latencies=latencies),
        latencies=latencies,
    )
    total, resident = len(rows), options.max_resident_tasks
    if options.output_dir is None or options.shard is None:
        check_row_ids(rows, prefix="", unique=options.enriching)
        plain = PlainRun(client, make_executor(run_id=new_run_id()))
        dispatch = Dispatch(rows, plain, max_resident=resident, total=total)
        return Completions(dispatch, total=total, start_on_next=resident is None)

    def executor_for(recorder: RunRecorder, run_id: str) -> RolloutExecutor:
        return make_executor(run_id=run_id, recorder=recorder)

    shard = ShardRun(
        shard_files(options.output_dir, options.shard),
        shard=options.shard,
        rows=rows,
        labels=labels,
        configuration=configuration_of(None, router.reached_instances()),
        client=client,
        executor_for=executor_for,
        max_attempts=max_attempts(),
        gym_version=gym_version,
    )
    check_row_ids(rows, prefix=shard.run_id, unique=True)
    dispatch = Dispatch(shard.dispatched_rows(), shard, max_resident=resident, total=total)
    return Completions(dispatch, total=total, start_on_next=resident is None, on_empty=shard.record_empty)

"""`RolloutCollectionHelper`: rollouts for a training framework, row preparation, and whole evaluation runs."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from nemo_gym.errors import DataError
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject, decode_object
from nemo_gym.records.failures import is_terminal_failure, observed_elapsed
from nemo_gym.records.identity import rollout_id_of, rollout_id_problem
from nemo_gym.records.rows import check_recordable
from nemo_gym.rollouts.budget import DispatchBudget, DispatchLatencyTracker
from nemo_gym.rollouts.capture_settings import reconciled
from nemo_gym.rollouts.dispatch import Completions, Dispatch
from nemo_gym.rollouts.evidence import EvidencePolicy
from nemo_gym.rollouts.execute import RolloutExecutor
from nemo_gym.rollouts.head import HeadAddress, fetch_config, head_address
from nemo_gym.rollouts.prepare import RowPreparer, expand_rows, row_text
from nemo_gym.rollouts.record import RunRecorder
from nemo_gym.rollouts.recorded_run import PlainRun, ShardRun, new_run_id, prefixed_rollout_id
from nemo_gym.rollouts.rollout_recovery import configuration_of
from nemo_gym.rollouts.route import Router
from nemo_gym.rollouts.run_client import DEFAULT_CONNECTION_RETRIES, RunClient
from nemo_gym.rollouts.settings import (
    E2ERolloutCollectionConfig,
    RolloutAggregationConfig,
    RolloutCollectionConfig,
    SharedRolloutCollectionConfig,
)
from nemo_gym.rollouts.topology import SourceResolver, Topology
from nemo_gym.store.run_files import shard_files

if TYPE_CHECKING:
    from nemo_gym.servers.server_client import ServerClient

logger = logging.getLogger(__name__)

DEFAULT_MAX_ATTEMPTS = 3


class RolloutCollectionHelper(BaseModel):
    """Dispatches rows to the agents of running servers. Stateless between calls; `RolloutCollectionHelper()`."""

    def run_examples(
        self,
        examples: list[JsonObject],
        head_server_config: Any = None,
        semaphore: asyncio.Semaphore | None = None,
        route_failures_to_sidecar: bool = False,
        environment_server_name: str | None = None,
        *,
        max_resident_tasks: int | None = None,
        dispatch_budget_s: float | None = None,
        drain_margin_s: float | None = None,
        latency_tracker: DispatchLatencyTracker | None = None,
        enrich_results: bool = False,
        include_model_call_payloads: bool = True,
        delete_model_call_capture: bool = False,
        record_output_dir: str | Path | None = None,
        record_shard: str | None = None,
        record_omitted_rollouts: bool = False,
        connection_retries: int = DEFAULT_CONNECTION_RETRIES,
    ) -> Completions[Any]:
        """Send rows to their agents; return awaitables of (row, result), one per row, in completion order (A12).

        Without options a result is what `/run` answered. `enrich_results` adds identity, `ng_model_call_capture`,
        `ng_trajectory` and `ng_perf` (A13). `record_output_dir` with `record_shard` also writes each rollout into that
        folder as a shard (A14-A16); the returned row is then the dispatched copy, whose `_ng_rollout_id` is the capture
        key. With `route_failures_to_sidecar` a failed `/run` comes back as a result: a `RolloutFailureRecord` when
        enriching or recording, the sidecar row otherwise; without it, the row's awaitable raises RolloutRequestError.

        `semaphore` is held for one `/run`. `max_resident_tasks` bounds the rows that run or wait to be taken.
        `dispatch_budget_s` are the seconds in which rows may start.

        Raises ValueError at the call, before anything is sent or written: no head server, rows that have no route or
        cannot be recorded, options that contradict each other.
        """
        recording = _check_options(
            record_output_dir, record_shard, record_omitted_rollouts, max_resident_tasks,
            enrich=enrich_results, payloads=include_model_call_payloads, delete=delete_model_call_capture,
        )  # fmt: skip
        if recording:
            check_recordable(examples)
        own = _own_config()
        topology = Topology(fetch_config(_address(head_server_config, own)))
        capture = reconciled(topology.config, own)
        if capture.warning and (enrich_results or recording):
            logger.warning("%s", capture.warning)
        if environment_server_name is not None:
            for row in examples:
                row[keys.ENVIRONMENT_SERVER] = environment_server_name
        self.resolve_task_sources(examples, topology.config, topology=topology)
        router = Router(topology, environment_server_name=environment_server_name)
        labels = Counter(router.target(row).label for row in examples)

        evidence = EvidencePolicy(
            capture_dirs=capture.capture_dirs,
            attach=enrich_results or recording,
            include_payloads=include_model_call_payloads,
            keep_captured_payloads=include_model_call_payloads,
            delete_captures=delete_model_call_capture,
        )
        client = RunClient(connection_retries=connection_retries)
        latencies = latency_tracker or DispatchLatencyTracker()
        make_executor = functools.partial(
            RolloutExecutor,
            client=client,
            router=router,
            evidence=evidence,
            route_failures=route_failures_to_sidecar,
            typed_failures=enrich_results or recording,
            record_omitted=record_omitted_rollouts,
            semaphore=semaphore,
            budget=DispatchBudget(dispatch_budget_s, margin=drain_margin_s, latencies=latencies),
            latencies=latencies,
        )
        total, start_on_next = len(examples), max_resident_tasks is None
        if not recording:
            _check_ids(examples, prefix="")
            plain = PlainRun(client, make_executor(run_id=new_run_id()))
            dispatch = Dispatch(examples, plain, max_resident=max_resident_tasks, total=total)
            return Completions(dispatch, total=total, start_on_next=start_on_next)

        assert record_output_dir is not None
        assert record_shard is not None

        def executor_for(recorder: RunRecorder, run_id: str) -> RolloutExecutor:
            return make_executor(run_id=run_id, recorder=recorder)

        shard = ShardRun(
            shard_files(record_output_dir, record_shard),
            shard=record_shard,
            rows=examples,
            labels=labels,
            configuration=configuration_of(None, router.reached_instances()),
            client=client,
            executor_for=executor_for,
            max_attempts=get_max_rollout_attempts(),
            gym_version=_version(),
        )
        _check_ids(examples, prefix=shard.run_id)
        dispatch = Dispatch(shard.dispatched_rows(), shard, max_resident=max_resident_tasks, total=total)
        return Completions(dispatch, total=total, start_on_next=start_on_next, on_empty=shard.record_empty)

    def preprocess_examples(
        self,
        examples: Sequence[JsonObject],
        *,
        agent_map: Mapping[str, str] | None = None,
        fan_out: Mapping[str, Sequence[str]] | None = None,
        num_repeats: int | Mapping[str, int] | None = 1,
        num_repeats_add_seed: bool = False,
        global_config_dict: Mapping[str, Any] | None = None,
    ) -> list[JsonObject]:
        """Return the rows of a run: routed, repeated, with indices. Input rows are not modified.

        With `global_config_dict`, rows that only carry `task_source` get their agent. Raises ValueError naming the
        positions of rows without a route.
        """
        preparer = RowPreparer(
            agent_map=agent_map,
            fan_out=fan_out,
            num_repeats=1 if num_repeats is None else num_repeats,
            add_seed=num_repeats_add_seed,
            topology=None if global_config_dict is None else Topology(_plain(global_config_dict)),
        )
        return list(expand_rows(((row, row_text(row)) for row in examples), preparer))

    @staticmethod
    def resolve_task_sources(
        examples: Sequence[JsonObject], global_config_dict: Mapping[str, Any], *, topology: Topology | None = None
    ) -> None:
        """Give each row that only carries `task_source` its `agent_ref`, in place; one ValueError for all problems."""
        resolver = SourceResolver(topology or Topology(_plain(global_config_dict)))
        for position, row in enumerate(examples):
            if not isinstance(row.get("task_id"), Mapping):
                resolver.stamp(row, position)
        resolver.check()

    async def run_from_config(self, config: RolloutCollectionConfig) -> list[JsonObject]:
        """Do a whole evaluation run and return its records, sorted by task and rollout, failures included.

        With `retain_results_in_memory=False` memory does not grow with the run, and the list is empty.
        """
        # The collector needs aggregation and health; a training framework that only dispatches does not load them.
        from nemo_gym.rollouts.collect import collect_run

        summary = await collect_run(config, own_config=_own_config())
        return summary.records

    def setup_server_client(self, head_server_config: Any = None) -> ServerClient:
        """Return a client for the running servers."""
        from nemo_gym.servers.server_client import setup_server_client  # loads the server stack

        return setup_server_client(head_server_config)


def get_max_rollout_attempts() -> int:
    """Return `NEMO_GYM_MAX_ROLLOUT_ATTEMPTS`: how many failed tries a rollout may have; 3 unless set to at least 1."""
    text = os.environ.get(keys.MAX_ATTEMPTS_ENV, "")
    if not text:
        return DEFAULT_MAX_ATTEMPTS
    try:
        attempts = int(text)
    except ValueError:
        attempts = 0
    if attempts < 1:
        logger.warning(
            "WARNING: %s=%s is no whole number of at least 1; using %d",
            keys.MAX_ATTEMPTS_ENV,
            text,
            DEFAULT_MAX_ATTEMPTS,
        )
        return DEFAULT_MAX_ATTEMPTS
    return attempts


def loads_jsonl_line(raw: str | bytes, fpath: str | Path, line_no: int) -> JsonObject:
    """Return the object on a line; raises DataError naming file and line."""
    try:
        return decode_object(raw)
    except ValueError as error:
        raise DataError(f"not a JSON object: {error}", path=fpath, line=line_no) from error


def _check_options(
    output_dir: str | Path | None,
    shard: str | None,
    omitted: bool,
    max_resident: int | None,
    *,
    enrich: bool,
    payloads: bool,
    delete: bool,
) -> bool:
    """Return whether rollouts are recorded; raise ValueError for options that contradict each other."""
    if (output_dir is None) != (shard is None):
        raise ValueError("`record_output_dir` and `record_shard` go together: give both or neither")
    recording = output_dir is not None
    if shard is not None and output_dir is not None:
        shard_files(output_dir, shard)
    if omitted and not recording:
        raise ValueError("`record_omitted_rollouts` needs `record_output_dir` and `record_shard`")
    if max_resident is not None and max_resident < 1:
        raise ValueError(f"`max_resident_tasks` must be at least 1, not {max_resident}")
    if delete and not payloads:
        raise ValueError(
            "`delete_model_call_capture` needs `include_model_call_payloads`: otherwise the bodies would be lost"
        )
    if delete and not (enrich or recording):
        raise ValueError(
            "`delete_model_call_capture` needs `enrich_results` or a recording: nothing else keeps the calls"
        )
    return recording


def _check_ids(rows: Sequence[JsonObject], *, prefix: str) -> None:
    for position, row in enumerate(rows):
        try:
            problem = rollout_id_problem(prefixed_rollout_id(row, prefix)) if prefix else None
            if problem is None:
                rollout_id_of(row)
        except (ValueError, TypeError) as error:
            problem = str(error)
        if problem is not None:
            raise ValueError(f"row {position}: {problem}")


def _own_config() -> Mapping[str, Any]:
    """Return this process's configuration where it has one already; never parses a command line."""
    from nemo_gym.config import maybe_get_global_config_dict  # loads the configuration machinery

    return _plain(maybe_get_global_config_dict() or {})


def _plain(config: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(config, dict):
        return config
    from omegaconf import DictConfig, OmegaConf

    if isinstance(config, DictConfig):
        container = OmegaConf.to_container(config, resolve=True)
        return {str(key): value for key, value in container.items()} if isinstance(container, dict) else {}
    return config


def _address(head_server_config: Any, own: Mapping[str, Any]) -> HeadAddress:
    if head_server_config is None:
        return head_address(own)
    return head_address({"head_server": {"host": head_server_config.host, "port": head_server_config.port}})


def _version() -> str | None:
    from nemo_gym import __version__

    return __version__


__all__ = [
    "DEFAULT_MAX_ATTEMPTS",
    "DispatchLatencyTracker",
    "E2ERolloutCollectionConfig",
    "RolloutAggregationConfig",
    "RolloutCollectionConfig",
    "RolloutCollectionHelper",
    "SharedRolloutCollectionConfig",
    "get_max_rollout_attempts",
    "is_terminal_failure",
    "loads_jsonl_line",
    "observed_elapsed",
]

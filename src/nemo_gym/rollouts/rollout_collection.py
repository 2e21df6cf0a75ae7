"""`RolloutCollectionHelper`: rollouts for a training framework, row preparation, and whole evaluation runs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from nemo_gym.config.names import ALLOW_UNSUPPORTED_PAIRING
from nemo_gym.errors import InputDataError
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject, decode_object
from nemo_gym.records.failures import is_terminal_failure, observed_elapsed
from nemo_gym.rollouts.budget import DispatchLatencyTracker
from nemo_gym.rollouts.capture_settings import reconciled
from nemo_gym.rollouts.collection_names import find
from nemo_gym.rollouts.dispatch import Completions
from nemo_gym.rollouts.examples import ExampleOptions, check_are_rows, dispatch_examples
from nemo_gym.rollouts.head import HeadAddress, fetch_config, head_address
from nemo_gym.rollouts.prepare import RowPreparer, expand_rows, row_text
from nemo_gym.rollouts.route import Router
from nemo_gym.rollouts.run_client import DEFAULT_CONNECTION_RETRIES
from nemo_gym.rollouts.settings import (
    E2ERolloutCollectionConfig,
    RolloutAggregationConfig,
    RolloutCollectionConfig,
    SharedRolloutCollectionConfig,
)
from nemo_gym.rollouts.topology import SourceResolver, Topology

if TYPE_CHECKING:
    from nemo_gym.servers.server_client import ServerClient

logger = logging.getLogger(__name__)

DEFAULT_MAX_ATTEMPTS = 3


class RolloutCollectionHelper(BaseModel):
    """Dispatches rows to the agents of running servers. Stateless between calls; `RolloutCollectionHelper()`."""

    def run_examples(
        self,
        examples: Iterable[JsonObject],
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
        options = ExampleOptions(
            semaphore=semaphore,
            route_failures=route_failures_to_sidecar,
            max_resident_tasks=max_resident_tasks,
            dispatch_budget_s=dispatch_budget_s,
            drain_margin_s=drain_margin_s,
            latency_tracker=latency_tracker,
            enrich_results=enrich_results,
            include_payloads=include_model_call_payloads,
            delete_captures=delete_model_call_capture,
            output_dir=record_output_dir,
            shard=record_shard,
            record_omitted=record_omitted_rollouts,
            connection_retries=connection_retries,
        )
        examples = list(examples)
        options.check(examples)
        own = _own_config()
        topology = Topology(fetch_config(_address(head_server_config, own)))
        if environment_server_name is not None:
            for row in examples:
                row[keys.ENVIRONMENT_SERVER] = environment_server_name
        self.resolve_task_sources(examples, topology.config, topology=topology)
        return dispatch_examples(
            examples,
            options,
            Router(
                topology,
                environment_server_name=environment_server_name,
                any_pairing=bool(own.get(ALLOW_UNSUPPORTED_PAIRING)),
            ),
            capture_dirs=_capture_dirs(topology.config, own, needed=options.enriching),
            max_attempts=get_max_rollout_attempts,
            gym_version=_version(),
        )

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
        check_are_rows(examples)
        preparer = RowPreparer(
            agent_map=agent_map,
            fan_out=fan_out,
            num_repeats=1 if num_repeats is None else num_repeats,
            add_seed=num_repeats_add_seed,
            topology=None if global_config_dict is None else Topology(_plain(global_config_dict)),
        )
        for row in examples:
            given = row.get(keys.TASK_INDEX)
            if isinstance(given, int) and not isinstance(given, bool):
                preparer.reserve(given)
        return list(expand_rows(((row, row_text(row), place) for place, row in enumerate(examples)), preparer))

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

        There is one for each rollout: its result, or its newest failure when it has none.

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
    """Return the object on a line; raises InputDataError naming file and line."""
    try:
        return decode_object(raw)
    except ValueError as error:
        raise InputDataError(f"not a JSON object: {error}", path=fpath, line=line_no) from error


def _capture_dirs(servers: Mapping[str, Any], own: Mapping[str, Any], *, needed: bool) -> Sequence[Path]:
    capture = reconciled(servers, own)
    if capture.warning and needed:
        logger.warning("%s", capture.warning)
    return capture.capture_dirs


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


def __getattr__(name: str) -> Any:
    # What this module offers beside its own: found when it is used, since it needs this module.
    return find(__name__, name)


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

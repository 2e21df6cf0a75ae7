"""Counting a run while it goes, and saving the counts where `gym eval status` reads them."""

from __future__ import annotations

import functools
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from nemo_gym.records.status import (
    AgentCounts,
    AggregationState,
    RunState,
    RunStatus,
    decode_status,
    encode_status,
)
from nemo_gym.store.atomic import write_atomic

logger = logging.getLogger(__name__)

SAVE_INTERVAL_S = 2.0
HEARTBEAT_S = 20.0
"""A live run saves this often although nothing changed: rollouts may take hours, and silence means that it is gone."""


class RunStatusTracker:
    """The counts of one run, saved atomically: at opening, at most every two seconds on change, and at closing.

    While nothing changes it is saved every 20 seconds, so that a reader can tell a slow run from one that is gone.

    Failing to save never fails the run: it is logged once, and one attempt is made to mark the saved status disabled.
    """

    def __init__(
        self,
        path: Path,
        *,
        run_id: str,
        output: str,
        shard: str | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        gym_version: str | None = None,
    ) -> None:
        self._path = path
        self._clock = clock
        self._monotonic = monotonic
        now = clock()
        self.status = RunStatus(
            run_id=run_id,
            output=output,
            shard=shard,
            started_at=now,
            updated_at=now,
            host=_host_name(),
            pid=os.getpid(),
            gym_version=gym_version,
        )
        self._dirty = True
        self._saved_at = float("-inf")
        self._disabled = False

    def expect(self, label: str, rollouts: int = 1) -> None:
        """Count rollouts that the run owes."""
        self._agent(label).expected += rollouts
        self.status.counts.expected += rollouts
        self.status.counts.pending += rollouts
        self._dirty = True

    def found(self, rollouts: int) -> None:
        """Say how many rollouts the run owes as far as its rows are read."""
        self.status.counts.expected = self.status.counts.pending = rollouts
        self._dirty = True

    def restore_success(self, label: str, *, reward: float | None, masked: bool) -> None:
        """Count a success that an earlier run saved."""
        self.status.counts.pending -= 1
        self.status.counts.restored += 1
        self._count_success(label, reward, masked)

    def restore_failure(self, label: str, kind: str) -> None:
        """Count an earlier failure that will not be tried again."""
        counts = self.status.counts
        counts.pending -= 1
        counts.restored += 1
        counts.failed += 1
        counts.failed_final += 1
        self._count_failure(label, kind)

    def started(self) -> None:
        """A rollout is on its way."""
        self.status.counts.pending -= 1
        self.status.counts.in_flight += 1
        self._dirty = True

    def succeeded(self, label: str, *, reward: float | None, masked: bool) -> None:
        """A rollout that was on its way has a result."""
        self.status.counts.in_flight -= 1
        self._count_success(label, reward, masked)

    def failed(self, label: str, kind: str, *, final: bool) -> None:
        """A rollout that was on its way has none."""
        counts = self.status.counts
        counts.in_flight -= 1
        counts.failed += 1
        counts.failed_final += final
        self._count_failure(label, kind)

    def omitted(self, *, was_started: bool) -> None:
        """A try left no outcome: it was interrupted, or never started."""
        counts = self.status.counts
        if was_started:
            counts.in_flight -= 1
        else:
            counts.pending -= 1
        counts.omitted += 1
        self._dirty = True

    def put_back(self) -> None:
        """A rollout that was on its way was cut off: it is still to be run."""
        self.status.counts.in_flight -= 1
        self.status.counts.pending += 1
        self._dirty = True

    def aggregated(self, state: AggregationState) -> None:
        """Say what became of the metrics."""
        self.status.aggregation = state
        self._dirty = True

    def enter(self, state: RunState) -> None:
        """Move to a state and save."""
        self.status.state = state
        self.save()

    def close(self, state: RunState | None = None, *, reason: str | None = None) -> None:
        """End the run and save: by default `completed` when every rollout has a success, else `incomplete`."""
        if state is None:
            state = "completed" if self.status.counts.succeeded >= self.status.counts.expected else "incomplete"
        self.status.state = state
        self.status.reason = reason
        self.status.finished_at = self._clock()
        self.save(durable=True)

    def save_if_due(self) -> None:
        """Save when the last save is old enough: two seconds when something changed, else twenty."""
        if self._monotonic() - self._saved_at >= (SAVE_INTERVAL_S if self._dirty else HEARTBEAT_S):
            self.save()

    def save(self, *, durable: bool = False) -> None:
        """Save; an error is logged once and disables saving."""
        if self._disabled:
            return
        self.status.updated_at = self._clock()
        try:
            write_atomic(self._path, encode_status(self.status), durable=durable)
        except OSError as error:
            self._disabled = True
            logger.warning("progress cannot be saved to `%s` (%s); the run goes on", self._path, error)
            disable_run_status(self._path, f"progress could not be saved: {error}")
            return
        self._saved_at = self._monotonic()
        self._dirty = False

    def _agent(self, label: str) -> AgentCounts:
        counts = self.status.agents.get(label)
        if counts is None:
            counts = self.status.agents[label] = AgentCounts()
        return counts

    def _count_success(self, label: str, reward: float | None, masked: bool) -> None:
        counts, agent = self.status.counts, self._agent(label)
        counts.succeeded += 1
        agent.succeeded += 1
        if masked:
            counts.masked += 1
            agent.masked += 1
        elif reward is not None:
            self.status.reward.count += 1
            self.status.reward.sum += reward
            agent.reward_count += 1
            agent.reward_sum += reward
        self._dirty = True

    def _count_failure(self, label: str, kind: str) -> None:
        self._agent(label).failed += 1
        self.status.failures[kind] = self.status.failures.get(kind, 0) + 1
        self._dirty = True


def disable_run_status(path: str | Path, reason: str) -> bool:
    """Try once to replace a status that cannot be trusted by a `disabled` one; return whether it worked."""
    path = Path(path)
    now = time.time()
    try:
        saved = decode_status(path.read_bytes())
    except (OSError, ValueError):
        saved = RunStatus(run_id="unknown", output=path.name, started_at=now, updated_at=now)
    saved.state, saved.updated_at, saved.reason = "disabled", now, reason
    try:
        write_atomic(path, encode_status(saved))
    except OSError:
        return False
    return True


@functools.cache
def _host_name() -> str | None:
    return socket.gethostname() or None

"""Metrics over saved results: asked of each agent's `/aggregate_metrics`, computed here when it has none."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Protocol

from nemo_gym.errors import ConfigError
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject, decode, encode
from nemo_gym.records.rows import UNNAMED_SAMPLE, agent_name_of
from nemo_gym.rollouts.run_client import FailedRunError, RunClient
from nemo_gym.store.row_index import Place, RowIndex

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 3600.0
_PIECE = 1 << 18
_BULKY = frozenset({keys.RESPONSES_CREATE_PARAMS, *keys.EVIDENCE_KEYS, keys.ROLLOUT_FAILURE, keys.PRIOR_FAILURES})
_KEPT_OF_RESPONSE = ("usage", "incomplete_details")
_FIELDS = ("agent_metrics", "key_metrics", "group_level_metrics", "repeat_level_metrics")


class MetricsSource(Protocol):
    """Where the rows of one server are sent, if anywhere."""

    def metrics_url(self, server: str, agent: str | None) -> str | None:
        """Return the URL, None when metrics are computed here; raises ConfigError for a server that must be known."""

    def why_here(self, server: str) -> str:
        """Return the note about a server without a URL, "" when there is nothing to say."""


class MetricRows:
    """The rows of one server, without their bulky fields, in a temporary file: a million of them cost little memory."""

    def __init__(self, server: str, agent: str | None = None) -> None:
        self.server = server
        self.agent = agent
        self.agents: set[str] = set()
        self._spool = tempfile.TemporaryFile(prefix="gym-metrics-")  # noqa: SIM115 - closed with this object
        self._places = RowIndex()
        self._size = 0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, task: Any, rollout: Any, row: bytes) -> None:
        """Take one encoded row in."""
        self._spool.write(row)
        self._places.add(Place(task, rollout, 0, self._size, len(row)))
        self._size += len(row)

    def rows(self) -> Iterator[bytes]:
        """Yield the encoded rows, sorted by task and rollout."""
        self._spool.flush()
        for place in self._places:
            yield os.pread(self._spool.fileno(), place.length, place.offset)

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the request piece by piece."""
        piece = bytearray(b'{"verify_responses":[')
        for number, row in enumerate(self.rows()):
            if number:
                piece += b","
            piece += row
            if len(piece) >= _PIECE:
                yield bytes(piece)
                piece.clear()
        yield bytes(piece + b"]}")


def slim_row(record: Mapping[str, Any]) -> JsonObject:
    """Return a result without its bulky fields; of the response only usage and incompleteness stay."""
    slim = {name: value for name, value in record.items() if name not in _BULKY}
    response = record.get(keys.RESPONSE)
    if isinstance(response, Mapping):
        slim[keys.RESPONSE] = {name: response[name] for name in _KEPT_OF_RESPONSE if name in response}
    return slim


def grouped_rows(records: Iterable[Mapping[str, Any]]) -> dict[str, MetricRows]:
    """Return the rows of each server that results ran on, by the server's name."""
    groups: dict[str, MetricRows] = {}
    for record in records:
        agent = agent_name_of(record)
        server = str(record.get(keys.ENVIRONMENT_SERVER) or agent or "agent")
        group = groups.setdefault(server, MetricRows(server, agent))
        if agent is not None:
            group.agents.add(agent)
        group.add(record.get(keys.TASK_INDEX), record.get(keys.ROLLOUT_INDEX), encode(slim_row(record)))
    return groups


async def aggregate_groups(
    groups: Mapping[str, MetricRows], source: MetricsSource | None, client: RunClient | None
) -> tuple[list[JsonObject], list[str]]:
    """Return one metrics entry for each server, ordered by label, and notes about those that were computed here."""
    notes: list[str] = []
    named: dict[str, int] = {}
    for group in groups.values():
        for agent in group.agents:
            named[agent] = named.get(agent, 0) + 1
    entries: list[tuple[str, JsonObject]] = []
    for group in groups.values():
        answer = await _metrics_of(group, source, client, notes)
        only = next(iter(group.agents)) if len(group.agents) == 1 else None
        label = only if only is not None and named[only] == 1 else group.server
        entry: JsonObject = {keys.AGENT_REF: {"name": label}, keys.ENVIRONMENT_SERVER: group.server}
        entry.update({name: answer.get(name) or ([] if name.endswith("level_metrics") else {}) for name in _FIELDS})
        entry["group_level_metrics"] = [_with_agent(group, label) for group in entry["group_level_metrics"]]
        if answer.get("perf_summary") is not None:
            entry["perf_summary"] = answer["perf_summary"]
        entries.append((label, entry))
    return [entry for _, entry in sorted(entries, key=lambda item: item[0])], notes


def _with_agent(group: Any, label: str) -> Any:
    """Return a task's entry whose sample names the agent: whoever computes metrics of bare rows has no name for it."""
    if not isinstance(group, dict) or group.get("sample") != UNNAMED_SAMPLE:
        return group
    return {**group, "sample": {keys.AGENT_REF: {"name": label}}}


async def _metrics_of(
    group: MetricRows, source: MetricsSource | None, client: RunClient | None, notes: list[str]
) -> JsonObject:
    url = None if source is None or client is None else source.metrics_url(group.server, group.agent)
    if url is None and source is not None and (note := source.why_here(group.server)):
        notes.append(note)
    if url is not None and client is not None:
        try:
            answer = await client.post_json(url, group.body(), timeout_s=REQUEST_TIMEOUT_S)
        except FailedRunError as error:
            notes.append(f"metrics of `{group.server}` are computed here, without the server's own: {error}")
        else:
            if isinstance(answer, dict):
                return answer
            notes.append(f"`{url}` answered no object; metrics of `{group.server}` are computed here")
    return await asyncio.to_thread(local_metrics, [decode(row) for row in group.rows()])


def local_metrics(rows: list[JsonObject]) -> JsonObject:
    """Return the metrics that every server has: means and spreads of each numeric field, per task and overall."""
    from nemo_gym.analysis import compute_aggregate_metrics  # only needed when no server answers

    return dict(compute_aggregate_metrics(rows))


class RouterMetricsSource:
    """The metrics URLs of the servers that a run's rows were routed to.

    `head`: the address of a head server that nobody named; what its configuration lacks is no error.
    """

    def __init__(self, urls: Mapping[str, str], *, head: str | None = None) -> None:
        self._urls = dict(urls)
        self._head = head

    def metrics_url(self, server: str, agent: str | None) -> str | None:
        """Return the URL of the server, else of the agent; with neither None, or ConfigError when it must be there."""
        url = self._urls.get(server) or self._urls.get(agent or "")
        if url is None and self._head is None:
            raise ConfigError(
                f"saved results ran on `{server}`, which the running configuration lacks. It has {self._known()}."
            )
        return url

    def why_here(self, server: str) -> str:
        """Return that what runs is another environment."""
        return (
            f"metrics of `{server}` are computed here, without the server's own: what runs at {self._head} lacks it "
            f"(it has {self._known()})"
        )

    def _known(self) -> str:
        return ", ".join(f"`{name}`" for name in sorted(self._urls)) or "no agent"

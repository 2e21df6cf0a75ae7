"""The servers of a run, as the head server's configuration describes them; how a dataset's source becomes an agent.

Pure: a mapping in, instances and answers out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nemo_gym.errors import ConfigError, nearest_name
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.rows import agent_name_of
from nemo_gym.rollouts.row_places import POSITIONS, RowPlaces

AGENTS = "responses_api_agents"
RESOURCES = "resources_servers"
ENVIRONMENTS = "environment_servers"
RELAY = "legacy_agent"
"""The environment server that only hands rows on to one agent; no process runs for it."""

_WILDCARD_HOSTS = frozenset({"0.0.0.0", "::", ""})


@dataclass(frozen=True, slots=True)
class Instance:
    """One server of the configuration. `settings` is its implementation block."""

    name: str
    kind: str
    implementation: str
    settings: Mapping[str, Any]

    @property
    def base_url(self) -> str | None:
        """`http://host:port`, or None when the configuration names no port."""
        host, port = self.settings.get("host"), self.settings.get("port")
        if port is None:
            return None
        reachable = "127.0.0.1" if host is None or host in _WILDCARD_HOSTS else str(host)
        return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"

    def references(self, kind: str | None = None) -> Iterator[str]:
        """Yield the names of the instances that this one's settings refer to, of one kind or of all."""
        yield from _references(self.settings, kind)


class Topology:
    """Every server instance of one merged configuration."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.instances: dict[str, Instance] = {
            instance.name: instance
            for name, block in config.items()
            if (instance := _instance(name, block)) is not None
        }
        self._source_answers: dict[str, tuple[str | None, str]] = {}

    def of_kind(self, kind: str) -> list[Instance]:
        """Return the instances of a kind, in configuration order."""
        return [instance for instance in self.instances.values() if instance.kind == kind]

    def agent(self, name: str) -> Instance:
        """Return the agent of that name; an unknown one raises ConfigError with the nearest name."""
        instance = self.instances.get(name)
        if instance is not None and instance.kind == AGENTS:
            return instance
        agents = [agent.name for agent in self.of_kind(AGENTS)]
        if instance is not None:
            raise ConfigError(f"`{name}` is one of the {instance.kind}, not an agent. Agents: {_listed(agents)}.")
        raise ConfigError(
            f"no agent `{name}` in the running configuration.{nearest_name(name, agents)} Agents: {_listed(agents)}."
        )

    def agent_of_source(self, task_source: str) -> tuple[str | None, str]:
        """Return (agent name, "") for a row that only names its dataset's instance, or (None, what is wrong)."""
        answer = self._source_answers.get(task_source)
        if answer is None:
            answer = self._source_answers[task_source] = self._resolve_source(task_source)
        return answer

    def _resolve_source(self, source: str) -> tuple[str | None, str]:
        instance = self.instances.get(source)
        if instance is None:
            if source in self.config:
                return None, f"`task_source={source}` is no server instance"
            return (
                None,
                f"`task_source={source}` is no instance of the configuration.{nearest_name(source, self.instances)}",
            )
        if instance.kind == AGENTS:
            return source, ""
        datasets = instance.settings.get("datasets")
        pins = {
            dataset["agent"]
            for dataset in (datasets if isinstance(datasets, list) else [])
            if isinstance(dataset, Mapping) and isinstance(dataset.get("agent"), str)
        }
        if len(pins) > 1:
            return None, f"the datasets of `{source}` pin different agents: {_listed(sorted(pins))}"
        if pins:
            pin = pins.pop()
            found = self.instances.get(pin)
            if found is None or found.kind != AGENTS:
                return None, f"the datasets of `{source}` pin agent `{pin}`, which is not in the configuration"
            return pin, ""
        if instance.kind == ENVIRONMENTS:
            users = sorted(set(instance.references(AGENTS)))
        elif instance.kind == RESOURCES:
            users = [agent.name for agent in self.of_kind(AGENTS) if source in agent.references(RESOURCES)]
        else:
            return None, f"`task_source={source}` is one of the {instance.kind}, rows cannot be sent there"
        if len(users) == 1:
            return users[0], ""
        if users:
            return (
                None,
                f"several agents use `{source}`: {_listed(users)}; give the rows an `agent_ref`, or pass `--agent`",
            )
        return None, f"no agent uses `{source}`"

    def reached_from(self, names: Iterable[str]) -> list[Instance]:
        """Return the instances that these ones are, or refer to, directly or through others; in order of names."""
        seen: dict[str, Instance] = {}
        stack = list(names)
        while stack:
            name = stack.pop()
            instance = self.instances.get(name)
            if instance is not None and name not in seen:
                seen[name] = instance
                stack.extend(instance.references())
        return [seen[name] for name in sorted(seen)]


class SourceResolver:
    """Stamps `agent_ref` on rows that only carry `task_source`; collects every problem into one error."""

    def __init__(self, topology: Topology, places: RowPlaces = POSITIONS) -> None:
        self._topology = topology
        self._places = places
        self._problems: dict[str, list[int]] = {}
        self._unrouted: list[int] = []

    def stamp(self, row: JsonObject, position: int) -> None:
        """Give the row its agent, in place; a row that cannot be resolved is remembered for `check`."""
        if agent_name_of(row) is not None:
            return
        source = row.get(keys.TASK_SOURCE)
        if not isinstance(source, str) or not source:
            self._unrouted.append(position)
            return
        agent, problem = self._topology.agent_of_source(source)
        if agent is None:
            self._problems.setdefault(problem, []).append(position)
        else:
            row[keys.AGENT_REF] = {"name": agent}

    def check(self) -> None:
        """Raise one ConfigError (a ValueError) naming the positions of all rows without a route."""
        parts = [f"{problem} ({self._places.many(rows)})" for problem, rows in self._problems.items()]
        if self._unrouted:
            parts.append(
                f"{self._places.many(self._unrouted)} have neither `agent_ref` nor `task_source`; "
                "add one to them, or pass `--agent`"
            )
        if parts:
            raise ConfigError("rows cannot be routed: " + "; ".join(parts))


def _instance(name: object, block: object) -> Instance | None:
    if not isinstance(name, str) or not isinstance(block, Mapping):
        return None
    for kind in keys.SERVER_KINDS:
        implementations = block.get(kind)
        if isinstance(implementations, Mapping) and len(implementations) == 1:
            implementation, settings = next(iter(implementations.items()))
            if isinstance(settings, Mapping):
                return Instance(name, kind, str(implementation), settings)
    return None


def _references(value: object, kind: str | None) -> Iterator[str]:
    if isinstance(value, Mapping):
        reference_kind, name = value.get("type"), value.get("name")
        if isinstance(name, str) and reference_kind in keys.SERVER_KINDS:
            if kind is None or reference_kind == kind:
                yield name
            return
        for item in value.values():
            yield from _references(item, kind)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _references(item, kind)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"

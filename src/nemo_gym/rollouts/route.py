"""Where a row is sent: straight to its agent's `/run`, or to an environment server that is one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_gym.config.pairing import ALLOWED_AGENTS, any_pairing_goes, pairing_problem
from nemo_gym.errors import ConfigError, UnsupportedAgentPairingError, nearest_name
from nemo_gym.records import keys
from nemo_gym.records.identity import is_materialized_row
from nemo_gym.records.rows import agent_name_of, taskset_of
from nemo_gym.rollouts.topology import AGENTS, ENVIRONMENTS, RELAY, Instance, Topology


class AgentWithoutEnvironmentServerError(ConfigError):
    """`error_on_agent_without_environment_server` is set and no environment server names the agent."""


class AmbiguousEnvironmentServerError(ConfigError):
    """Several environment servers name the agent, so the row alone does not say where it goes."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a row runs.

    `url` takes the `POST /run`; `label` names the target in progress and metrics; `environment_server` and
    `result_type` are stamped on the result; `agent` is the agent that works, where the configuration tells.
    """

    url: str
    label: str
    environment_server: str
    result_type: str
    agent: str | None
    metrics_url: str


class Router:
    """Answers where a row goes; each distinct route is worked out once.

    `any_pairing` sends rows to agents that their resources server is not declared for (`allowed_agents`).
    """

    def __init__(
        self,
        topology: Topology,
        *,
        mode: str = "agent",
        environment_server_name: str | None = None,
        routes: Mapping[str, str] | None = None,
        any_pairing: bool = False,
    ) -> None:
        self.topology = topology
        self._any_pairing = any_pairing or any_pairing_goes(topology.config, os.environ)
        self._mode = mode
        self._name = environment_server_name
        self._routes = dict(routes or {})
        self._cache: dict[tuple[str, str | None, str | None], Target] = {}
        for named in [*self._routes.values(), *([self._name] if self._name else [])]:
            self._environment_server(named)

    def target(self, row: Mapping[str, Any]) -> Target:
        """Return where this row goes; raises ConfigError (a ValueError) when the configuration has no place for it."""
        stamped = row.get(keys.ENVIRONMENT_SERVER)
        source = row.get(keys.TASK_SOURCE)
        if is_materialized_row(row):
            key = ("materialized", taskset_of(row), stamped)
        else:
            agent = agent_name_of(row)
            if agent is None:
                raise ConfigError("a row has no `agent_ref`")
            key = (agent, source if isinstance(source, str) else None, stamped if isinstance(stamped, str) else None)
        target = self._cache.get(key)
        if target is None:
            target = self._cache[key] = self._work_out(row, stamped if isinstance(stamped, str) else None)
        return target

    def targets(self) -> list[Target]:
        """Return every distinct target that was handed out, by label."""
        return sorted({target.label: target for target in self._cache.values()}.values(), key=lambda item: item.label)

    def reached_instances(self) -> list[Instance]:
        """Return every instance that the routed rows can reach, through references."""
        names = {target.environment_server for target in self._cache.values()}
        return self.topology.reached_from(names | {target.agent for target in self._cache.values() if target.agent})

    def _work_out(self, row: Mapping[str, Any], stamped: str | None) -> Target:
        if is_materialized_row(row):
            taskset = taskset_of(row)
            name = stamped or self._routes.get(taskset or "") or self._name
            if name is None:
                raise ConfigError(
                    f"no environment server for taskset `{taskset}`. "
                    f"Add `+environment_server_routes.{taskset or '<taskset>'}=<environment server>`."
                )
            return self._through(self._environment_server(name), agent=None)
        agent = self.topology.agent(agent_name_of(row) or "")
        self._check_allowed(agent, agent)
        if self._mode == "taskset":
            raise ConfigError("`environment_routing_mode=taskset` takes only rows with `task_id` and `task_input`")
        name = stamped or (self._name if self._mode == "legacy" or self._name else None)
        if name is not None and name != agent.name:
            server = self._environment_server(name)
            self._check_pairing(row, server, agent)
            return self._through(server, agent=agent)
        fronting = [
            server for server in self.topology.of_kind(ENVIRONMENTS) if agent.name in set(server.references(AGENTS))
        ]
        if len(fronting) > 1:
            names = ", ".join(f"`{server.name}`" for server in fronting)
            raise AmbiguousEnvironmentServerError(
                f"agent `{agent.name}` is named by several environment servers: {names}. "
                "Pass `+environment_server_name=<one of them>`."
            )
        if fronting:
            return self._through(fronting[0], agent=agent)
        if self.topology.config.get("error_on_agent_without_environment_server"):
            raise AgentWithoutEnvironmentServerError(f"no environment server names agent `{agent.name}`")
        return _direct(agent, environment_server=agent.name)

    def _environment_server(self, name: str) -> Instance:
        instance = self.topology.instances.get(name)
        if instance is None or instance.kind != ENVIRONMENTS:
            known = [server.name for server in self.topology.of_kind(ENVIRONMENTS)]
            raise ConfigError(
                f"no environment server `{name}` in the running configuration.{nearest_name(name, known)}"
            )
        return instance

    def _check_allowed(self, agent: Instance, user: Instance) -> None:
        """Raise ConfigError when the resources server that `user` names is declared for other agents."""
        reference = user.settings.get("resources_server")
        resources = self.topology.instances.get(str(reference.get("name"))) if isinstance(reference, Mapping) else None
        if resources is None or self._any_pairing:
            return
        problem = pairing_problem(
            resources.name, resources.settings, field=ALLOWED_AGENTS, implementation=agent.implementation
        )
        if problem is not None:
            raise UnsupportedAgentPairingError(problem)

    def _check_pairing(self, row: Mapping[str, Any], server: Instance, agent: Instance) -> None:
        agents = set(server.references(AGENTS))
        if agents and agent.name not in agents:
            raise ConfigError(f"environment server `{server.name}` does not run agent `{agent.name}`")
        self._check_allowed(agent, server)
        source, resources = row.get(keys.TASK_SOURCE), server.settings.get("resources_server")
        named = resources.get("name") if isinstance(resources, Mapping) else None
        if source is not None and named is not None and source != named:
            raise ConfigError(
                f"row of `task_source={source}` cannot run on `{server.name}`, whose resources server is `{named}`"
            )

    def _through(self, server: Instance, *, agent: Instance | None) -> Target:
        agents = sorted(set(server.references(AGENTS)))
        if agent is None and len(agents) == 1:
            agent = self.topology.instances.get(agents[0])
        if server.implementation == RELAY:
            if agent is None:
                raise ConfigError(f"`{server.name}` names no agent in `agent_server`")
            return _direct(agent, environment_server=server.name)
        base = _base_url(server)
        return Target(
            url=f"{base}/run",
            label=agent.name if agent is not None and len(agents) == 1 else server.name,
            environment_server=server.name,
            result_type=server.implementation,
            agent=None if agent is None else agent.name,
            metrics_url=f"{base}/aggregate_metrics",
        )


def _direct(agent: Instance, *, environment_server: str) -> Target:
    base = _base_url(agent)
    return Target(
        url=f"{base}/run",
        label=agent.name,
        environment_server=environment_server,
        result_type=RELAY,
        agent=agent.name,
        metrics_url=f"{base}/aggregate_metrics",
    )


def _base_url(instance: Instance) -> str:
    url = instance.base_url
    if url is None:
        raise ConfigError(f"`{instance.name}` has no `port` in the running configuration, so rows cannot be sent to it")
    return url

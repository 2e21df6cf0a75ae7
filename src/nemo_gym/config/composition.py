"""Puts an agent in front of a resources server: the named one in place of the composed one, or `simple_agent` where
a configuration composes none.

An agent that is put in keeps the instance name of the one it replaces, because rows and environment blocks name it, and
takes over its `resources_server`, `model_server` and `datasets`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_gym.config.names import AGENTS, MODELS, POLICY_MODEL, RESOURCES
from nemo_gym.config.roots import component_config_files, find_component, implementations
from nemo_gym.config.servers import DEFAULT_ENTRYPOINT
from nemo_gym.config.sources import FileReader, merge
from nemo_gym.errors import ConfigError, nearest_name

DEFAULT_AGENT = "simple_agent"
_INHERITED = ("resources_server", "model_server", "datasets")


def compose_agents(data: dict[Any, Any], *, agent: str | None, roots: Sequence[Path]) -> dict[Any, Any]:
    """Return unresolved `data` with agents in place.

    `agent`: an agent's name, or `NAME/FLAVOUR`; None keeps the composed agents and adds `simple_agent` for each
    resources server that no agent uses. Raises `ConfigError` with the nearest name for an unknown agent.
    """
    agents = {str(name): value for name, value in data.items() if isinstance(value, Mapping) and AGENTS in value}
    if agent is not None and agent not in agents:
        extra, implementation, block = _agent_block(agent, roots, list(agents))
        data = merge([extra, data])
        for name, value in agents.items():
            composed = _only_block(value)
            if "resources_server" in composed or len(agents) == 1:
                inherited = {key: composed[key] for key in _INHERITED if key in composed}
                data[name] = {AGENTS: {implementation: {**block, **inherited}}}
    used = {_referenced(_only_block(value)) for value in agents.values()}
    for name, value in list(data.items()):
        if not isinstance(value, Mapping) or RESOURCES not in value or name in used:
            continue
        _, implementation, block = _agent_block(agent if agent not in agents and agent else DEFAULT_AGENT, roots, [])
        data[f"{name}_{implementation}"] = {
            AGENTS: {
                implementation: {
                    **block,
                    "resources_server": {"type": RESOURCES, "name": name},
                    "model_server": {"type": MODELS, "name": POLICY_MODEL},
                }
            }
        }
    return data


def _agent_block(agent: str, roots: Sequence[Path], instances: list[str]) -> tuple[dict[Any, Any], str, dict[Any, Any]]:
    """Return (further top-level settings, implementation, its block) from the agent's own configuration file."""
    folder, _, flavour = agent.partition("/")
    has_file = any(name.partition("/")[0] == folder for name in component_config_files(AGENTS, roots))
    if folder in implementations(AGENTS, roots) and not has_file and not flavour:
        return {}, folder, {"entrypoint": DEFAULT_ENTRYPOINT}
    if not has_file and (hint := nearest_name(agent, [*instances, *implementations(AGENTS, roots)])):
        raise ConfigError(f"no agent is called `{agent}`.{hint}")
    file = find_component(AGENTS, agent, roots)
    settings = merge([layer.data for layer in FileReader(roots).layers([file])])
    blocks = [(name, value) for name, value in settings.items() if isinstance(value, Mapping) and AGENTS in value]
    if len(blocks) != 1 or not isinstance(blocks[0][1][AGENTS], Mapping) or len(blocks[0][1][AGENTS]) != 1:
        raise ConfigError(f"`{file}` must define exactly one agent instance to be used as `--agent {agent}`.")
    name, value = blocks[0]
    implementation, block = next(iter(value[AGENTS].items()))
    extra = {key: other for key, other in settings.items() if key != name}
    return extra, str(implementation), dict(block or {})


def _only_block(instance: Mapping[Any, Any]) -> Mapping[Any, Any]:
    inner = instance.get(AGENTS)
    block = next(iter(inner.values()), None) if isinstance(inner, Mapping) else None
    return block if isinstance(block, Mapping) else {}


def _referenced(block: Mapping[Any, Any]) -> object:
    reference = block.get("resources_server")
    return reference.get("name") if isinstance(reference, Mapping) else None

"""Which servers a command is about: the flags that `gym env start`, `env validate`, `env resolve` and `eval run` share,
and how they become one configuration."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from nemo_gym.cli.output import note
from nemo_gym.config import ResolvedConfig, component_search_roots, find_component, load_config
from nemo_gym.config.names import AGENTS, ENVIRONMENTS
from nemo_gym.config.overrides import parse_override
from nemo_gym.config.roots import implementations
from nemo_gym.config.values import url_problem
from nemo_gym.errors import ConfigError, UsageError, nearest_name
from nemo_gym.records.keys import SERVER_TOKEN_ENV

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="+KEY=VALUE",
        help="Settings that win over every file: +key=value adds, ++key=value adds or replaces, key=value replaces, "
        "~key deletes. Inner keys are joined by dots.",
        show_default=False,
    ),
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="PATH", help="A configuration file (YAML). May be repeated; later ones win."),
]
BenchmarkOption = Annotated[
    list[str] | None, typer.Option("--benchmark", metavar="NAME", help="A benchmark, by name. May be repeated.")
]
EnvironmentOption = Annotated[
    list[str] | None, typer.Option("--environment", metavar="NAME", help="An environment, by name. May be repeated.")
]
ResourcesServerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--resources-server",
        metavar="NAME",
        help="A resources server with its agent, by name or NAME/FLAVOUR. `gym list resources-servers` shows them. "
        "May be repeated.",
    ),
]
ModelTypeOption = Annotated[
    str | None,
    typer.Option(
        "--model-type", metavar="NAME", help="The model server, by name or NAME/FLAVOUR. `gym list models` shows them."
    ),
]
AgentTypeOption = Annotated[
    str | None,
    typer.Option(
        "--agent-type",
        metavar="NAME",
        help="The agent to use in place of the composed one. `gym list agents` shows them.",
    ),
]
AgentOption = Annotated[
    str | None,
    typer.Option(
        "--agent",
        "--agent-type",
        metavar="NAME",
        help="The agent to use in place of the composed one. `gym list agents` shows them.",
    ),
]
AgentCommandOption = Annotated[
    str | None,
    typer.Option(
        "--agent-command",
        metavar="CMD",
        help="Run this program for each rollout; `command_agent` is the agent then. It is split as a shell does, and "
        "no shell runs it. docs/write-an-agent.md has its placeholders.",
    ),
]
PairingOption = Annotated[
    bool,
    typer.Option(
        "--allow-unsupported-pairing", help="Start even when the environment does not list this agent or model type."
    ),
]
COMMAND_AGENT = "command_agent"
"""The agent that runs a program."""

SearchDirOption = Annotated[
    list[str] | None,
    typer.Option(
        "--search-dir", metavar="DIR", help="Look here first for components and files of your own. May be repeated."
    ),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", metavar="NAME", help="The model to ask for (policy_model_name).")
]
ModelUrlOption = Annotated[
    str | None, typer.Option("--model-url", metavar="URL", help="Where the model is served (policy_base_url).")
]
ModelApiKeyOption = Annotated[
    str | None,
    typer.Option(
        "--model-api-key",
        metavar="KEY",
        help="The key for it (policy_api_key). Other users of this machine can read command lines; env.yaml is safer.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The values of the shared flags; a command passes those that it has."""

    config: Sequence[str] | None = None
    benchmark: Sequence[str] | None = None
    environment: Sequence[str] | None = None
    resources_server: Sequence[str] | None = None
    model_type: str | None = None
    agent: str | None = None
    agent_command: str | None = None
    search_dir: Sequence[str] | None = None
    model: str | None = None
    model_url: str | None = None
    model_api_key: str | None = None
    allow_unsupported_pairing: bool = False

    @property
    def names_servers(self) -> bool:
        """Whether any flag names something that could be started."""
        return bool(
            self.config or self.benchmark or self.environment or self.resources_server or self.model_type or self.agent
        )

    def config_paths(self) -> list[str]:
        """Return the files that the flags name, lowest first. Raises with the nearest name for an unknown component."""
        roots = component_search_roots(self.search_dir or ())
        named = (
            [("benchmarks", name) for name in self.benchmark or ()]
            + [("environments", name) for name in self.environment or ()]
            + [("resources_servers", name) for name in self.resources_server or ()]
            + [("responses_api_models", name) for name in ([self.model_type] if self.model_type else [])]
        )
        files = [str(find_component(kind, name, roots)) for kind, name in named]
        # A file of the user's own wins over the components it is used with.
        return files + list(self.config or ())

    def flag_overrides(self) -> list[str]:
        """Return the override tokens that the flags stand for."""
        pairs = {
            "policy_model_name": self.model,
            "policy_base_url": self.model_url,
            "policy_api_key": self.model_api_key,
        }
        if self.agent_command is not None:
            pairs |= {"agent_command": self.agent_command, "agent_directory": str(Path.cwd())}
        tokens = [f"+{key}={_quoted(value)}" for key, value in pairs.items() if value is not None]
        if self.allow_unsupported_pairing:
            tokens.append("+allow_unsupported_pairing=true")
        if logging.getLogger("nemo_gym").isEnabledFor(logging.DEBUG):
            tokens.append("+verbose=true")
        return tokens


def flags_of(command: Callable[..., Any]) -> frozenset[str]:
    """Return the options of a command as they are written, such as `--limit`."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    declared = [option for each in parameters for option in getattr(each.annotation, "__metadata__", ())]
    # In an annotation the library takes the first name for the default, and puts that right when the command is run.
    names = [name for option in declared for name in (option.default, *(option.param_decls or ()))]
    return frozenset(name for name in names if isinstance(name, str) and name.startswith("--"))


def compose(
    selection: Selection,
    overrides: Sequence[str] | None = (),
    *,
    known_keys: Collection[str] = (),
    flag_overrides: Sequence[str] = (),
    flags: Collection[str] = (),
    allow_missing_model: bool = False,
    initial: dict[str, Any] | None = None,
) -> ResolvedConfig:
    """Return the configuration that flags and overrides describe, and say its notices on stderr.

    `flag_overrides`: tokens of a command's further flags, placed before the user's. `known_keys`: top-level keys that
    the command reads itself. `flags`: the names of its options (`flags_of`), for hints. Raises `ConfigError`.
    """
    tokens = list(overrides or ())
    for token in tokens:
        parse_override(token)  # a stray word is reported before files are looked for
    if selection.model_url is not None and (problem := url_problem(selection.model_url)):
        raise ConfigError(f"`--model-url` {problem}")
    if selection.agent_command is not None:
        _check_agent_command(selection.agent_command)
    config = load_config(
        config_paths=selection.config_paths(),
        overrides=[*selection.flag_overrides(), *flag_overrides, *tokens],
        search_dirs=selection.search_dir or (),
        initial=initial,
        agent=selection.agent,
        compose=bool(selection.resources_server),
        known_keys=known_keys,
        flags=flags,
        allow_missing_model=allow_missing_model,
    )
    for text in [*config.notices, *_kept_names(selection, config)]:
        note(f"Note: {text}")
    _adopt_server_token(config)
    return config


def _kept_names(selection: Selection, config: ResolvedConfig) -> list[str]:
    """Return what to say about agents that were put in under a name that tells of another one."""
    if selection.agent is None:
        return []
    return [
        f"`{block.implementation}` runs under the name `{block.name}`, by which rows and settings call it."
        for block in config.server_blocks()
        if block.kind == AGENTS and block.implementation not in block.name
    ]


def agent_for_command(agent: str | None, agent_command: str | None) -> str | None:
    """Return the kind of agent to start, `command_agent` for a command; raises UsageError when another one is named."""
    if agent_command is None or agent == COMMAND_AGENT:
        return agent
    if agent is not None:
        raise UsageError(f"`--agent-command` is run by `{COMMAND_AGENT}`; leave out that the agent is `{agent}`.")
    return COMMAND_AGENT


def _check_agent_command(given: str) -> None:
    """Raise `ConfigError` for a program that cannot be run, before anything is started for it."""
    from nemo_gym.builtin.responses_api_agents.command_agent.command import check_program, words_of  # only with it

    check_program(words_of(given), directory=str(Path.cwd()), path=os.environ.get("PATH"))


def _adopt_server_token(config: ResolvedConfig) -> None:
    """Move the run's token from the configuration into the environment, where every process of the run looks for it.

    The configuration is shown to servers, to the head server's callers and in dumps; the token is not.
    """
    token = config.data.pop("server_token", None)
    if token is None:
        return
    if not isinstance(token, str) or not token.strip():
        raise ConfigError("`server_token` must be a text that is not empty")
    os.environ[SERVER_TOKEN_ENV] = token


def require_servers(config: ResolvedConfig) -> None:
    """Raise `ConfigError` when a configuration starts nothing."""
    if not any(block.starts_process for block in config.server_blocks()):
        raise ConfigError(
            "the configuration has no server to start. Name one with `--resources-server NAME` and a model with "
            "`--model-type NAME`, or a file with `--config PATH`; `gym list resources-servers` shows what there is."
        )


def require_agent(config: ResolvedConfig, agent: object) -> None:
    """Raise `ConfigError`, with the nearest name, when an agent is asked for that is neither configured nor a kind."""
    instances = [block.name for block in config.server_blocks() if block.kind in (AGENTS, ENVIRONMENTS)]
    if agent is None or agent in instances:
        return
    kinds = implementations(AGENTS, config.roots)
    configured = ", ".join(f"`{name}`" for name in instances) or "none"
    raise ConfigError(
        f"no agent is called `{agent}`.{nearest_name(str(agent), [*instances, *kinds])} Configured: {configured}; "
        "`gym list agents` shows what can be put in their place."
    )


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

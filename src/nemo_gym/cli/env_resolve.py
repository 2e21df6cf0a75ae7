"""`gym env resolve`."""

from __future__ import annotations

from typing import Annotated

import typer
import yaml

from nemo_gym.cli.output import note, print_json, print_table
from nemo_gym.cli.selection import (
    AgentCommandOption,
    AgentOption,
    BenchmarkOption,
    ConfigOption,
    EnvironmentOption,
    ModelApiKeyOption,
    ModelOption,
    ModelTypeOption,
    ModelUrlOption,
    Overrides,
    PairingOption,
    ResourcesServerOption,
    SearchDirOption,
    Selection,
    agent_for_command,
    compose,
    flags_of,
)
from nemo_gym.config import ResolvedConfig


def command(
    overrides: Overrides = None,
    *,
    resources_server: ResourcesServerOption = None,
    model_type: ModelTypeOption = None,
    agent: AgentOption = None,
    agent_command: AgentCommandOption = None,
    config: ConfigOption = None,
    environment: EnvironmentOption = None,
    benchmark: BenchmarkOption = None,
    model: ModelOption = None,
    model_url: ModelUrlOption = None,
    model_api_key: ModelApiKeyOption = None,
    search_dir: SearchDirOption = None,
    allow_unsupported_pairing: PairingOption = False,
    sources: Annotated[
        bool, typer.Option("--sources", help="Show where each value comes from: which file, or the command line.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
) -> int:
    """Print the configuration that files and settings add up to, as YAML, with secrets as ****."""
    selection = Selection(
        config=config,
        benchmark=benchmark,
        environment=environment,
        resources_server=resources_server,
        model_type=model_type,
        agent=agent_for_command(agent, agent_command),
        agent_command=agent_command,
        search_dir=search_dir,
        model=model,
        model_url=model_url,
        model_api_key=model_api_key,
        allow_unsupported_pairing=allow_unsupported_pairing,
    )
    resolved = compose(selection, overrides, flags=flags_of(command), allow_missing_model=True)
    for problem in resolved.model_problems:
        note(f"Warning: {problem}")
    if sources:
        _print_sources(resolved, as_json=as_json)
    elif as_json:
        print_json(resolved.masked())
    else:
        print(yaml.safe_dump(resolved.masked(), sort_keys=False, allow_unicode=True), end="")
    return 0


def _print_sources(resolved: ResolvedConfig, *, as_json: bool) -> None:
    masked = resolved.masked()
    rows = []
    for path, origin in resolved.provenance.items():
        value: object = masked
        for part in path.split("."):
            value = (
                value.get(part, value.get(int(part)) if part.isdigit() else None) if isinstance(value, dict) else None
            )
        rows.append((path, value, origin))
    if as_json:
        print_json([{"key": path, "value": value, "source": origin} for path, value, origin in rows])
    else:
        print_table(("key", "value", "source"), rows, wrapped="source")

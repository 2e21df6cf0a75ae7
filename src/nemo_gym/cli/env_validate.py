"""`gym env validate`."""

from __future__ import annotations

from typing import Annotated

import typer

from nemo_gym.cli.output import note, print_json
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
    require_servers,
)
from nemo_gym.config import check_capture_directory
from nemo_gym.errors import ConfigError


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
    strict: Annotated[bool, typer.Option("--strict", help="A model that is not set is an error too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Check a configuration without starting anything.

    Looks at every file, name, reference and setting, and at whether captures could be written. A configuration that
    lacks only its model is valid, with a warning, unless --strict is given.
    """
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
    resolved = compose(selection, overrides, flags=flags_of(command), allow_missing_model=not strict)
    if selection.names_servers:
        require_servers(resolved)
    check_capture_directory(resolved.data)
    for problem in resolved.model_problems:
        note(f"Warning: {problem}")
    blocks = resolved.server_blocks()
    if not blocks and not selection.names_servers and not overrides:
        raise ConfigError("nothing to check. Name a `--config PATH`, a `--resources-server NAME` or settings.")
    if as_json:
        servers = [{"name": block.name, "kind": block.kind, "implementation": block.implementation} for block in blocks]
        warnings = [*resolved.notices, *resolved.model_problems]
        print_json({"valid": True, "servers": servers, "warnings": warnings})
    else:
        print("✓ Config is valid.")
    return 0

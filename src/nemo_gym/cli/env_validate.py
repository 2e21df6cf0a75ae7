"""`gym env validate`."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from nemo_gym.cli.catalog import check_entry
from nemo_gym.cli.output import note, print_json, show
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
from nemo_gym.config import check_capture_directory, component_search_roots
from nemo_gym.errors import ConfigError, UsageError

_ENTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
"""What a name looks like; a setting has `=` in it, or `~` in front."""


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
    """Check a configuration, or the environment with a manifest that a word names, without starting anything.

    Looks at every file, name, reference and setting, and at whether captures could be written. A configuration that
    lacks only its model is valid, with a warning, unless --strict is given.
    """
    if overrides and _ENTRY.match(overrides[0]):
        return _validate_entry(overrides, search_dir or (), as_json=as_json)
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


def _validate_entry(words: list[str], search_dirs: list[str] | tuple[()], *, as_json: bool) -> int:
    if len(words) > 1:
        raise UsageError(f"`{words[0]}` is checked as it is; `{words[1]}` cannot be given with it.")
    entry = check_entry(words[0], component_search_roots(search_dirs), search_dirs)
    for warning in entry.warnings:
        note(f"Warning: {warning}")
    if as_json:
        print_json(entry.as_dict())
    else:
        show(entry.as_text())
    return 0

"""`gym env start`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from nemo_gym.cli import detaching
from nemo_gym.cli.head_client import HeadAddress
from nemo_gym.cli.interruption import run_until_interrupted
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
    require_servers,
)
from nemo_gym.cli.serving import ServedRun, serve, stop_command
from nemo_gym.config import ResolvedConfig, check_capture_directory
from nemo_gym.engine.local import ServerInstance
from nemo_gym.engine.local.launch import Event

COLUMNS = ("name", "kind", "url", "pid", "log file")


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
    log_dir: Annotated[
        Path | None, typer.Option("--log-dir", metavar="DIR", help="Where each server's log goes.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when everything is ready; `gym env stop` ends it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the servers as JSON.")] = False,
) -> int:
    """Start the servers of an environment and keep them running until Ctrl-C or `gym env stop`.

    \b
    Example:
      gym env start --resources-server example_single_tool_call --model-type scripted_model
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
    resolved = compose(selection, overrides, flags=flags_of(command))
    require_servers(resolved)
    check_capture_directory(resolved.data)
    if detach:
        return run_until_interrupted(detaching.start_detached(resolved, as_json=as_json, show=show_instances))
    holder: list[ServedRun] = []

    def kill() -> None:
        for run in holder:
            run.kill()

    return run_until_interrupted(
        _hold(resolved, holder, log_dir=log_dir, as_json=as_json),
        on_second=kill,
    )


async def _hold(config: ResolvedConfig, holder: list[ServedRun], *, log_dir: Path | None, as_json: bool) -> int:
    """Serve until somebody asks for the end; raise when a server dies."""
    count = sum(block.starts_process for block in config.server_blocks())
    note(f"Starting {count} server{'s' * (count != 1)} ...")
    async with serve(config, log_dir=log_dir, on_event=_said, say=note) as run:
        holder.append(run)
        address = HeadAddress.of(run.config.data)
        entries = [instance.as_dict() for instance in run.instances]
        show_instances(entries, head=address, head_pid=os.getpid(), as_json=as_json)
        note(f"Ready after {run.seconds:.1f} s. Ctrl-C or `{stop_command(address)}` ends it.")
        stop = asyncio.create_task(run.stop_requested.wait())
        failed = asyncio.create_task(run.wait_failed())
        try:
            await asyncio.wait([stop, failed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            failed.cancel()
            note("Stopping ...")
        if failed.done() and not failed.cancelled() and not stop.done():
            raise failed.result()
    return 0


def _said(instance: ServerInstance, event: Event) -> None:
    if event == "ready":
        note(f"  {instance.name} is ready")


def show_instances(instances: list[dict[str, Any]], *, head: HeadAddress, head_pid: int, as_json: bool) -> None:
    """Print the servers: name, kind, URL, process id and log file. JSON lists the server processes alone."""
    if as_json:
        print_json(instances)
        return
    rows = [[entry.get(key) for key in ("name", "kind", "url", "pid", "log_file")] for entry in instances]
    rows.insert(0, ["head_server", "head_server", head.url, head_pid, None])
    print_table(COLUMNS, rows, wrapped="log file")

"""`gym eval run`: collect rollouts, against servers that it starts or that run already."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from nemo_gym.cli.declared_rows import has_begun, settings_with_rows
from nemo_gym.cli.interruption import run_until_interrupted
from nemo_gym.cli.output import note, print_json, show
from nemo_gym.cli.resume_command import resume_text
from nemo_gym.cli.selection import (
    AgentCommandOption,
    AgentTypeOption,
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
    require_agent,
)
from nemo_gym.config import ResolvedConfig, assign_ports, component_search_roots, find_file, load_config
from nemo_gym.config.loading import COMMAND_LINE
from nemo_gym.config.roots import implementations
from nemo_gym.errors import ConfigError, UsageError
from nemo_gym.rollouts.output_check import check_output
from nemo_gym.rollouts.settings import E2ERolloutCollectionConfig, RolloutCollectionConfig, parse_settings
from nemo_gym.store import RunFiles

_SILENT_S = 2.0
"""How long the rows of a run are checked before that is said."""
KNOWN_KEYS = frozenset(RolloutCollectionConfig.model_fields) | frozenset(E2ERolloutCollectionConfig.model_fields)


def command(
    overrides: Overrides = None,
    *,
    input_file: Annotated[
        str | None, typer.Option("--input", "-i", metavar="FILE", help="Rows to run, one JSON object per line.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Where the rollouts go (JSON lines).")
    ] = None,
    no_serve: Annotated[bool, typer.Option("--no-serve", help="Use the servers that run already.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Run only what the output lacks.")] = False,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent", "-a", metavar="NAME", help="Send every row to this agent, or start this kind of agent."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", help="Only the first N rows; 0: all.")] = None,
    num_repeats: Annotated[int | None, typer.Option("--num-repeats", metavar="N", help="Rollouts of each row.")] = None,
    interleave_repeats: Annotated[
        bool, typer.Option("--interleave-repeats", help="All first repeats before all second ones.")
    ] = False,
    prompt_config: Annotated[
        str | None, typer.Option("--prompt-config", metavar="FILE", help="Prompt file that gives rows their input.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", help="Rollouts in flight at a time.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option("--split", metavar="SPLIT", help="Without --input: which declared datasets to run (example)."),
    ] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", metavar="X", help="For every row.")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", metavar="X", help="For every row.")] = None,
    max_output_tokens: Annotated[
        int | None, typer.Option("--max-output-tokens", metavar="N", help="For every row.")
    ] = None,
    disable_aggregation: Annotated[
        bool, typer.Option("--disable-aggregation", help="Make no metrics and no health report.")
    ] = False,
    no_health_check: Annotated[bool, typer.Option("--no-health-check", help="Make no health report.")] = False,
    health_check_workers: Annotated[
        int | None, typer.Option("--health-check-workers", metavar="N", help="Processes of the health check.")
    ] = None,
    health_check_ignore: Annotated[
        str | None, typer.Option("--health-check-ignore", metavar="A,B", help="Checks that count for nothing.")
    ] = None,
    config: ConfigOption = None,
    benchmark: BenchmarkOption = None,
    environment: EnvironmentOption = None,
    resources_server: ResourcesServerOption = None,
    model_type: ModelTypeOption = None,
    agent_type: AgentTypeOption = None,
    agent_command: AgentCommandOption = None,
    model: ModelOption = None,
    model_url: ModelUrlOption = None,
    model_api_key: ModelApiKeyOption = None,
    search_dir: SearchDirOption = None,
    allow_unsupported_pairing: PairingOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the final status as JSON.")] = False,
) -> int:
    """Collect rollouts for a file of rows, or for the datasets that an environment declares.

    With flags that name an environment the servers are started first and ended afterwards.

    \b
    Examples:
      gym eval run --resources-server example_single_tool_call --model-type scripted_model -o runs/first.jsonl
      gym eval run --no-serve -i tasks.jsonl -o runs/second.jsonl --concurrency 32
      gym eval run --no-serve -i tasks.jsonl -o runs/second.jsonl --resume
    """
    if agent_command is not None:
        agent_type, agent = agent_for_command(agent_type or agent, agent_command), None
    selection = Selection(
        config=config,
        benchmark=benchmark,
        environment=environment,
        resources_server=resources_server,
        model_type=model_type,
        agent=agent_type,
        agent_command=agent_command,
        search_dir=search_dir,
        model=model,
        model_url=model_url,
        model_api_key=model_api_key,
        allow_unsupported_pairing=allow_unsupported_pairing,
    )
    if not no_serve and agent is not None and agent_type is None and _names_a_type(selection, agent, overrides):
        selection, agent = replace(selection, agent=agent), None
    if no_serve and agent_type is not None:
        raise UsageError(
            "`--agent-type` and `--agent-command` change which servers are started; with `--no-serve` use "
            "`--agent NAME`."
        )
    flags = flag_overrides(
        {
            "input_jsonl_fpath": input_file,
            "output_jsonl_fpath": output,
            "resume_from_cache": resume or None,
            "agent_name": agent,
            "limit": limit,
            "num_repeats": num_repeats,
            "interleave_repeats": interleave_repeats or None,
            "prompt_config": prompt_config,
            "num_samples_in_parallel": concurrency,
            "split": split,
            "responses_create_params.temperature": temperature,
            "responses_create_params.top_p": top_p,
            "responses_create_params.max_output_tokens": max_output_tokens,
            "disable_aggregation": disable_aggregation or None,
            "disable_health_check": no_health_check or None,
            "health_check_workers": health_check_workers,
            "health_check_ignored_checks": health_check_ignore,
        }
    )
    resolved = compose(
        selection,
        overrides,
        known_keys=KNOWN_KEYS,
        flag_overrides=flags,
        flags=flags_of(command),
        allow_missing_model=no_serve,
    )
    serving = not no_serve and any(block.starts_process for block in resolved.server_blocks())
    if not serving and not no_serve and not resolved.data.get("input_jsonl_fpath"):
        raise ConfigError(
            "nothing says what to run. Name an environment (`--resources-server NAME --model-type NAME`), "
            "or rows for servers that run already (`--no-serve --input FILE`)."
        )
    if resolved.data.get("input_jsonl_fpath") and resolved.provenance.get("split") == COMMAND_LINE:
        raise ConfigError(
            "`--split` chooses among declared datasets; with `--input` it would do nothing. Leave one out."
        )
    if serving:
        require_agent(resolved, resolved.data.get("agent_name"))
    elif ignored := _decided_by_servers(selection):
        note(f"Note: the servers run already, so nothing here heeds {', '.join(f'`{flag}`' for flag in ignored)}.")
    _check_before_start(resolved)
    main = _serve_and_collect(resolved, as_json=as_json) if serving else _collect(resolved, resolved.data, as_json)
    code = run_until_interrupted(main, on_second=lambda: os._exit(130), fast_loop=True)
    if code > 128:
        with contextlib.suppress(OSError):  # the terminal may be what was closed
            note(_interrupted_note(str(resolved.data["output_jsonl_fpath"])))
    return code


def _decided_by_servers(selection: Selection) -> list[str]:
    """Return the given flags that only say which servers to start, and with which model."""
    flags = {
        "--resources-server": selection.resources_server,
        "--model-type": selection.model_type,
        "--model": selection.model,
        "--model-url": selection.model_url,
        "--model-api-key": selection.model_api_key,
    }
    return [flag for flag, value in flags.items() if value]


def _interrupted_note(output: str) -> str:
    """Say how an interrupted run goes on: not with `--resume` when what is saved there is another run, or nothing."""
    if has_begun(RunFiles(output)):
        return f"Interrupted. {_rest_is_run_by()}"
    return "Interrupted before any rollout was sent; nothing was changed. The same command starts again."


def _rest_is_run_by() -> str:
    return f"What is done is saved; the rest is run by:\n{resume_text(sys.argv)}"


def _check_before_start(resolved: ResolvedConfig) -> None:
    """Find what is wrong with the settings and the files of a run before anything is started for it."""
    given = resolved.data.get("input_jsonl_fpath")
    # A serving run may take its rows from declared datasets: then the input is named once these are prepared.
    settings = {**resolved.data, "input_jsonl_fpath": "" if given is None else given}
    config = _run_settings(settings)
    check_output(
        config.output_jsonl_fpath,
        input_path=_resolved_path(resolved, given, "input file") if isinstance(given, str) else None,
        resume=config.resume_from_cache,
    )


def _names_a_type(selection: Selection, agent: str, overrides: Sequence[str] | None) -> bool:
    """Return whether `--agent` means a kind of agent to start, rather than one that the configuration has."""
    if agent not in implementations("responses_api_agents", component_search_roots(selection.search_dir or ())):
        return False
    composed = load_config(
        config_paths=selection.config_paths(),
        overrides=[*selection.flag_overrides(), *(overrides or ())],
        search_dirs=selection.search_dir or (),
        compose=bool(selection.resources_server),
        known_keys=KNOWN_KEYS,
        flags=flags_of(command),
        allow_missing_model=True,
    )
    return all(block.name != agent for block in composed.server_blocks())


async def _serve_and_collect(resolved: ResolvedConfig, *, as_json: bool) -> int:
    with settings_with_rows(resolved) as settings:
        await _check_rows(resolved, settings)
        return await _collect_served(resolved, settings, as_json=as_json)


async def _collect_served(resolved: ResolvedConfig, settings: Mapping[str, Any], *, as_json: bool) -> int:
    """Start the servers, collect, end the servers; a server that dies ends the run."""
    from nemo_gym.cli.serving import serve  # against running servers none of it is needed

    count = sum(block.starts_process for block in resolved.server_blocks())
    note(f"Starting {count} server{'s' * (count != 1)} ...")
    async with serve(resolved, any_head_port=True, say=note) as run:
        note(f"Ready after {run.seconds:.1f} s; logs in `{run.log_dir}`.")
        failing = asyncio.ensure_future(run.wait_failed())

        def why_cancelled() -> str | None:
            return str(failing.result()) if failing.done() and not failing.cancelled() else None

        collecting = asyncio.ensure_future(_collect(run.config, settings, as_json, why_cancelled))
        try:
            await asyncio.wait({collecting, failing}, return_when=asyncio.FIRST_COMPLETED)
            if collecting.done():
                return collecting.result()
            died = failing.result()
        finally:
            failing.cancel()
            collecting.cancel()
            await asyncio.gather(collecting, failing, return_exceptions=True)
        if has_begun(RunFiles(str(resolved.data["output_jsonl_fpath"]))):
            raise type(died)(f"{died}\n{_rest_is_run_by()}")
        raise died


async def _check_rows(resolved: ResolvedConfig, settings: Mapping[str, Any]) -> None:
    """Find what is wrong with the rows, or with resuming a saved run, before servers are started for it."""
    from nemo_gym.rollouts.collect import check_before_serving

    config = _run_settings(settings)
    if config.rollout_collection_driver is None:
        input_path = _resolved_path(resolved, config.input_jsonl_fpath, "input file")
        # Rows are routed to addresses; these ones are only looked at.
        servers = assign_ports(resolved).data
        said = asyncio.get_running_loop().call_later(_SILENT_S, note, f"Checking the rows of `{input_path}` ...")
        try:
            await check_before_serving(config, servers=servers, input_path=input_path)
        finally:
            said.cancel()


async def _collect(
    resolved: ResolvedConfig,
    settings: Mapping[str, Any],
    as_json: bool,
    why_cancelled: Callable[[], str | None] | None = None,
) -> int:
    from nemo_gym import __version__
    from nemo_gym.rollouts.collect import collect_run
    from nemo_gym.rollouts.progress import TerminalProgress
    from nemo_gym.rollouts.summary import reward_lines, summary_lines

    config = _run_settings(settings)
    driver = config.rollout_collection_driver
    if driver is not None:
        await _call_driver(driver, config, dict(resolved.data))
        return 0
    summary = await collect_run(
        config,
        own_config=explicit_settings(resolved),
        observer=TerminalProgress(sys.stderr),
        gym_version=__version__,
        resolve_input=lambda path: _resolved_path(resolved, path, "input file"),
        why_cancelled=why_cancelled,
    )
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(summary.status))
        for line in (*reward_lines(summary.status), *summary.report.notes):
            note(line)
    else:
        show("\n".join(summary_lines(summary)))
    return 1 if summary.status.counts.failed else 0


def _run_settings(settings: Mapping[str, Any]) -> RolloutCollectionConfig:
    return parse_settings(
        RolloutCollectionConfig,
        # A command keeps nothing in memory that is in its files, and one failed rollout does not end the others.
        {"retain_results_in_memory": False, "route_failures_to_sidecar": True, **settings},
    )


async def _call_driver(driver: str, config: RolloutCollectionConfig, data: dict[str, Any]) -> None:
    import importlib

    module, _, name = driver.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"`rollout_collection_driver={driver}` cannot be imported: {error}") from error
    await function(config, data)


def explicit_settings(resolved: ResolvedConfig) -> dict[str, Any]:
    """Return the top-level settings that somebody gave, and where the head server is: what defaults must not hide."""
    given = {path.split(".")[0] for path, source in resolved.provenance.items() if source != "default"}
    return {key: value for key, value in resolved.data.items() if key in given or key == "head_server"}


def _resolved_path(resolved: ResolvedConfig, path: str, what: str) -> Path:
    return find_file(path, resolved.roots, what=what)


def flag_overrides(values: Mapping[str, Any]) -> list[str]:
    """Return the override tokens of flags; they come before the user's own."""
    return [f"+{key}={_token(value)}" for key, value in values.items() if value is not None]


def _token(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)

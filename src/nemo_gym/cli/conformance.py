"""`gym conformance`: what an agent's evidence is worth."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from nemo_gym.cli.interruption import run_until_interrupted
from nemo_gym.cli.output import note, print_json, show
from nemo_gym.cli.selection import COMMAND_AGENT, Overrides, SearchDirOption, Selection, compose, flags_of
from nemo_gym.cli.serving import serve
from nemo_gym.config import ResolvedConfig
from nemo_gym.errors import RunFailedError, UsageError, nearest_name

PROGRAM_DEADLINE_S = 60
"""So long a program has for a scenario; the longest one takes it a few seconds."""


def command(
    overrides: Overrides = None,
    *,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="An agent server. `gym list agents` shows them.")
    ] = None,
    agent_command: Annotated[
        str | None,
        typer.Option(
            "--command",
            metavar="CMD",
            help="A program that takes a base URL, in place of an agent server; it is started for each scenario. Split "
            "as a shell does, and no shell runs it. `{base_url}`, `{prompt}`, `{task_file}` and others stand for "
            "what their names say; docs/write-an-agent.md has the list.",
        ),
    ] = None,
    subagent_tool: Annotated[
        str | None,
        typer.Option(
            "--subagent-tool",
            metavar="NAME",
            help="The agent's own tool that starts a subagent on the task in `text`; without it no subagent is tried.",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", metavar="SCENARIO", help="Leave out what the agent does not have. May be repeated."),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", metavar="DIR", help="Keep the records and captures here."),
    ] = None,
    search_dir: SearchDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one line of JSON.")] = False,
) -> int:
    """Run an agent through scripted scenarios and show which rows of evidence it fulfils.

    The model, the tools and the verifier of the scenarios write down what really happened, and the agent's records are
    held against that. Exit code 1 when a row that applies is not fulfilled, or a scenario was not provoked.

    \b
    Examples:
      gym conformance --agent simple_agent
      gym conformance --command 'python my_agent.py {prompt}' --skip parallel_tools
    """
    from nemo_gym.testing import COMPONENTS, script_book

    if (agent is None) == (agent_command is None):
        raise UsageError("name the agent: either `--agent NAME`, or `--command 'PROGRAM ARGUMENTS'`.")
    chosen = _chosen(subagent_tool, skip or ())
    with _folder(output_dir) as folder:
        from nemo_gym.records import codec

        scripts, witness = folder / "scripts.yaml", folder / "witness.jsonl"
        scripts.write_bytes(codec.encode_pretty(script_book(chosen)))  # JSON is YAML
        witness.unlink(missing_ok=True)
        selection = Selection(
            resources_server=["conformance"],
            model_type="conformance_model",
            agent=COMMAND_AGENT if agent is None else agent,
            agent_command=agent_command,
            search_dir=[*(search_dir or ()), str(COMPONENTS)],
            allow_unsupported_pairing=True,
        )
        settings = {
            "conformance_scripts": str(scripts),
            "conformance_witness": str(witness),
            "observability_enabled": True,
            "model_call_capture_dir": str(folder / "model-calls"),
        }
        if agent_command is not None:
            settings["agent_timeout_s"] = PROGRAM_DEADLINE_S
        resolved = compose(selection, overrides, known_keys=tuple(settings), flags=flags_of(command), initial=settings)
        shown = agent or agent_command or ""
        return run_until_interrupted(_run(resolved, shown, chosen, folder, witness, as_json=as_json))


def _chosen(subagent_tool: str | None, skip: Collection[str]) -> list[Any]:
    """Return the scenarios to play; raises UsageError with the nearest name for one that does not exist."""
    from nemo_gym.testing import SUBAGENT, scenarios

    every = scenarios(subagent_tool=subagent_tool)
    names = [scenario.name for scenario in every]
    for name in skip:
        if name not in names and name != SUBAGENT:
            raise UsageError(f"there is no scenario `{name}`.{nearest_name(name, names)}")
    chosen = [scenario for scenario in every if scenario.name not in skip]
    if not chosen:
        raise UsageError("`--skip` leaves no scenario to play.")
    return chosen


async def _run(
    resolved: ResolvedConfig, agent: str, chosen: list[Any], folder: Path, witness: Path, *, as_json: bool
) -> int:
    from nemo_gym.testing import format_report, run_scenarios

    note(f"Starting agent `{agent}`, and a model, tools and a verifier that testify ...")
    async with serve(resolved, log_dir=folder / "logs", any_head_port=True, say=note) as run:
        head = run.config.data["head_server"]
        work = run_scenarios(
            chosen,
            agent=agent,
            head=(head["host"], head["port"]),
            capture_dir=folder / "model-calls",
            folder=folder,
            witness=witness,
        )
        # A loop of its own: the head server answers in this one.
        playing = asyncio.ensure_future(asyncio.to_thread(asyncio.run, work))
        failing = asyncio.ensure_future(run.wait_failed())
        try:
            await asyncio.wait({playing, failing}, return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                raise failing.result()
            report = playing.result()
        except TimeoutError as error:
            raise RunFailedError(
                f"agent `{agent}` did not come to an end; its log is in `{folder / 'logs'}`"
            ) from error
        finally:
            failing.cancel()
            await asyncio.gather(failing, return_exceptions=True)
    if as_json:
        print_json(report.as_json())
    else:
        show(format_report(report))
    return 0 if report.fulfilled else 1


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="gym-conformance-", ignore_cleanup_errors=True) as name:
        yield Path(name)

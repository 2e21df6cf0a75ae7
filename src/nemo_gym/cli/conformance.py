"""`gym conformance`: what an agent's evidence is worth."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from nemo_gym.cli.interruption import run_until_interrupted
from nemo_gym.cli.output import note, print_json
from nemo_gym.cli.selection import Overrides, SearchDirOption, Selection, compose
from nemo_gym.cli.serving import serve
from nemo_gym.config import ResolvedConfig
from nemo_gym.errors import RunFailedError


def command(
    overrides: Overrides = None,
    *,
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="The agent. `gym list agents` shows them.")],
    subagent_tool: Annotated[
        str | None,
        typer.Option(
            "--subagent-tool",
            metavar="NAME",
            help="The agent's own tool that starts a subagent on the task in `text`; without it no subagent is tried.",
        ),
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
    held against that. Exit code 1 when a row that applies is not fulfilled.
    """
    from nemo_gym.testing import COMPONENTS, scenarios, script_book

    chosen = scenarios(subagent_tool=subagent_tool)
    with _folder(output_dir) as folder:
        from nemo_gym.records import codec

        scripts, witness = folder / "scripts.yaml", folder / "witness.jsonl"
        scripts.write_bytes(codec.encode_pretty(script_book(chosen)))  # JSON is YAML
        witness.unlink(missing_ok=True)
        selection = Selection(
            resources_server=["conformance"],
            model_type="conformance_model",
            agent=agent,
            search_dir=[*(search_dir or ()), str(COMPONENTS)],
            allow_unsupported_pairing=True,
        )
        settings = {
            "conformance_scripts": str(scripts),
            "conformance_witness": str(witness),
            "observability_enabled": True,
            "model_call_capture_dir": str(folder / "model-calls"),
        }
        resolved = compose(
            selection, overrides, known_keys=("conformance_scripts", "conformance_witness"), initial=settings
        )
        return run_until_interrupted(_run(resolved, agent, chosen, folder, witness, as_json=as_json))


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
        print(format_report(report), flush=True)
    return 0 if report.fulfilled else 1


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="gym-conformance-", ignore_cleanup_errors=True) as name:
        yield Path(name)

"""Writes the pages that are made from the code: `python docs/generate.py` (`make docs`)."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from pydantic import TypeAdapter

sys.path.insert(0, str(Path(__file__).parent / "generator"))

from check_examples import CHECK_EXAMPLES
from code_pages import check_page, checks_page, gap_page, gaps_page
from gap_examples import GAP_EXAMPLES

from nemo_gym.cli.main import COMMANDS
from nemo_gym.records import observation_models
from nemo_gym.records.model_calls import ModelCallRecord
from nemo_gym.testing import HEALTH, ROWS, scenarios

DOCS = Path(__file__).parent

COMMAND_LINE_HEAD = """\
# The command line

This page is made from `gym --help`. Most flags are short forms of settings; a setting without a flag is given as
`+key=value`.

| token | effect |
|---|---|
| `+key=value` | adds a setting; an error when another `+` added it already |
| `++key=value` | adds or replaces |
| `key=value` | replaces a setting that exists |
| `~key` | deletes |
| `+a.b.c=value` | a nested setting |

Values are numbers, `true`, `false`, `null`, quoted text, `[a,b]`, `{k: v}` and `${other.key}`.

| exit code | meaning |
|---|---|
| 0 | it is done |
| 1 | a rollout, a server or a file failed; `gym capture check` and `gym conformance` found something |
| 2 | a mistake in what was asked |
| 3 | `gym eval status --check`, `+require_complete=true`: a run is not complete |
| 4 | `gym eval health-check --fail-on`: the verdicts are as named |
| 130, 143 | interrupted by Ctrl-C, ended by SIGTERM |

Results go to stdout, everything else to stderr.
"""

CONFORMANCE_HEAD = """\
# What an agent's evidence is worth

`gym conformance` plays scripted scenarios to an agent, with the real collector around it: to an agent server with
`--agent NAME`, to any program that takes a base URL with `--command 'PROGRAM ARGUMENTS'`. The model, the tools and the
verifier of the scenarios write down what really happened, and the records are held against that: a call that never
happened, another tool output than the model was given, a failed tool that is said to have worked, a time in which no
tool ran are found. The result is a table:

| mark | for a scenario and a row below |
|---|---|
| yes | fulfilled |
| NO | not fulfilled; why is said below the table |
| - | not called for by what happened: an agent that never got an answer owes no turns |
| ? | not provoked: no witness saw the scenario's event, so nothing is shown, whatever the record says |

The exit code is 1 when a row that applies is not fulfilled or a scenario was not provoked; `--skip SCENARIO` leaves out
what an agent does not have. `--json` prints the report, `--output-dir DIR` keeps records, captures and what the
witnesses wrote.

`simple_agent` fulfils every row; [Write an agent that gives evidence](write-an-agent.md) has a server and a program
that also retry and start a subagent. A program that reports nothing fulfils the rows that captured calls alone prove
(TE-1, TE-2, TE-4, TE-6, TE-7). From Python: `nemo_gym.testing.run_conformance`; `check_record` checks one saved record
alone. `check_resources_session_contract` of `nemo_gym.testing.session_conformance` asks the app of a resources server
with sessions by id whether it keeps their rules.

## Rows

| row | what it is about |
|---|---|
"""

SCHEMAS: dict[str, type] = {
    "agent-observation-bundle.json": observation_models.AgentObservationBundle,
    "trajectory.json": observation_models.TrajectoryRecord,
    "model-call-record.json": ModelCallRecord,
}


_PRINT_HELP = """
import contextlib, io, json, sys
from nemo_gym.cli import main

def said(words):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main.run([*words, "--help"]) == 0
    return out.getvalue()

json.dump([said(words) for words in json.loads(sys.argv[1])], sys.stdout)
"""


def command_line_page() -> str:
    """Return the page with the help of every command."""
    paths = [(), *COMMANDS]
    environment = {**os.environ, "COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}
    words = [sys.executable, "-c", _PRINT_HELP, json.dumps(paths)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    first, *others = map(_block, json.loads(done.stdout))
    parts = [f"\n## gym {' '.join(path)}\n\n{block}" for path, block in zip(COMMANDS, others, strict=True)]
    return "".join([COMMAND_LINE_HEAD, first, *parts])


def _block(said: str) -> str:
    text = "\n".join(line.rstrip() for line in said.strip().splitlines())
    return f"```text\n{text}\n```\n"


def conformance_page() -> str:
    """Return the page with every row and every scenario of the conformance kit."""
    rows = [f"| {row} | {meaning} |\n" for row, meaning in ROWS.items()]
    rows.append(f"| {HEALTH} | the findings of the health checks are those that what happened calls for |\n")
    told = [f"| `{item.name}` | {item.meaning} |\n" for item in scenarios(subagent_tool="delegate")]
    subagent = (
        "\nThe scenario with a subagent is played when `--subagent-tool NAME` names the agent's tool that starts one.\n"
    )
    return CONFORMANCE_HEAD + "".join(
        [*rows, "\n## Scenarios\n\n| scenario | what happens |\n|---|---|\n", *told, subagent]
    )


def schema_page(name: str) -> str:
    """Return one JSON Schema, with the description of every field."""
    kind = SCHEMAS[name]
    schema = msgspec.json.schema(kind) if issubclass(kind, msgspec.Struct) else TypeAdapter(kind).json_schema()
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "command-line.md": command_line_page,
    "gaps.md": gaps_page,
    "checks.md": checks_page,
    **{f"gaps/{code}.md": functools.partial(gap_page, code) for code in GAP_EXAMPLES},
    **{f"checks/{check}.md": functools.partial(check_page, check) for check in CHECK_EXAMPLES},
    "conformance.md": conformance_page,
    **{f"schemas/{name}": functools.partial(schema_page, name) for name in SCHEMAS},
}


FOLDERS = ("gaps", "checks", "schemas")
"""Folders in which every file is made here."""


def main() -> None:
    """Write every page, and remove those of codes that are gone."""
    for name, make in PAGES.items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(make(), encoding="utf-8")
    for path in left_over():
        path.unlink()


def left_over() -> list[Path]:
    """Return the files that stand among generated ones and are none."""
    return [path for name in FOLDERS for path in (DOCS / name).iterdir() if str(path.relative_to(DOCS)) not in PAGES]


if __name__ == "__main__":
    main()

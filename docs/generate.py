"""Writes the pages that are made from the code: `python docs/generate.py` (`make docs`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from nemo_gym.cli.main import COMMANDS
from nemo_gym.records.gaps import GAP_REGISTRY

DOCS = Path(__file__).parent

COMMAND_LINE_HEAD = """\
# The command line

This page is made from `gym --help`. Flags come first in a reader's eye, but a setting is worth as much: every flag is a
setting, and every setting can be given as `+key=value`.

| token | effect |
|---|---|
| `+key=value` | adds a setting; an error when another `+` added it already |
| `++key=value` | adds or replaces |
| `key=value` | replaces a setting that exists |
| `~key` | deletes |
| `+a.b.c=value` | a nested setting |

Values are numbers, `true`, `false`, `null`, quoted text, `[a,b]`, `{k: v}` and `${other.key}`.

Exit codes: 0; 1 the run has failures that you must see; 2 a mistake in what was asked; 130 interrupted.
Results go to stdout, everything else to stderr.
"""

GAPS_HEAD = """\
# What a gap means

A gap is a typed statement that something was not observed. It blocks the checks that would have needed it, and says
nothing about whether the task was solved. This page is made from the registry in `nemo_gym.records.gaps`; codes that
are not in it are legal, and neutral.

| code | meaning | scope | blocks | detail |
|---|---|---|---|---|
"""


def command_line_page() -> str:
    """Return the page with the help of every command."""
    parts = [COMMAND_LINE_HEAD, _block(())]
    for path in COMMANDS:
        parts.append(f"\n## gym {' '.join(path)}\n\n{_block(path)}")
    return "".join(parts)


def _block(path: tuple[str, ...]) -> str:
    environment = {**os.environ, "COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-m", "nemo_gym.cli.main", *path, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    text = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
    return f"```text\n{text}\n```\n"


def gaps_page() -> str:
    """Return the page with every registered gap code."""
    rows = []
    for spec in GAP_REGISTRY.values():
        blocks = ", ".join(sorted(str(item) for item in spec.blocks)) or "nothing"
        detail = f"`{spec.detail}`" if spec.detail else ""
        rows.append(f"| `{spec.code}` | {spec.meaning} | {spec.scope} | {blocks} | {detail} |\n")
    return GAPS_HEAD + "".join(rows)


PAGES = {"command-line.md": command_line_page, "gaps.md": gaps_page}


if __name__ == "__main__":
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), encoding="utf-8")

"""What the command line prints: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from nemo_gym.records.visible import visible, visible_cell

_WRAPPED = 24
"""Characters that a wrapped column needs to stay readable."""


def print_json(value: Any) -> None:
    """Print one line of JSON to stdout."""
    print(json.dumps(value, ensure_ascii=False, default=str), flush=True)


def show(text: str) -> None:
    """Print lines of a result to stdout; control characters of others in them are shown as escapes."""
    print(visible(text), flush=True)


def note(text: str) -> None:
    """Print a line that is no result to stderr. One that cannot be written goes nowhere: no command fails by it."""
    try:
        print(visible(text), file=sys.stderr, flush=True)
    except OSError:
        # What is left in the buffer would fail again when the interpreter ends, and change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, wrapped: str | None = None) -> None:
    """Print a table to stdout: drawn on a terminal, plain aligned text elsewhere, where nothing is cut or wrapped.

    `wrapped`: the column that is wrapped when the terminal is too narrow; the others never are. A terminal that is too
    narrow even so gets one block of lines per row.
    """
    cells = [[("" if cell is None else visible_cell(str(cell))) for cell in row] for row in rows]
    widths = [max(len(line[position]) for line in [list(columns), *cells]) for position in range(len(columns))]
    if sys.stdout.isatty():
        narrow = [
            min(width, _WRAPPED) if name == wrapped else width for name, width in zip(columns, widths, strict=True)
        ]
        if sum(narrow) + 3 * len(narrow) <= shutil.get_terminal_size().columns:
            _print_drawn(columns, cells, wrapped)
        else:
            _print_blocks(columns, cells)
        return
    for line in [[column.upper() for column in columns], *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    sys.stdout.flush()


def _print_blocks(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    width = max(len(column) for column in columns)
    for row in rows:
        named = [(column, cell) for column, cell in zip(columns, row, strict=True) if cell]
        print("\n".join(f"{column.ljust(width)}  {cell}" for column, cell in named), end="\n\n")
    sys.stdout.flush()


def _print_drawn(columns: Sequence[str], rows: Sequence[Sequence[str]], wrapped: str | None) -> None:
    # rich is imported only where a terminal shows it: the import takes longer than most commands.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column != wrapped, overflow="fold")
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    Console().print(table)

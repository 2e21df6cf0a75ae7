"""What others say is shown as text: it moves no cursor, hides no line and rings no bell."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from nemo_gym.cli import main
from nemo_gym.cli.output import note, print_table, show
from nemo_gym.records.visible import visible, visible_cell
from nemo_gym.rollouts.progress import TerminalProgress

CONTROLS = "".join(map(chr, (*range(9), *range(11, 32), *range(127, 160))))
SAID = f"\u2603 é {CONTROLS} end"


def is_plain(text: str) -> bool:
    return not any(character in CONTROLS for character in text)


def test_every_control_character_is_an_escape_and_everything_else_is_as_it_was() -> None:
    assert visible("a\x1b[2J\x07\x9b31m\r\x7f") == "a\\x1b[2J\\x07\\x9b31m\\x0d\\x7f"
    assert visible("tab\there\nnext \u2603 é 'x' \\") == "tab\there\nnext \u2603 é 'x' \\"
    assert visible_cell("tab\there\nnext \u2603\0") == "tab\\there\\nnext \u2603\\x00"
    assert is_plain(visible(SAID))
    assert is_plain(visible_cell(SAID))


@pytest.mark.parametrize("say", [note, show, lambda text: print_table(["a"], [[text]])], ids=["note", "show", "table"])
def test_what_is_printed_steers_no_terminal(capsys: pytest.CaptureFixture[str], say) -> None:
    say(SAID)
    printed = "".join(capsys.readouterr())
    assert "\u2603 é" in printed
    assert "\\x1b" in printed
    assert is_plain(printed)


def test_log_lines_and_notes_of_a_run_steer_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    root, stream = logging.getLogger(), io.StringIO()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(sys, "stderr", stream)
    level = root.level
    try:
        main._set_up_logging(verbose=False)
        logging.getLogger("nemo_gym.x").warning("it said %s", SAID)
    finally:
        root.setLevel(level)
    TerminalProgress(stream).note(SAID)
    assert stream.getvalue().count("\\x1b") == 2
    assert is_plain(stream.getvalue())

"""Text of others, fit to be shown: what a model, a program or an endpoint says must not steer the reader's terminal."""

from __future__ import annotations

from typing import Final

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_ALL_CONTROLS: Final = {**_CONTROLS, ord("\n"): "\\n", ord("\t"): "\\t"}


def visible(text: str) -> str:
    """Return `text` with control characters as escapes (`\\x1b`), except for line ends and tabs."""
    return text.translate(_CONTROLS)


def visible_cell(text: str) -> str:
    """Return `text` with every control character as an escape, so that it stays one cell of one line."""
    return text.translate(_ALL_CONTROLS)

"""Which answers are never handed to a scorer that evaluates them as Python. Pure.

Nine families of the package read an answer with `eval`, or with sympy's parser, which is `eval` behind a tokenizer.
"""

from __future__ import annotations

import ast
import re

LISTS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Their answers are plain text, or the same as a list: nothing in it is computed."""

FORMULAS = frozenset(
    {
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
    }
)
"""Their answers are arithmetic."""

_WORDS = re.compile(r"[\w\s]*", re.ASCII)
_FORMULA = re.compile(r"[A-Za-z0-9+\-*/^().,\s]*")
_NAME = re.compile(r"[A-Za-z]{2,}")
_FUNCTIONS = frozenset({"exp", "log", "ln", "sqrt", "Abs", "pi"}).union(
    *({name, f"a{name}", f"{name}h", f"a{name}h"} for name in ("sin", "cos", "tan", "cot", "sec", "csc"))
)


def refusal(dataset: str, answer: str, expected: object) -> str | None:
    """Return why an answer is not scored, or None when it may be.

    A list answer is words and whitespace, or a literal. A formula holds digits, `+-*/^().,`, whitespace, single
    letters, the elementary functions, and the names that the row's own `expected` answer holds.
    """
    if dataset in LISTS:
        return None if _WORDS.fullmatch(answer) or _is_literal(answer) else "the answer is neither words nor a literal"
    if dataset not in FORMULAS:
        return None
    if not _FORMULA.fullmatch(answer):
        return "the answer is no formula: it holds other characters than digits, letters and `+-*/^().,`"
    known = _FUNCTIONS.union(_NAME.findall(expected) if isinstance(expected, str) else ())
    unknown = [name for name in _NAME.findall(answer) if name not in known]
    return f"the answer is no formula: `{unknown[0][:40]}` is no name of this task" if unknown else None


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True

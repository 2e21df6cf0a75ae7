"""Every numbered promise of the specification is named by a test: in its name, or in a docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PROMISES = [f"A{number}" for number in range(1, 29)] + [f"C{number}" for number in range(1, 20)]
_NUMBER = r"(?<![A-Za-z0-9])[AC]\d+(?![A-Za-z0-9])"
_IN_NAMES, _IN_TEXT = re.compile(_NUMBER, re.IGNORECASE), re.compile(_NUMBER)


def _named() -> set[str]:
    found = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
                found |= {number.upper() for number in _IN_NAMES.findall(getattr(node, "name", ""))}
                found |= set(_IN_TEXT.findall(ast.get_docstring(node) or ""))  # `c1` may be a call in an example
    return found


def test_every_promise_is_named_by_a_test() -> None:
    named = _named()
    assert [promise for promise in PROMISES if promise not in named] == []

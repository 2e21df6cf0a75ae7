"""Every numbered promise of the specification is named by a test: in its name, or in a docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PROMISES = [f"A{number}" for number in range(1, 29)] + [f"C{number}" for number in range(1, 20)]
_NUMBER = re.compile(r"(?<![A-Za-z0-9])[AC]\d+(?![A-Za-z0-9])", re.IGNORECASE)


def _named() -> set[str]:
    found = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
                words = f"{getattr(node, 'name', '')} {ast.get_docstring(node) or ''}"
                found |= {number.upper() for number in _NUMBER.findall(words)}
    return found


def test_every_promise_is_named_by_a_test() -> None:
    named = _named()
    assert [promise for promise in PROMISES if promise not in named] == []

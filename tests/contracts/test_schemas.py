"""Every field of a public schema says what it holds, in which unit, and what null means."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCHEMAS = sorted((Path(__file__).parents[2] / "docs" / "schemas").glob("*.json"))
UNITS = {
    r"_ms$": "millisecond",
    r"_time_s$": "second",
    r"_mib$": "MiB",
    r"(_at|^timestamp)$": "UTC Unix second",
    r"(^|_)tokens(_|$)": "token",
}


def objects(schema: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object with properties, by the name of its definition."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield schema.get("title", name), schema
        for key, value in schema.items():
            yield from objects(value, key)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value, name)


def undescribed(schema: Any) -> list[str]:
    """Return what is missing, as `Object.field: what`."""
    missing = []
    for title, found in objects(schema, "schema"):
        if not found.get("description"):
            missing.append(f"{title}: description")
        for field, facts in found["properties"].items():
            said = facts.get("description", "")
            nullable = '"null"' in json.dumps(facts) or ("default" in facts and facts["default"] is None)
            needed = [unit for pattern, unit in UNITS.items() if re.search(pattern, field)]
            needed += ["null"] if nullable else []
            if not said.endswith("."):
                missing.append(f"{title}.{field}: description")
            missing += [f"{title}.{field}: {word}" for word in needed if word not in said]
    return missing


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_every_field_says_what_it_holds_its_unit_and_what_null_means(path: Path) -> None:
    schema = json.loads(path.read_text(encoding="utf-8"))
    assert len(list(objects(schema, path.stem))) > 1
    assert undescribed(schema) == []


def test_a_field_that_says_nothing_is_noticed() -> None:
    fields = {
        "wait_ms": {"type": "number", "description": "How long it waited."},
        "name": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "description": "The name."},
        "silent": {"type": "string"},
    }
    schema = {"$defs": {"Inner": {"title": "Inner", "description": "One.", "properties": fields}}}
    assert undescribed(schema) == ["Inner.wait_ms: millisecond", "Inner.name: null", "Inner.silent: description"]

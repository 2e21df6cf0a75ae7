"""The generic merge of section 3.1, the cumulative rule of usage, and the pairing of surrogate halves (rule 10)."""

from __future__ import annotations

import base64
import copy
import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.dialects.merge import IDENTIFIER_KEYS, Assembly, overwrite_known, repair_surrogates

KEYS = st.sampled_from(["id", "type", "name", "a", "b", "c"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(0, 9), st.text("xyz", max_size=3))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)


def reference(target: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    """The rule as the contract words it, on plain values."""
    result = dict(target)
    for key, value in source.items():
        current = result.get(key)
        if value is None:
            continue
        texts = isinstance(value, str) and isinstance(current, str) and key not in IDENTIFIER_KEYS
        if texts or (isinstance(value, list) and isinstance(current, list)):
            result[key] = current + value
        elif isinstance(value, dict) and isinstance(current, dict):
            result[key] = reference(current, value)
        else:
            result[key] = value
    return result


@given(st.lists(OBJECTS, max_size=5))
@settings(max_examples=200, deadline=None)
def test_merging_pieces_follows_the_rule(pieces: list[dict[str, Any]]) -> None:
    wanted: dict[str, Any] = {}
    for piece in pieces:
        wanted = reference(wanted, piece)
    assembly, target = Assembly(), {}
    for piece in copy.deepcopy(pieces):
        assembly.merge(target, piece)
    assembly.settle()
    assert target == wanted


@given(st.lists(OBJECTS, max_size=5), st.data())
@settings(max_examples=100, deadline=None)
def test_reading_in_between_changes_nothing(pieces: list[dict[str, Any]], data: st.DataObject) -> None:
    settled, plain = Assembly(), Assembly()
    one: dict[str, Any] = {}
    two: dict[str, Any] = {}
    for piece in pieces:
        settled.merge(one, copy.deepcopy(piece))
        plain.merge(two, copy.deepcopy(piece))
        if data.draw(st.booleans()):
            settled.settle()
    settled.settle()
    plain.settle()
    assert one == two


@given(st.text(max_size=20), st.lists(st.integers(0, 20), max_size=5))
@settings(max_examples=100, deadline=None)
def test_a_string_is_the_same_however_it_was_cut(text: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assembly, target = Assembly(), {}
    for a, b in itertools.pairwise(edges):
        assembly.append(target, "text", text[a:b])
    assembly.settle()
    assert target == {"text": text}


def test_cumulative_values_replace_but_nulls_do_not() -> None:
    target = {"a": 1, "d": {"x": 1, "y": 2}, "l": [1]}
    overwrite_known(target, {"a": None, "d": {"x": 5, "y": None, "z": 0}, "l": [2], "n": 0})
    assert target == {"a": 1, "d": {"x": 5, "y": 2, "z": 0}, "l": [2], "n": 0}


@given(st.text(st.characters(exclude_categories=()), max_size=12))
@settings(max_examples=200, deadline=None)
def test_repaired_strings_can_be_encoded_and_good_ones_are_untouched(text: str) -> None:
    halves = "".join(chr(unit) for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"))
    repaired, lone = repair_surrogates([[halves], {halves: halves}])
    (inner,), mapping = repaired
    assert mapping == {inner: inner}
    inner.encode()
    is_good = not any("\ud800" <= character <= "\udfff" for character in text)
    assert lone != is_good or not text
    if is_good:
        assert inner == text


def test_deep_nesting_is_repaired_without_recursion() -> None:
    value: Any = "\ud83d"
    for _ in range(5_000):
        value = [value]
    repaired, lone = repair_surrogates(value)
    for _ in range(5_000):
        (repaired,) = repaired
    assert (repaired, lone) == ("\ufffd", True)


def test_base64_pieces_with_padding_are_one_text() -> None:
    from nemo_gym.dialects.merge import Base64Rope

    pieces = [base64.b64encode(piece).decode() for piece in (b"a", b"bb", b"ccc")]
    assert base64.b64decode(Base64Rope(pieces).join()) == b"abbccc"

"""The grammar of `+key=value` and its siblings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.config.overrides import parse_override, parse_value
from nemo_gym.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-7", -7),
        ("1_000", 1000),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1e-5", 1e-5),
        ("1e3", 1000.0),
        ("inf", math.inf),
        ("true", True),
        ("False", False),
        ("null", None),
        ("", ""),
        ("plain text", "plain text"),
        ("'3'", "3"),
        ('"true"', "true"),
        (r"'it\'s'", "it's"),
        (r'"a\\b"', "a\\b"),
        ("[1, two, 'three, four']", [1, "two", "three, four"]),
        ("[]", []),
        ("[[1],[2,3]]", [[1], [2, 3]]),
        ("{a:1,b:{c:[x]}}", {"a": 1, "b": {"c": ["x"]}}),
        ("{}", {}),
        ('{"a": "b:c"}', {"a": "b:c"}),
        ("{url:http://h:1/v1}", {"url": "http://h:1/v1"}),
        ('["A","B"]', ["A", "B"]),
        ("${other.key}", "${other.key}"),
        ("[${a.b},${oc.env:X,y}]", ["${a.b}", "${oc.env:X,y}"]),
        ("http://host:8000/v1?a=b&c=d", "http://host:8000/v1?a=b&c=d"),
        ("runs/rollouts-*.jsonl,other.jsonl", "runs/rollouts-*.jsonl,other.jsonl"),
        ("1.2.3", "1.2.3"),
        ("12ab", "12ab"),
        ("e5", "e5"),
        ("gpt-4o", "gpt-4o"),
    ],
)
def test_a_value_has_the_type_that_it_looks_like(text: str, value: object) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("token", "operation", "path", "value"),
    [
        ("+limit=2", "add", ("limit",), 2),
        ("++limit=1", "force", ("limit",), 1),
        ("limit=1", "set", ("limit",), 1),
        ("~limit", "delete", ("limit",), None),
        ("+a.b-c.d=x", "add", ("a", "b-c", "d"), "x"),
        ("++list[0].name=x", "force", ("list", 0, "name"), "x"),
        ("+query=a=b", "add", ("query",), "a=b"),
        ("+empty=", "add", ("empty",), ""),
    ],
)
def test_a_token_says_what_to_do_where(token: str, operation: str, path: tuple[str | int, ...], value: object) -> None:
    override = parse_override(token)
    assert (override.operation, override.path, override.value) == (operation, path, value)


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        ("word", r"unexpected argument `word`"),
        ("+word", r"unexpected argument `\+word`"),
        ("=3", "is not a key"),
        ("+a..b=3", "is not a key"),
        ("+a b=3", "is not a key"),
        ("~a=3", r"write `~a`"),
        ("+a=[1,2", r"`\[` is not closed.*character 5"),
        ("+a={b 1}", "a `:` is missing"),
        ("+a='x", "quote ' is not closed"),
        ("+a='x' y", "`y` is left over"),
        ("+a=[1,,2]", "a value is missing"),
        ("+a={[1]:2}", "key must be plain"),
    ],
)
def test_a_bad_token_is_named_with_what_is_wrong(token: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_override(token)


@given(
    st.recursive(
        st.integers() | st.booleans() | st.none() | st.text(st.characters(blacklist_categories=["Cs"])),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(blacklist_categories=["Cs"])), inner),
        max_leaves=12,
    )
)
def test_whatever_is_written_with_quotes_is_read_back(value: object) -> None:
    def written(item: object) -> str:
        if isinstance(item, str):
            escaped = item.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        if isinstance(item, list):
            return "[" + ", ".join(written(inner) for inner in item) + "]"
        if isinstance(item, dict):
            return "{" + ", ".join(f"{written(key)}: {written(inner)}" for key, inner in item.items()) + "}"
        return (
            {None: "null", True: "true", False: "false"}.get(item, str(item))
            if not isinstance(item, int) or isinstance(item, bool)
            else str(item)
        )

    assert parse_value(written(value)) == value


def problem_of(token: str) -> str | None:
    """What is wrong with a token; anything but a `ConfigError` escapes."""
    try:
        parse_override(token)
    except ConfigError as error:
        return str(error)
    return None


@given(st.text(max_size=60) | st.text(alphabet="+~=.[]{}'\"\\,:$-_ 0123456789e²٣ainf\n", max_size=60))
def test_only_a_config_error_ever_escapes(text: str) -> None:
    for token in (text, f"+{text}", f"+a={text}", f"++a[{text}]=1"):
        problem_of(token)


@given(st.sampled_from("[{9'a.-"), st.integers(min_value=1, max_value=6000))
def test_no_length_and_no_depth_is_a_traceback_or_more_than_a_line(character: str, count: int) -> None:
    for token in (f"+a={character * count}", f"+a[{character * count}]=1", "+a" + ".a" * count + "=1"):
        problem = problem_of(token) or ""
        assert "\n" not in problem
        assert len(problem) < 1000


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        ("+limit=" + "9" * 5000, "a number of 5000 characters"),
        ("+a=" + "[" * 3000, "nested more than 50 deep"),
        ("+a=" + "{a:" * 3000, "nested more than 50 deep"),
        ("+a" + ".a" * 3000 + "=1", "nested more than 50 deep"),
    ],
)
def test_numbers_and_nesting_have_a_bound(token: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_override(token)

"""The usage table of section 4.1; unknown stays unknown (acceptance 11)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.dialects import TokenCounts, token_counts, usage_details, usage_of

OPENAI = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 80, "cache_write_tokens": 7},
    "completion_tokens_details": {"reasoning_tokens": 5},
}
ANTHROPIC = {
    "input_tokens": 10,
    "output_tokens": 7,
    "cache_read_input_tokens": 90,
    "cache_creation_input_tokens": 5,
    "output_tokens_details": {"thinking_tokens": 3},
}


@pytest.mark.parametrize(
    ("usage", "dialect", "wanted"),
    [
        pytest.param(OPENAI, "chat", TokenCounts(100, 20, 5, 120, 80, 7, True), id="openai"),
        pytest.param(ANTHROPIC, "messages", TokenCounts(105, 7, 3, 112, 90, 5, True), id="anthropic"),
        pytest.param(ANTHROPIC, None, TokenCounts(105, 7, 3, 112, 90, 5, True), id="anthropic-unknown-dialect"),
        pytest.param(
            {**OPENAI, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 0},
            "chat",
            TokenCounts(100, 20, 5, 120, 80, 0, True),
            id="litellm-chat-counts-once",
        ),
        pytest.param(
            {"input_tokens": 100, "output_tokens": 1, "total_tokens": 101, "cache_read_input_tokens": 80},
            None,
            TokenCounts(100, 1, None, 101, 80, None, True),
            id="total-already-adds-up",
        ),
        pytest.param(
            {"input_tokens": 100, "prompt_tokens": 100, "cache_read_input_tokens": 80},
            "messages",
            TokenCounts(100, None, None, None, 80, None, True),
            id="prompt-tokens-beside-input-tokens",
        ),
        pytest.param(
            {"input_tokens": 3, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 0}, "total_tokens": 9},
            "responses",
            TokenCounts(3, 2, None, 9, 0, None, False),
            id="responses-total-wins",
        ),
        pytest.param(
            {"input_tokens": 3, "cache_read_input_tokens": 2},
            "responses",
            TokenCounts(3, None, None, None, 2, None, True),
            id="responses-never-adds",
        ),
        pytest.param(
            {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0},
            "messages",
            TokenCounts(cached_tokens=0, cache_creation_tokens=0, cache_hit=False),
            id="cache-keys-invent-no-prompt",
        ),
        pytest.param(
            {"input_tokens": 1, "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 3}},
            "messages",
            TokenCounts(tokens_in=6, cache_creation_tokens=5),
            id="anthropic-split",
        ),
        pytest.param(
            {"prompt_tokens": 5, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 1},
            "chat",
            TokenCounts(tokens_in=5, cached_tokens=4, cache_hit=True),
            id="deepseek",
        ),
        pytest.param({"cached_tokens": 4}, "chat", TokenCounts(cached_tokens=4, cache_hit=True), id="moonshot"),
        pytest.param({"cached_input_tokens": 0}, "chat", TokenCounts(cached_tokens=0, cache_hit=False), id="alias"),
        pytest.param({"thoughts_token_count": 4}, "chat", TokenCounts(tokens_reasoning=4), id="gemini"),
        pytest.param({"reasoning_output_tokens": 4}, "chat", TokenCounts(tokens_reasoning=4), id="codex"),
        pytest.param({"prompt_tokens": True, "completion_tokens": 1.0}, "chat", TokenCounts(), id="no-integers"),
        pytest.param({"prompt_tokens": -1, "completion_tokens": "2"}, "chat", TokenCounts(), id="not-counts"),
        pytest.param({"input_tokens": None, "prompt_tokens": 2}, "chat", TokenCounts(tokens_in=2), id="null"),
        pytest.param(None, "chat", TokenCounts(), id="nothing"),
        pytest.param([1], None, TokenCounts(), id="list"),
    ],
)
def test_counts(usage: Any, dialect: Any, wanted: TokenCounts) -> None:
    assert token_counts(usage, dialect) == wanted


PLACES = [
    *("input_tokens", "prompt_tokens", "output_tokens", "completion_tokens", "total_tokens"),
    *("prompt_tokens_details", "input_tokens_details", "output_tokens_details", "completion_tokens_details"),
    *("cached_tokens", "cached_input_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens"),
    *("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens", "cache_creation"),
    *("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"),
    *("reasoning_tokens", "thinking_tokens", "reasoning_output_tokens", "thoughts_token_count"),
]
COUNT = st.one_of(st.none(), st.integers(-1, 50), st.booleans(), st.just("4"))
DETAILS = st.one_of(
    st.none(), st.dictionaries(st.sampled_from(["cached_tokens", "reasoning_tokens", "thinking_tokens"]), COUNT)
)
USAGE = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(
            (
                "input_tokens",
                "prompt_tokens",
                "output_tokens",
                "completion_tokens",
                "total_tokens",
                "cache_read_input_tokens",
                "cache_creation_input_tokens",
            ),
            COUNT,
        ),
        "prompt_tokens_details": DETAILS,
        "output_tokens_details": DETAILS,
    },
)


@given(USAGE, st.sampled_from(["responses", "chat", "messages", None]))
@settings(max_examples=300, deadline=None)
def test_counts_are_true_or_unknown_and_never_invented(usage: dict[str, Any], dialect: Any) -> None:
    counts = token_counts(usage, dialect)
    numbers = (counts.tokens_in, counts.tokens_out, counts.tokens_reasoning, counts.tokens_total, counts.cached_tokens)
    assert all(number is None or (type(number) is int and number >= 0) for number in numbers)
    given_in = [usage.get(key) for key in ("input_tokens", "prompt_tokens")]
    if not any(type(value) is int and value >= 0 for value in given_in):
        assert counts.tokens_in is None
    elif dialect in ("chat", "responses"):
        assert counts.tokens_in in given_in
    total = usage.get("total_tokens")
    if type(total) is int and total >= 0:
        assert counts.tokens_total == total
    elif None in (counts.tokens_in, counts.tokens_out):
        assert counts.tokens_total is None
    assert counts.cache_hit == (None if counts.cached_tokens is None else counts.cached_tokens > 0)


@given(
    st.dictionaries(st.sampled_from(PLACES), COUNT | st.dictionaries(st.sampled_from(PLACES), COUNT)),
    st.sampled_from(["responses", "chat", "messages", None]),
)
@settings(max_examples=500, deadline=None)
def test_a_place_that_is_not_there_says_what_null_says(usage: dict[str, Any], dialect: Any) -> None:
    """Only the places that a usage object has are looked at; the others cannot change what is found."""
    everywhere = {**dict.fromkeys(PLACES), **usage}
    assert token_counts(usage, dialect) == token_counts(everywhere, dialect)
    backwards = dict(reversed(everywhere.items()))
    assert token_counts(backwards, dialect) == token_counts(usage, dialect)


def test_usage_is_found_where_providers_put_it() -> None:
    assert usage_of({"usage": {"a": 1}, "x_groq": {"usage": {"b": 1}}}) == {"a": 1}
    assert usage_of({"usage": None, "x_groq": {"usage": {"b": 1}}}) == {"b": 1}
    assert usage_of({"choices": [1, {"usage": {"c": 1}}]}) == {"c": 1}
    assert usage_of({"usage": [], "choices": None}) is None
    assert usage_of("x") is None


def test_details_name_split_tools_iterations_and_reasoning_outside_the_output() -> None:
    details = usage_details(
        {
            "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": None},
            "server_tool_use": {"web_search_requests": 1, "odd": "x"},
            "iterations": [{"input_tokens": 1, "output_tokens": 2}],
        },
        "messages",
    )
    assert (details.cache_creation_5m_tokens, details.cache_creation_1h_tokens) == (2, None)
    assert details.server_tool_use == {"web_search_requests": 1}
    assert details.iterations == (TokenCounts(1, 2, None, 3),)
    grok = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 22,
        "completion_tokens_details": {"reasoning_tokens": 7},
    }
    assert usage_details(grok, "chat").notes == ("reasoning_outside_output",)
    assert token_counts(grok, "chat").tokens_out == 5
    assert usage_details(OPENAI, "chat").notes == ()

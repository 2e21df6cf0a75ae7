"""Token counts out of any provider's usage object. Source: capture contract 4.1; unknown is None, never 0.

`tokens_in` is the true size of the prompt, not a cost. OpenAI-shaped and Responses-shaped input counts contain cached
tokens; Anthropic's `input_tokens` leaves them out, so only there they are added.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from nemo_gym.dialects.names import Dialect
from nemo_gym.records.codec import JsonObject

_INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_OUTPUT_DETAILS = ("output_tokens_details", "completion_tokens_details")
# Where each count may stand, in the order in which places are believed.
_OUTPUT = ("output_tokens", "completion_tokens")
_CACHED_IN_DETAILS = ("cached_tokens", "cached_input_tokens")
_CACHED = ("cache_read_input_tokens", "cached_input_tokens", "prompt_cache_hit_tokens", "cached_tokens")
_ANTHROPIC_CACHE = ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation")
_WRITTEN_IN_DETAILS = ("cache_write_tokens", "cache_creation_tokens")
_REASONING_IN_DETAILS = ("reasoning_tokens", "thinking_tokens")
_REASONING = ("reasoning_output_tokens", "thoughts_token_count", "reasoning_tokens")


class TokenCounts(msgspec.Struct, frozen=True, gc=False):
    """Normalised counts of one call; None where the provider said nothing usable."""

    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_reasoning: int | None = None
    tokens_total: int | None = None
    cached_tokens: int | None = None
    cache_creation_tokens: int | None = None
    cache_hit: bool | None = None


@dataclass(frozen=True, slots=True)
class UsageDetails:
    """What a usage object says beyond the counts.

    `cache_creation_5m_tokens` and `_1h_tokens` split the cache write by lifetime; `server_tool_use` counts requests
    by tool; `iterations` are the counts of each step of a call that ran several; `notes` name peculiarities:
    `reasoning_outside_output` (the total holds reasoning on top of the output count).
    """

    cache_creation_5m_tokens: int | None = None
    cache_creation_1h_tokens: int | None = None
    server_tool_use: Mapping[str, int] | None = None
    iterations: tuple[TokenCounts, ...] = ()
    notes: tuple[str, ...] = ()


def token_counts(usage: object, dialect: Dialect | None) -> TokenCounts:
    """Return the counts in `usage`, whatever its shape; a count is valid only as a true integer >= 0."""
    if not isinstance(usage, dict):
        return TokenCounts()
    places = _places(tuple(filter(_is_place, usage)))
    cached = _cached_tokens(usage, places) if places.cached or places.input_details else None
    tokens_out = _first(usage, places.output)
    total = _count(usage.get("total_tokens"))
    tokens_in = _count(usage.get("input_tokens"))
    if tokens_in is None:
        tokens_in = _count(usage.get("prompt_tokens"))
    elif places.anthropic_cache and _leaves_cache_out(usage, dialect, tokens_in, tokens_out, total):
        tokens_in += _count(usage.get("cache_read_input_tokens")) or 0
        tokens_in += _anthropic_cache_write(usage) or 0
    if total is None and tokens_in is not None and tokens_out is not None:
        total = tokens_in + tokens_out
    return TokenCounts(
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        tokens_reasoning=(_reasoning_tokens(usage, places) if places.reasoning or places.output_details else None),
        tokens_total=total,
        cached_tokens=cached,
        cache_creation_tokens=(
            _cache_creation_tokens(usage, places) if places.anthropic_cache or places.input_details else None
        ),
        cache_hit=None if cached is None else cached > 0,
    )


def usage_of(response: object) -> JsonObject | None:
    """Return the usage object of a finished answer: the usual one, else Groq's `x_groq.usage`, else a choice's own."""
    if not isinstance(response, dict):
        return None
    usual = response.get("usage")
    if isinstance(usual, dict) and usual:
        return usual
    groq = response.get("x_groq")
    choices = response.get("choices")
    places = [groq.get("usage") if isinstance(groq, dict) else None]
    if isinstance(choices, list):
        places.extend(choice.get("usage") for choice in choices if isinstance(choice, dict))
    return next((place for place in places if isinstance(place, dict) and place), None)


def usage_details(usage: object, dialect: Dialect | None) -> UsageDetails:
    """Return what `usage` says beyond the counts."""
    if not isinstance(usage, dict):
        return UsageDetails()
    split, tools, steps = usage.get("cache_creation"), usage.get("server_tool_use"), usage.get("iterations")
    split = split if isinstance(split, dict) else {}
    used = None
    if isinstance(tools, dict):
        used = {str(name): count for name, value in tools.items() if (count := _count(value)) is not None}
    counts = token_counts(usage, dialect)
    notes: list[str] = []
    known = (counts.tokens_in, counts.tokens_out, counts.tokens_reasoning, counts.tokens_total)
    if counts.tokens_reasoning and None not in known:
        whole, reasoning = counts.tokens_total, counts.tokens_reasoning
        if whole == (counts.tokens_in or 0) + (counts.tokens_out or 0) + reasoning:
            notes.append("reasoning_outside_output")
    return UsageDetails(
        cache_creation_5m_tokens=_count(split.get("ephemeral_5m_input_tokens")),
        cache_creation_1h_tokens=_count(split.get("ephemeral_1h_input_tokens")),
        server_tool_use=used or None,
        iterations=tuple(token_counts(step, dialect) for step in steps) if isinstance(steps, list) else (),
        notes=tuple(notes),
    )


class _Places(NamedTuple):
    """Those of the keys above that a usage object has, in their order. What it has not cannot say anything."""

    output: tuple[str, ...]
    cached: tuple[str, ...]
    reasoning: tuple[str, ...]
    input_details: tuple[str, ...]
    output_details: tuple[str, ...]
    anthropic_cache: tuple[str, ...]


@functools.lru_cache(maxsize=256)
def _places(names: tuple[str, ...]) -> _Places:
    """Return the places among these keys; the usage objects of one provider all have the same ones."""
    return _Places(*(tuple(key for key in keys if key in names) for keys in _ALL_PLACES))


_ALL_PLACES = _Places(_OUTPUT, _CACHED, _REASONING, _INPUT_DETAILS, _OUTPUT_DETAILS, _ANTHROPIC_CACHE)
_is_place = frozenset(itertools.chain(*_ALL_PLACES)).__contains__


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _first(source: JsonObject, keys: tuple[str, ...]) -> int | None:
    for key in keys:
        value = source.get(key)
        if type(value) is int and value >= 0:
            return value
    return None


def _first_in_details(usage: JsonObject, details: tuple[str, ...], keys: tuple[str, ...]) -> int | None:
    for name in details:
        inner = usage.get(name)
        count = _first(inner, keys) if isinstance(inner, dict) else None
        if count is not None:
            return count
    return None


def _cached_tokens(usage: JsonObject, places: _Places) -> int | None:
    count = _first_in_details(usage, places.input_details, _CACHED_IN_DETAILS)
    return _first(usage, places.cached) if count is None else count


def _anthropic_cache_write(usage: JsonObject) -> int | None:
    count = _count(usage.get("cache_creation_input_tokens"))
    split = usage.get("cache_creation")
    if count is not None or not isinstance(split, dict):
        return count
    parts = [_count(split.get(key)) for key in ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _cache_creation_tokens(usage: JsonObject, places: _Places) -> int | None:
    count = _anthropic_cache_write(usage)
    if count is not None:
        return count
    return _first_in_details(usage, places.input_details, _WRITTEN_IN_DETAILS)


def _reasoning_tokens(usage: JsonObject, places: _Places) -> int | None:
    count = _first_in_details(usage, places.output_details, _REASONING_IN_DETAILS)
    return _first(usage, places.reasoning) if count is None else count


def _leaves_cache_out(
    usage: JsonObject, dialect: Dialect | None, tokens_in: int, tokens_out: int | None, total: int | None
) -> bool:
    """Return whether `input_tokens` is Anthropic's, without the cached part.

    Proxies put Anthropic's cache keys beside an inclusive count: `prompt_tokens` beside them, another dialect, or a
    total that already adds up, say that nothing is missing.
    """
    if usage.get("prompt_tokens") is not None:
        return False
    if dialect is not None:
        return dialect == "messages"
    return tokens_out is None or total != tokens_in + tokens_out

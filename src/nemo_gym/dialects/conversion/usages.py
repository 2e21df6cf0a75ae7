"""Token usage from one dialect's shape to another's. Unknown stays null; only a shape that requires a number gets 0."""

from __future__ import annotations

from typing import Any

from nemo_gym.dialects.conversion.refusal import Notes
from nemo_gym.dialects.conversion.shapes import as_object
from nemo_gym.records.codec import JsonObject

UNKNOWN_USAGE = "`usage` is unknown; the zeros in the answer stand for unknown"
"""The note of an answer whose counts only fill its shape: whoever keeps a record must not take them for counts."""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _first(*values: Any) -> int | None:
    return next((count for count in map(_count, values) if count is not None), None)


def _responses_usage(
    tokens_in: int | None,
    tokens_out: int | None,
    total: int | None,
    *,
    cached: int | None,
    written: int | None,
    reasoning: int | None,
) -> JsonObject | None:
    if tokens_in is None or tokens_out is None:
        return None
    details: JsonObject = {"cached_tokens": cached}
    if written is not None:
        details["cache_write_tokens"] = written
    return {
        "input_tokens": tokens_in,
        "input_tokens_details": details,
        "output_tokens": tokens_out,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": tokens_in + tokens_out if total is None else total,
    }


def usage_from_chat(usage: Any, notes: Notes) -> JsonObject | None:
    """Return Responses usage of Chat usage; None, noted, when the prompt's or the completion's count is missing."""
    if not isinstance(usage, dict):
        return None
    inputs, outputs = as_object(usage.get("prompt_tokens_details")), as_object(usage.get("completion_tokens_details"))
    converted = _responses_usage(
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
        _count(usage.get("total_tokens")),
        cached=_first(
            inputs.get("cached_tokens"),
            inputs.get("cached_input_tokens"),
            usage.get("cached_input_tokens"),
            usage.get("cache_read_input_tokens"),
            usage.get("prompt_cache_hit_tokens"),
            usage.get("cached_tokens"),
        ),
        written=_first(inputs.get("cache_write_tokens"), usage.get("cache_creation_input_tokens")),
        reasoning=_first(outputs.get("reasoning_tokens"), usage.get("reasoning_output_tokens")),
    )
    if converted is None:
        notes.append("`usage` dropped: the prompt's or the completion's count is missing")
    return converted


def chat_usage(usage: Any) -> JsonObject | None:
    """Return Chat usage of Responses usage."""
    if not isinstance(usage, dict):
        return None
    tokens_in, tokens_out = _count(usage.get("input_tokens")), _count(usage.get("output_tokens"))
    if tokens_in is None or tokens_out is None:
        return None
    total = _count(usage.get("total_tokens"))
    converted: JsonObject = {
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out if total is None else total,
    }
    cached = _count(as_object(usage.get("input_tokens_details")).get("cached_tokens"))
    reasoning = _count(as_object(usage.get("output_tokens_details")).get("reasoning_tokens"))
    if cached is not None:
        converted["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning is not None:
        converted["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return converted


def usage_from_messages(usage: Any, notes: Notes) -> JsonObject | None:
    """Return Responses usage of Messages usage, whose `input_tokens` leave cached tokens out."""
    if not isinstance(usage, dict):
        return None
    read, written = _count(usage.get("cache_read_input_tokens")), _count(usage.get("cache_creation_input_tokens"))
    fresh = _count(usage.get("input_tokens"))
    converted = _responses_usage(
        None if fresh is None else fresh + (read or 0) + (written or 0),
        _count(usage.get("output_tokens")),
        None,
        cached=read,
        written=written,
        reasoning=_count(as_object(usage.get("output_tokens_details")).get("thinking_tokens")),
    )
    if converted is None:
        notes.append("`usage` dropped: the input's or the output's count is missing")
    return converted


def messages_usage(usage: Any, notes: Notes) -> JsonObject:
    """Return Messages usage of Responses usage; zeros, noted, when there is none, since the shape requires numbers."""
    tokens_in = _count(usage.get("input_tokens")) if isinstance(usage, dict) else None
    tokens_out = _count(usage.get("output_tokens")) if isinstance(usage, dict) else None
    if not isinstance(usage, dict) or tokens_in is None or tokens_out is None:
        notes.append(UNKNOWN_USAGE)
        return {"input_tokens": 0, "output_tokens": 0}
    details = as_object(usage.get("input_tokens_details"))
    cached, written = _count(details.get("cached_tokens")), _count(details.get("cache_write_tokens"))
    converted: JsonObject = {
        "input_tokens": max(0, tokens_in - (cached or 0) - (written or 0)),
        "output_tokens": tokens_out,
    }
    if cached is not None:
        converted["cache_read_input_tokens"] = cached
        converted["cache_creation_input_tokens"] = written or 0
    reasoning = _count(as_object(usage.get("output_tokens_details")).get("reasoning_tokens"))
    if reasoning is not None:
        converted["output_tokens_details"] = {"thinking_tokens": reasoning}
    return converted

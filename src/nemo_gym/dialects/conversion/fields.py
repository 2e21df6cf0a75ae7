"""Field names of the dialects' requests, and what the canonical form carries for another dialect's backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nemo_gym.dialects.conversion.refusal import Notes
from nemo_gym.dialects.conversion.shapes import as_object
from nemo_gym.records.codec import JsonObject, decode, encode

RESPONSES_FIELDS = frozenset(
    [
        "background",
        "context_management",
        "conversation",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "model",
        "moderation",
        "parallel_tool_calls",
        "previous_response_id",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
    ]
)
CHAT_FIELDS = frozenset(
    [
        "audio",
        "chat_template_kwargs",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "modalities",
        "model",
        "moderation",
        "n",
        "output_config",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
        "web_search_options",
    ]
)
SHARED_SETTINGS = (
    "temperature",
    "top_p",
    "top_logprobs",
    "user",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
)
"""Settings that mean the same in Responses and in Chat."""

TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
OPTIONAL_TOKEN_FIELD = "routed_experts"  # a field's name, not a secret

FUNCTION_KEYS = frozenset({"type", "name", "description", "parameters", "strict", "format"})
"""What is carried of a flat function or custom tool."""

EXTRA_BODY = "extra_body"
CHAT_TEMPLATE_KWARGS = "chat_template_kwargs"


def carry_extra_body(body: JsonObject, extra: Mapping[str, Any]) -> None:
    """Put settings that Responses lacks into `metadata.extra_body`, as JSON text, where chat backends look for them."""
    if not extra:
        return
    metadata = dict(as_object(body.get("metadata")))
    merged = {**extra, **extra_body_of(metadata)}
    body["metadata"] = {**metadata, EXTRA_BODY: encode(merged).decode()}


def extra_body_of(metadata: object) -> JsonObject:
    """Return the settings in `metadata.extra_body`; {} when there are none or they are no JSON object."""
    text = metadata.get(EXTRA_BODY) if isinstance(metadata, Mapping) else None
    if not isinstance(text, str):
        return {}
    try:
        value = decode(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def note_dropped(notes: Notes, body: Mapping[str, Any], names: Iterable[str]) -> None:
    """Note each of `names` that `body` sets."""
    notes.extend(f"`{name}` dropped" for name in names if body.get(name) is not None)


def note_tool_keys(notes: Notes, tools: Iterable[Any], carried: frozenset[str]) -> None:
    """Note, once each, the keys of tools beyond those that are carried."""
    left: dict[str, None] = {}
    for tool in tools:
        if isinstance(tool, dict) and not tool.keys() <= carried:
            left.update(dict.fromkeys(key for key in tool if key not in carried and tool[key] is not None))
    notes.extend(f"`{key}` of tools dropped" for key in left)


def note_cache_control(notes: Notes, body: JsonObject) -> None:
    """Note, once, that a request marks what to cache."""
    if _has_cache_control(body):
        notes.append("`cache_control` dropped")


def token_fields_of(source: Mapping[str, Any]) -> JsonObject:
    """Return the token-id fields of a message or item; {} when it has none. Raises ValueError when some are missing."""
    given = {name: source[name] for name in TOKEN_FIELDS if source.get(name) is not None}
    if not given:
        return {}
    if len(given) < len(TOKEN_FIELDS):
        missing = ", ".join(f"`{name}`" for name in TOKEN_FIELDS if name not in given)
        raise ValueError(f"token ids are incomplete: {missing} missing")
    if source.get(OPTIONAL_TOKEN_FIELD) is not None:
        given[OPTIONAL_TOKEN_FIELD] = source[OPTIONAL_TOKEN_FIELD]
    return given


def _has_cache_control(value: Any) -> bool:
    """Look where clients put it, not into tool arguments and schemas."""
    if isinstance(value, dict):
        if "cache_control" in value:
            return True
        value = [value.get(key) for key in ("system", "messages", "content", "tools")]
    elif not isinstance(value, list):
        return False
    # Most of what stands there is text, which is not worth a call.
    return any(_has_cache_control(item) for item in value if type(item) is dict or type(item) is list)

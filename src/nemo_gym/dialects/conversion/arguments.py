"""Arguments of tool calls: JSON text in Responses and Chat, a JSON object in Messages."""

from __future__ import annotations

from typing import Any

from nemo_gym.records.codec import JsonObject, decode, encode

RAW = "_raw"
"""Key under which text that is no JSON object travels where an object is required."""


def arguments_object(arguments: Any) -> JsonObject:
    """Return tool arguments as an object; what is no JSON object becomes `{"_raw": text}`, and nothing becomes {}."""
    if isinstance(arguments, dict):
        return arguments
    if arguments is None or arguments == "":
        return {}
    text = arguments if isinstance(arguments, str) else encode(arguments).decode()
    try:
        value = decode(text)
    except ValueError:
        return {RAW: text}
    return value if isinstance(value, dict) else {RAW: text}


def arguments_text(arguments: Any) -> str:
    """Return tool arguments as JSON text; `{"_raw": text}` gives its text back, as the model wrote it."""
    if isinstance(arguments, str):
        return arguments
    if arguments is None:
        return "{}"
    if isinstance(arguments, dict) and set(arguments) == {RAW} and isinstance(arguments[RAW], str):
        return str(arguments[RAW])
    return encode(arguments).decode()


def free_input(text: str) -> str:
    """Return the free text of a custom tool's call that had to be said as a function's, under `input`."""
    try:
        given = decode(text) if text.strip() else {}
    except ValueError:
        return text
    inner = given.get("input") if isinstance(given, dict) else None
    return inner if isinstance(inner, str) else arguments_text(given)

"""What makes two requests the same call. Pure.

Within a dialect it is the request itself, without what says only how it is transported. Across dialects it is what was
said: the instructions, who said what, which tools were called with what and answered what, and which tools there are.
Reasoning and ids are left out of that, since the dialects carry them differently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from nemo_gym.dialects import Dialect, conversion
from nemo_gym.dialects.conversion.arguments import arguments_object
from nemo_gym.dialects.conversion.namespaces import flatten_call, flatten_tools, offered_tools
from nemo_gym.records import codec

_TRANSPORT = frozenset({"model", "stream", "stream_options", "metadata", "user", "store", "prompt_cache_key"})


def exact_key(body: dict[str, Any], dialect: Dialect) -> bytes:
    """Return the key of a request among those of its own dialect."""
    return _digest([dialect, {key: value for key, value in body.items() if key not in _TRANSPORT}])


def spoken_key(body: dict[str, Any], dialect: Dialect) -> bytes | None:
    """Return the key of what a request says, in whatever dialect; None when it cannot be converted."""
    try:
        canonical = conversion.convert_request(body, dialect, "responses").canonical
    except conversion.ConversionError:
        return None
    system, turns = _turns(canonical)
    tools = sorted(str(tool.get("name") or tool.get("type")) for tool in flatten_tools(offered_tools(canonical)))
    return _digest([system, turns, tools])


def _turns(request: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return the instructions, and each turn as its speaker and what was said; an assistant's in a row are one."""
    instructions = request.get("instructions")
    system = [instructions] if isinstance(instructions, str) and instructions else []
    turns: list[list[Any]] = []
    for role, said in _said(request.get("input")):
        if role == "system" and not turns:
            system.append(str(said))
        elif role == "assistant" and turns and turns[-1][0] == "assistant":
            turns[-1].append(said)
        else:
            turns.append([role, said])
    for turn in turns:
        if turn[0] == "assistant":  # some dialects keep one text and the calls after it
            texts = "".join(part for part in turn[1:] if isinstance(part, str))
            turn[1:] = [texts, *(part for part in turn[1:] if not isinstance(part, str))]
    return ["\n\n".join(system)], turns


def _said(given: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(given, str):
        yield "user", given
        return
    for item in given if isinstance(given, list) else ():
        if not isinstance(item, dict):
            continue
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "message":
            role = "system" if item.get("role") == "developer" else str(item.get("role"))
            yield role, _text(item.get("content"))
        elif kind == "function_call":
            yield "assistant", [flatten_call(item).get("name"), arguments_object(item.get("arguments"))]
        elif kind == "custom_tool_call":
            yield "assistant", [flatten_call(item).get("name"), {"input": item.get("input")}]
        elif kind in ("function_call_output", "custom_tool_call_output"):
            yield "tool", _text(item.get("output"))


def _text(content: Any) -> Any:
    """Return the text of content; parts that are no text stay as they are, beside it."""
    if isinstance(content, str) or not isinstance(content, list):
        return content or ""
    texts = [str(part.get("text") or part.get("refusal") or "") for part in content if isinstance(part, dict)]
    others = [part for part in content if isinstance(part, dict) and not ("text" in part or "refusal" in part)]
    joined = "\n".join(text for text in texts if text)
    return [joined, *others] if others else joined


def _digest(value: Any) -> bytes:
    return hashlib.sha256(codec.encode(_ordered(value))).digest()


def _ordered(value: Any) -> Any:
    """Return a value whose objects have their keys in order."""
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value, key=str)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value

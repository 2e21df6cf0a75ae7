"""Tools and tool choice between Messages and Responses."""

from __future__ import annotations

from typing import Any

from nemo_gym.dialects.conversion.fields import FUNCTION_KEYS, note_tool_keys
from nemo_gym.dialects.conversion.namespaces import flatten_tools
from nemo_gym.dialects.conversion.refusal import Notes
from nemo_gym.dialects.conversion.shapes import as_text, objects
from nemo_gym.records.codec import JsonObject

_EMPTY_SCHEMA: JsonObject = {"type": "object", "properties": {}}
_FREE_TEXT_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
_TOOL_KEYS = frozenset({"type", "name", "description", "input_schema", "strict", "cache_control"})
_MODES_TO_RESPONSES = {"auto": "auto", "none": "none", "any": "required"}
_MODES_TO_MESSAGES = {"auto": "auto", "none": "none", "required": "any"}


def tools_to_responses(tools: Any, notes: Notes) -> list[JsonObject]:
    """Return function tools; a tool that the provider runs itself is dropped, since nobody here would run it."""
    converted: list[JsonObject] = []
    note_tool_keys(notes, (tool for tool in objects(tools) if tool.get("type") in (None, "custom")), _TOOL_KEYS)
    for index, tool in enumerate(objects(tools)):
        kind = tool.get("type") or "custom"
        if kind != "custom":
            notes.append(f"tools[{index}] of type `{kind}` dropped: only the provider can run it")
            continue
        function: JsonObject = {
            "type": "function",
            "name": tool.get("name"),
            "parameters": tool.get("input_schema") or _EMPTY_SCHEMA,
            "strict": tool["strict"] if isinstance(tool.get("strict"), bool) else False,
        }
        if tool.get("description") is not None:
            function["description"] = tool["description"]
        converted.append(function)
    return converted


def tool_choice_to_responses(body: JsonObject, converted: JsonObject, notes: Notes) -> None:
    """Set `tool_choice` and `parallel_tool_calls` of the converted request."""
    choice = body.get("tool_choice")
    if not isinstance(choice, dict):
        return
    if choice.get("disable_parallel_tool_use") is not None:
        converted["parallel_tool_calls"] = not choice["disable_parallel_tool_use"]
    if choice.get("type") == "any" and body.get("tools") and not converted.get("tools"):
        notes.append("`tool_choice` dropped: all tools were dropped")
    elif choice.get("type") != "tool":
        converted["tool_choice"] = _MODES_TO_RESPONSES.get(str(choice.get("type")), "auto")
    elif any(tool["name"] == choice.get("name") for tool in converted.get("tools", ())):
        converted["tool_choice"] = {"type": "function", "name": choice.get("name")}
    else:
        notes.append("`tool_choice` dropped: the tool that it names was dropped")


def tools_to_messages(tools: Any, notes: Notes) -> list[JsonObject]:
    """Return Messages tools; a custom (free text) tool takes one string `input`, hosted tools are dropped."""
    converted: list[JsonObject] = []
    flat = flatten_tools(tools)
    note_tool_keys(notes, (tool for tool in flat if tool.get("type") in ("function", "custom")), FUNCTION_KEYS)
    for tool in flat:
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            notes.append(f"tool of type `{kind}` dropped: the backend does not run it")
            continue
        schema = _FREE_TEXT_SCHEMA if kind == "custom" else tool.get("parameters") or _EMPTY_SCHEMA
        one: JsonObject = {"name": tool.get("name"), "input_schema": schema}
        if tool.get("description") is not None:
            one["description"] = tool["description"]
        if tool.get("strict") is True:
            one["strict"] = True
        if kind == "custom" and tool.get("format") is not None:
            notes.append(f"tools `{tool.get('name')}`: `format` dropped")
        converted.append(one)
    return converted


def tool_choice_to_messages(body: JsonObject, tools: list[JsonObject], notes: Notes) -> JsonObject | None:
    """Return the Messages tool choice; None leaves it to the backend."""
    if not tools:
        return None
    choice, parallel = body.get("tool_choice"), body.get("parallel_tool_calls")
    converted: JsonObject | None = None
    if isinstance(choice, str):
        converted = {"type": _MODES_TO_MESSAGES.get(choice, "auto")}
    elif isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        converted = {"type": "tool", "name": choice.get("name")}
    elif isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        names = {as_text(tool.get("name")) for tool in objects(choice.get("tools"))}
        tools[:] = [tool for tool in tools if as_text(tool["name"]) in names]
        converted = {"type": _MODES_TO_MESSAGES.get(str(choice.get("mode")), "auto")} if tools else None
    elif isinstance(choice, dict):
        notes.append(f"`tool_choice` of type `{choice.get('type')}` dropped")
    if parallel is False and tools and (converted or {}).get("type") != "none":
        converted = {**(converted or {"type": "auto"}), "disable_parallel_tool_use": True}
    return None if converted == {"type": "auto"} else converted

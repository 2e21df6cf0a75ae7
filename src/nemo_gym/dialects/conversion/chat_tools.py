"""Tools, tool choice and calls between Chat and Responses."""

from __future__ import annotations

from typing import Any

from nemo_gym.dialects.conversion.arguments import arguments_text
from nemo_gym.dialects.conversion.fields import FUNCTION_KEYS, note_tool_keys
from nemo_gym.dialects.conversion.namespaces import flatten_tools, offered_tools
from nemo_gym.dialects.conversion.refusal import ConversionError, Notes
from nemo_gym.dialects.conversion.shapes import as_list, as_text, objects
from nemo_gym.records.codec import JsonObject

_EMPTY_SCHEMA: JsonObject = {"type": "object", "properties": {}}
_KINDS = ("function", "custom")


def tools_to_chat(body: JsonObject, notes: Notes) -> list[JsonObject]:
    """Return nested tools; hosted tools are dropped, since a chat backend does not run them."""
    converted: list[JsonObject] = []
    flat = flatten_tools(offered_tools(body))
    note_tool_keys(
        notes,
        (tool for tool in flat if tool.get("type") in _KINDS and not isinstance(tool.get(tool["type"]), dict)),
        FUNCTION_KEYS,
    )
    for tool in flat:
        kind = tool.get("type")
        if kind not in _KINDS:
            notes.append(f"tool of type `{kind}` dropped: a chat backend does not run it")
        elif isinstance(tool.get(kind), dict):
            converted.append(tool)  # nested already
        else:
            converted.append({"type": kind, kind: _function(tool) if kind == "function" else _custom(tool)})
    return converted


def _function(tool: JsonObject) -> JsonObject:
    function: JsonObject = {"name": tool.get("name")}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    function["parameters"] = tool.get("parameters") or _EMPTY_SCHEMA
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return function


def _custom(tool: JsonObject) -> JsonObject:
    custom = {key: tool[key] for key in ("name", "description", "format") if tool.get(key) is not None}
    grammar = custom.get("format")
    if isinstance(grammar, dict) and grammar.get("type") == "grammar" and "grammar" not in grammar:
        inner = {key: value for key, value in grammar.items() if key != "type"}
        custom["format"] = {"type": "grammar", "grammar": inner}
    return custom


def tool_choice_to_chat(body: JsonObject, tools: list[JsonObject], converted: JsonObject, notes: Notes) -> None:
    """Set `tool_choice` and `parallel_tool_calls`. Without tools both are left out, and nothing may be forced."""
    choice = body.get("tool_choice")
    if not tools:
        if choice not in (None, "none", "auto"):
            if not offered_tools(body):
                raise ConversionError("`tool_choice` forces a tool, but there are no `tools`", param="tool_choice")
            notes.append("`tool_choice` dropped: none of the tools can be sent to a chat backend")
        return
    if body.get("parallel_tool_calls") is not None:
        converted["parallel_tool_calls"] = body["parallel_tool_calls"]
    if isinstance(choice, str):
        converted["tool_choice"] = choice
    elif isinstance(choice, dict) and choice.get("type") in _KINDS:
        converted["tool_choice"] = _named(choice)
    elif isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools") or choice
        kept = [_named(tool) for tool in objects(allowed.get("tools")) if tool.get("type") in _KINDS]
        inner = {"mode": allowed.get("mode") or "auto", "tools": kept}
        converted["tool_choice"] = {"type": "allowed_tools", "allowed_tools": inner}
    elif isinstance(choice, dict):
        notes.append(f"`tool_choice` of type `{choice.get('type')}` dropped")


def _named(choice: JsonObject) -> JsonObject:
    kind = choice["type"]
    return choice if isinstance(choice.get(kind), dict) else {"type": kind, kind: {"name": choice.get("name")}}


def tools_from_chat(body: JsonObject, notes: Notes) -> list[JsonObject]:
    """Return flat tools of a Chat request, its legacy `functions` included; `strict` and `parameters` get defaults."""
    converted: list[JsonObject] = []
    for index, tool in enumerate(as_list(body.get("tools"))):
        kind = tool.get("type") if isinstance(tool, dict) else None
        inner = tool.get(kind) if kind in _KINDS else None
        if not isinstance(inner, dict):
            notes.append(f"tools[{index}] of type `{kind}` dropped")
        elif kind == "function":
            converted.append(_flat_function(inner))
        else:
            converted.append({"type": "custom", **_flat_custom(inner)})
    converted.extend(_flat_function(function) for function in objects(body.get("functions")))
    return converted


def _flat_function(function: JsonObject) -> JsonObject:
    flat: JsonObject = {
        "type": "function",
        "name": function.get("name"),
        "parameters": function.get("parameters") or _EMPTY_SCHEMA,
        "strict": function.get("strict") or False,
    }
    if function.get("description") is not None:
        flat["description"] = function["description"]
    return flat


def _flat_custom(custom: JsonObject) -> JsonObject:
    flat = dict(custom)
    grammar = flat.get("format")
    if isinstance(grammar, dict) and isinstance(grammar.get("grammar"), dict):
        flat["format"] = {"type": "grammar", **grammar["grammar"]}
    return flat


def tool_choice_from_chat(body: JsonObject, converted: JsonObject) -> None:
    """Set the flat `tool_choice`, and `parallel_tool_calls`."""
    if body.get("parallel_tool_calls") is not None:
        converted["parallel_tool_calls"] = body["parallel_tool_calls"]
    choice: Any = body.get("tool_choice")
    if choice is None and body.get("function_call") is not None:
        legacy = body["function_call"]
        choice = {"type": "function", "function": legacy} if isinstance(legacy, dict) else legacy
    if isinstance(choice, str):
        converted["tool_choice"] = choice
    elif isinstance(choice, dict) and isinstance(choice.get("allowed_tools"), dict):
        inner = choice["allowed_tools"]
        flat = [_flat_choice(tool) for tool in objects(inner.get("tools"))]
        converted["tool_choice"] = {"type": "allowed_tools", "mode": inner.get("mode") or "auto", "tools": flat}
    elif isinstance(choice, dict):
        converted["tool_choice"] = _flat_choice(choice)


def _flat_choice(choice: JsonObject) -> JsonObject:
    kind = choice.get("type")
    inner = choice.get(kind) if isinstance(kind, str) else None
    return {"type": kind, "name": inner.get("name")} if isinstance(inner, dict) else choice


def chat_call(item: JsonObject) -> JsonObject:
    """Return the entry of `tool_calls` for a call item of the canonical form."""
    call: JsonObject = {"id": item.get("call_id") or item.get("id")}
    if item["type"] == "custom_tool_call":
        call.update(type="custom", custom={"name": item.get("name"), "input": as_text(item.get("input"))})
    else:
        arguments = arguments_text(item.get("arguments"))
        call.update(type="function", function={"name": item.get("name"), "arguments": arguments})
    if item.get("extra_content") is not None:
        call["extra_content"] = item["extra_content"]
    return call


_FREE_INPUT_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input, as free text."}},
    "required": ["input"],
}


def custom_tools_as_functions(body: JsonObject) -> JsonObject:
    """Return a Chat request whose custom tools, and earlier calls of them, are functions with one text, `input`.

    Most chat backends but OpenAI's know functions only. `chat_response_to_responses` makes custom calls of the answers.
    """
    changed = dict(body)
    if isinstance(body.get("tools"), list):
        changed["tools"] = [_as_function(tool) for tool in body["tools"]]
    if isinstance(body.get("tool_choice"), dict) and body["tool_choice"].get("type") == "custom":
        changed["tool_choice"] = {"type": "function", "function": body["tool_choice"].get("custom")}
    changed["messages"] = [
        {**message, "tool_calls": [_call_as_function(call) for call in message["tool_calls"]]}
        if isinstance(message, dict) and isinstance(message.get("tool_calls"), list)
        else message
        for message in as_list(body.get("messages"))
    ]
    return changed


def _as_function(tool: Any) -> Any:
    custom = tool.get("custom") if isinstance(tool, dict) and tool.get("type") == "custom" else None
    if not isinstance(custom, dict):
        return tool
    grammar = custom.get("format")
    inner = grammar.get("grammar") if isinstance(grammar, dict) else None
    description = as_text(custom.get("description"))
    if isinstance(inner, dict) and inner.get("definition"):
        description = f"{description}\n\nThe input must follow this grammar:\n{inner['definition']}".strip()
    function: JsonObject = {"name": custom.get("name"), "parameters": _FREE_INPUT_SCHEMA}
    if description:
        function["description"] = description
    return {"type": "function", "function": function}


def _call_as_function(call: Any) -> Any:
    custom = call.get("custom") if isinstance(call, dict) else None
    if not isinstance(custom, dict):
        return call
    arguments = arguments_text({"input": as_text(custom.get("input"))})
    rest = {key: value for key, value in call.items() if key != "custom"}
    return {**rest, "type": "function", "function": {"name": custom.get("name"), "arguments": arguments}}

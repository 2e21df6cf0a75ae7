"""The tool calls of a finished answer, in one shape for the three dialects. Source: capture contract 4.4.

A call is `{call_id, name, arguments}`. Calls that are not plain functions also carry `kind`; `namespace`, `choice`
(only beyond the first), `server_label` appear where the answer has them. Arguments are an object where that is
possible; text that is not JSON is `{"_raw": text}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nemo_gym.dialects.names import Dialect, dialect_of
from nemo_gym.records import codec
from nemo_gym.records.codec import JsonObject, JsonValue

# Item type -> keys that hold what was asked for; the first that is there counts.
_RESPONSES_CALLS: dict[str, tuple[str, ...]] = {
    "function_call": ("arguments",),
    "mcp_call": ("arguments",),
    "tool_search_call": ("arguments", "action"),
    "shell_call": ("action",),
    "local_shell_call": ("action",),
    "apply_patch_call": ("operation",),
    "computer_call": ("action", "actions"),
    "web_search_call": ("action",),
    "custom_tool_call": (),
    "file_search_call": (),
    "code_interpreter_call": (),
    "image_generation_call": (),
}
# Item type -> keys copied as they are, for calls that have no single argument.
_RESPONSES_PLAIN_KEYS: dict[str, tuple[str, ...]] = {
    "custom_tool_call": ("input",),
    "file_search_call": ("queries",),
    "code_interpreter_call": ("code", "container_id"),
    "image_generation_call": ("revised_prompt",),
}
_MESSAGES_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})


def tool_calls_of(response: object, dialect: Dialect | None) -> list[JsonObject]:
    """Return the calls of `response` in output order; an unknown dialect is read from the answer's shape."""
    if not isinstance(response, dict):
        return []
    spoken = dialect or dialect_of(response)
    if spoken == "responses":
        return _responses_calls(response)
    if spoken == "chat":
        return list(_chat_calls(response))
    return list(_messages_calls(response)) if spoken == "messages" else []


def parse_arguments(value: JsonValue) -> JsonValue:
    """Return arguments as JSON: text is parsed, unparsable text is `{"_raw": text}`, nothing and "" are `{}`."""
    if value is None:
        return {}
    if not isinstance(value, str):
        return value
    if not value.strip():
        return {}
    try:
        return codec.decode(value)
    except ValueError:
        return {"_raw": value}


def has_unparsable_arguments(response: object, dialect: Dialect) -> bool:
    """Return whether a call that must have JSON arguments has text that is not JSON."""
    return any(
        isinstance(call["arguments"], dict) and call["arguments"].keys() == {"_raw"}
        for call in tool_calls_of(response, dialect)
    )


def _objects(value: JsonValue) -> Sequence[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None


def _responses_calls(response: JsonObject) -> list[JsonObject]:
    output = response.get("output")
    calls: list[JsonObject] = []
    for item in output if isinstance(output, list) else ():
        kind = item.get("type") if isinstance(item, dict) else None
        asked = _RESPONSES_CALLS.get(kind) if isinstance(kind, str) else None
        if kind is None or asked is None:
            continue
        arguments: JsonValue = None
        for key in asked:
            arguments = item.get(key)
            if arguments is not None:
                break
        if asked:
            arguments = parse_arguments(arguments)
        else:
            arguments = {key: item[key] for key in _RESPONSES_PLAIN_KEYS[kind] if item.get(key) is not None}
        call_id, name = item.get("call_id"), item.get("name")
        call: JsonObject = {
            "call_id": call_id if call_id and isinstance(call_id, str) else _text(item.get("id")),
            "name": name if name and isinstance(name, str) else None,
            "arguments": arguments,
        }
        if kind != "function_call":
            call["name"] = call["name"] or kind.removesuffix("_call")
            call["kind"] = kind
        if item.get("namespace") is not None:
            call["namespace"] = item["namespace"]
        if item.get("server_label") is not None:
            call["server_label"] = item["server_label"]
        calls.append(call)
    return calls


def _chat_calls(response: JsonObject) -> Iterator[JsonObject]:
    for position, choice in enumerate(_objects(response.get("choices"))):
        message = choice.get("message")
        if not isinstance(message, dict):
            continue
        index = choice.get("index")
        index = index if type(index) is int else position
        for entry in _objects(message.get("tool_calls")):
            yield _chat_call(_text(entry.get("id")), entry, index)
        legacy = message.get("function_call")
        if isinstance(legacy, dict):
            yield _chat_call(None, {"type": "function_call", "function": legacy}, index)


def _chat_call(call_id: str | None, entry: JsonObject, choice: int) -> JsonObject:
    custom, function = entry.get("custom"), entry.get("function")
    if isinstance(custom, dict) and not isinstance(function, dict):
        value = custom.get("input")
        call: JsonObject = {
            "call_id": call_id,
            "name": _text(custom.get("name")),
            "arguments": {} if value is None else {"input": value},
            "kind": "custom",
        }
    else:
        function = function if isinstance(function, dict) else {}
        arguments = parse_arguments(function.get("arguments"))
        call = {"call_id": call_id, "name": _text(function.get("name")), "arguments": arguments}
        if entry.get("type") == "function_call":
            call["kind"] = "function_call"
    if choice:
        call["choice"] = choice
    return call


def _messages_calls(response: JsonObject) -> Iterator[JsonObject]:
    for block in _objects(response.get("content")):
        kind = block.get("type")
        if not isinstance(kind, str) or kind not in _MESSAGES_CALLS:
            continue
        call: JsonObject = {
            "call_id": _text(block.get("id")),
            "name": _text(block.get("name")),
            "arguments": parse_arguments(block.get("input")),
        }
        if kind != "tool_use":
            call["kind"] = kind
        if block.get("server_name") is not None:
            call["server_label"] = block["server_name"]
        yield call

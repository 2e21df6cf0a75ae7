"""Looking inside payloads: is there anything in it, and does it call a tool.

A payload is any JSON value. All walks are loops, so that a deeply nested payload costs memory, not the stack.
"""

from __future__ import annotations

from nemo_gym.records.codec import JsonObject, JsonValue

_CONTENT_KEYS = frozenset(
    {
        "text", "content", "output_text", "answer", "refusal", "encrypted_content", "reasoning", "reasoning_content",
        "summary",
    }
)  # fmt: skip
TOOL_CALL_TYPES = frozenset(
    {
        "function_call", "tool_call", "tool_use", "mcp_call", "mcp_list_tools", "mcp_approval_request",
        "file_search_call", "web_search_call", "computer_call", "image_generation_call", "code_interpreter_call",
        "local_shell_call", "custom_tool_call", "shell_call", "apply_patch_call", "tool_search_call",
    }
)  # fmt: skip


def has_content(payload: JsonValue, *, extra_keys: tuple[str, ...] = ()) -> bool:
    """Return whether a payload holds a visible character.

    A text does, a list with such an element, an object with one under a content key; numbers and booleans do not.
    """
    pending = [payload]
    while pending:
        value = pending.pop()
        kind = type(value)
        if kind is str:
            if value and not value.isspace():
                return True
        elif kind is list:
            pending += value
        elif kind is dict:
            for key, item in value.items():
                if item and (key in _CONTENT_KEYS or key in extra_keys):
                    pending.append(item)
    return False


def has_tool_call(payload: JsonValue) -> bool:
    """Return whether an item, searched through lists, is a tool call or carries a non-empty `tool_calls`."""
    pending = payload if type(payload) is list else [payload]
    for value in pending:  # nearly all are items, or lists of items
        if type(value) is dict and _is_tool_call(value):
            return True
    pending = [value for value in pending if type(value) is list]
    while pending:
        value = pending.pop()
        if type(value) is list:
            pending += value
        elif type(value) is dict and _is_tool_call(value):
            return True
    return False


def _is_tool_call(item: JsonObject) -> bool:
    kind = item.get("type")
    return (type(kind) is str and kind in TOOL_CALL_TYPES) or bool(item.get("tool_calls"))


def response_has_content(payload: JsonValue) -> bool:
    """Return whether a saved response shows anything: text, output items, choices; tool calls and reasoning count."""
    if not isinstance(payload, dict):
        return has_content(payload)
    parts = [payload.get(key) for key in ("output_text", "content", "output", "reasoning_content")]
    choices = payload.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            parts += [choice.get("text"), choice.get("message")]
    return any(has_content(part, extra_keys=("thinking",)) or has_tool_call(part) for part in parts)

"""What may stand in an invocation's conversation: items of the Responses API, as plain objects.

Items are payload: they are looked at, never copied or rewritten. The one addition is the `type` of an item whose shape
says what it is (`{"role": ..., "content": ...}` is a message), as the Responses API itself accepts it.
"""

from __future__ import annotations

from collections.abc import Mapping

from nemo_gym.records.codec import JsonObject, JsonValue

MESSAGE_ROLES = ("user", "assistant", "system", "developer")

_REQUIRED_TEXT: Mapping[str, tuple[str, ...]] = {
    "message": (),
    "reasoning": (),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id",),
    "custom_tool_call": ("call_id", "name"),
    "custom_tool_call_output": ("call_id",),
    "local_shell_call": (),
    "local_shell_call_output": (),
    "shell_call": (),
    "shell_call_output": ("call_id",),
    "apply_patch_call": (),
    "apply_patch_call_output": ("call_id",),
    "computer_call": (),
    "computer_call_output": ("call_id",),
    "mcp_call": (),
    "mcp_list_tools": (),
    "mcp_approval_request": (),
    "mcp_approval_response": (),
    "file_search_call": (),
    "web_search_call": (),
    "image_generation_call": (),
    "code_interpreter_call": (),
    "tool_search_call": (),
    "tool_search_output": (),
    "compaction": (),
    "compaction_trigger": (),
    "additional_tools": (),
    "item_reference": (),
}
"""Item type -> the keys that must hold text, because the join reads them."""

ITEM_TYPES = frozenset(_REQUIRED_TEXT)

TOOL_OUTPUT_TYPES = frozenset(
    {
        "function_call_output",
        "custom_tool_call_output",
        "local_shell_call_output",
        "shell_call_output",
        "apply_patch_call_output",
        "computer_call_output",
    }
)
"""Items whose `output` is the result of the tool call named by `call_id`."""


def checked_items(items: list[JsonValue]) -> list[JsonObject]:
    """Return `items` itself when every one is an item with a `type`, or a list in which those without have theirs.

    Raises ValueError saying which item is wrong, and how.
    """
    checked = items
    for index, item in enumerate(items):
        # Most items are checked here, and without a call.
        if type(item) is dict and type(kind := item.get("type")) is str:
            required = _REQUIRED_TEXT.get(kind)
            if required is not None and kind != "message":
                for key in required:
                    if type(item.get(key)) is not str:
                        break
                else:
                    continue
        try:
            typed = checked_item(item)
        except ValueError as error:
            raise ValueError(f"conversation[{index}]: {error}") from None
        if typed is not item:
            if checked is items:
                checked = list(items)
            checked[index] = typed
    return checked


def checked_item(item: object) -> JsonObject:
    """Return `item` itself when it is a conversation item with a `type`, or a copy that has the type its shape implies.

    Raises ValueError saying what is wrong. Keys that are not known here are the producer's and stay.
    """
    if not isinstance(item, dict):
        raise ValueError(f"a conversation item is an object, not `{type(item).__name__}`")
    kind = item.get("type")
    if kind is None:
        kind = _implied_type(item)
        item = {**item, "type": kind}
    required = _REQUIRED_TEXT.get(kind) if type(kind) is str else None
    if required is None:
        raise ValueError(f"`type` is no item type of the Responses API: `{kind!r:.60}`")
    for key in required:
        if type(item.get(key)) is not str:
            raise ValueError(f"`{key}` of a `{kind}` item must be text")
    if kind == "message":
        _check_message(item)
    return item


def _implied_type(item: JsonObject) -> str:
    if "role" in item:
        return "message"
    if "call_id" in item:
        if "output" in item:
            return "function_call_output"
        if "name" in item and "arguments" in item:
            return "function_call"
    if "id" in item and "summary" in item:
        return "reasoning"
    raise ValueError("a conversation item needs a `type`")


def _check_message(item: JsonObject) -> None:
    if item.get("role") not in MESSAGE_ROLES:
        raise ValueError(f"`role` of a message is one of {', '.join(MESSAGE_ROLES)}, not `{item.get('role')!r:.60}`")
    if not isinstance(item.get("content"), (str, list)):
        raise ValueError("`content` of a message is text or a list of parts")

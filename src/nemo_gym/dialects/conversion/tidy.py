"""Lenient clean-up of requests: what coding agents send beyond the protocol is moved, completed or dropped, and named.

It is the same for streamed and plain calls, since behaviour must not depend on `stream`.
"""

from __future__ import annotations

from typing import Any

from nemo_gym.dialects.conversion.fields import CHAT_FIELDS, RESPONSES_FIELDS
from nemo_gym.dialects.conversion.namespaces import flatten_call, flatten_tools
from nemo_gym.dialects.conversion.refusal import Notes
from nemo_gym.dialects.conversion.shapes import as_list, as_text
from nemo_gym.records.codec import JsonObject

_TRANSPORT = ("stream", "stream_options")
_EMPTY_SCHEMA: JsonObject = {"type": "object", "properties": {}}
_ROLES = ("user", "assistant", "system", "developer")
_KNOWN_ITEMS = frozenset(
    [
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "reasoning",
        "item_reference",
        "additional_tools",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "file_search_call",
        "web_search_call",
        "image_generation_call",
        "code_interpreter_call",
        "local_shell_call",
        "local_shell_call_output",
        "shell_call",
        "shell_call_output",
        "apply_patch_call",
        "apply_patch_call_output",
        "mcp_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "tool_search_call",
        "tool_search_output",
    ]
)


def tidy_responses_request(body: JsonObject) -> tuple[JsonObject, Notes]:
    """Return a Responses request that a strict reader accepts, and what was dropped.

    Streaming settings go away; unknown fields, unknown items and unusable tools are dropped; namespaces are flattened,
    in the tools and in replayed calls (`restore_namespaces` maps the answer's calls back); tools of `additional_tools`
    items join the tools; the leading run of system and developer messages joins `instructions`.
    """
    notes: Notes = []
    tidied = _known_fields(body, RESPONSES_FIELDS, notes)
    tools = list(as_list(tidied.get("tools")))
    if isinstance(tidied.get("input"), list):
        tidied["input"] = _tidy_items(tidied["input"], tools, notes)
        _move_instructions(tidied)
    usable = [tool for index, tool in enumerate(flatten_tools(tools)) if _is_usable(tool, index, notes)]
    tidied.pop("tools", None)
    if usable:
        tidied["tools"] = [_completed_tool(tool) for tool in usable]
    return tidied, notes


def tidy_chat_request(body: JsonObject) -> tuple[JsonObject, Notes]:
    """Return a Chat request without streaming settings and unknown fields, and what was dropped."""
    notes: Notes = []
    return _known_fields(body, CHAT_FIELDS, notes), notes


def wants_usage(body: JsonObject) -> bool:
    """Return whether a streamed Chat request asks for the usage chunk; ask before tidying."""
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _known_fields(body: JsonObject, known: frozenset[str], notes: Notes) -> JsonObject:
    notes.extend(f"`{name}` dropped: unknown field" for name in body if name not in known)
    return {name: value for name, value in body.items() if name in known and name not in _TRANSPORT}


def _tidy_items(items: list[Any], tools: list[Any], notes: Notes) -> list[JsonObject]:
    kept: list[JsonObject] = []
    for index, item in enumerate(items):
        kind = _kind_of(item)
        if kind is None:
            shown = item.get("type") or item.get("role") if isinstance(item, dict) else type(item).__name__
            notes.append(f"input[{index}] dropped: unknown item `{shown}`")
        elif kind == "additional_tools":
            for tool in as_list(item.get("tools")):
                if isinstance(tool, dict) and tool.get("type") in ("function", "namespace", "custom"):
                    tools.append(tool)
                else:
                    shown = tool.get("type") if isinstance(tool, dict) else type(tool).__name__
                    notes.append(f"input[{index}]: additional tool of type `{shown}` dropped")
        elif kind == "reasoning" and not isinstance(item.get("id"), str):
            kept.append({**item, "id": f"rs_{index}", "summary": item.get("summary") or []})
        else:
            kept.append(flatten_call(item))
    return kept


def _kind_of(item: Any) -> str | None:
    if not isinstance(item, dict):
        return None
    kind = item.get("type")
    if kind is None:
        if item.get("role") in _ROLES:
            return "message"
        if "call_id" in item and ("output" in item or "arguments" in item):
            return "function_call_output" if "output" in item else "function_call"
        return "reasoning" if isinstance(item.get("summary"), list) else None
    if kind == "message" and item.get("role") not in _ROLES:
        return None
    return kind if isinstance(kind, str) and kind in _KNOWN_ITEMS else None


def _move_instructions(tidied: JsonObject) -> None:
    texts = [tidied["instructions"]] if as_text(tidied.get("instructions")) else []
    items = tidied["input"]
    leading = 0
    for item in items:
        text = _instruction_text(item)
        if text is None:
            break
        texts.append(text)
        leading += 1
    if leading:
        tidied["instructions"] = "\n\n".join(texts)
        tidied["input"] = items[leading:]


def _instruction_text(item: JsonObject) -> str | None:
    """Return the text of a system or developer message that is all text, None for anything else."""
    if item.get("type", "message") != "message" or item.get("role") not in ("system", "developer"):
        return None
    content = item.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(
        isinstance(part, dict) and part.get("type") == "input_text" for part in content
    ):
        return None
    return "\n".join(as_text(part.get("text")) for part in content)


def _is_usable(tool: Any, index: int, notes: Notes) -> bool:
    if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
        notes.append(f"tools[{index}] dropped: no `type`")
        return False
    if tool["type"] in ("function", "custom") and not isinstance(tool.get("name"), str):
        notes.append(f"tools[{index}] dropped: no `name`")
        return False
    if tool["type"] == "function" and not isinstance(tool.get("parameters"), dict | None):
        notes.append(f"tools[{index}] dropped: `parameters` is no JSON schema object")
        return False
    return True


def _completed_tool(tool: JsonObject) -> JsonObject:
    """Return a function tool with the `strict` and `parameters` that strict readers ask for."""
    if tool["type"] != "function":
        return tool
    strict = tool.get("strict")
    return {
        **tool,
        "parameters": tool.get("parameters") or _EMPTY_SCHEMA,
        "strict": strict if isinstance(strict, bool) else False,
    }

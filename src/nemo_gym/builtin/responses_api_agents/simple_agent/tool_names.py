"""Which function names of a model are tools: the resources server answers more routes than its tools. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from nemo_gym.base_resources_server import RESERVED_MCP_TOOL_NAMES

RESERVED = RESERVED_MCP_TOOL_NAMES | {"reverify_mode"}
"""Routes that collection calls; a model that reached them could seed or score its own rollout."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")


class Refusal(NamedTuple):
    """Why a call is not made: the kind of error, and what the model is told."""

    error_type: Literal["reserved_tool", "unknown_tool"]
    message: str


def declared_tools(params: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the function tools that a request declares."""
    tools = params.get("tools")
    return frozenset(
        tool["name"]
        for tool in (tools if isinstance(tools, list) else [])
        if isinstance(tool, dict) and tool.get("type") == "function" and isinstance(tool.get("name"), str)
    )


def refusal(name: object, declared: frozenset[str]) -> Refusal | None:
    """Return why `name` is no tool, or None when it is one.

    Reserved names never are, nor is what is more than one path segment of plain letters. A request that declares
    function tools allows these and no others; one that declares none (its tools may be in the prompt) allows any name.
    """
    shown = ascii(name)[:100]
    if isinstance(name, str) and name in RESERVED:
        return Refusal("reserved_tool", f"{shown} is not a tool")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or (declared and name not in declared):
        known = f"; the tools are {', '.join(sorted(declared))}" if declared else ""
        return Refusal("unknown_tool", f"there is no tool {shown}{known}"[:1000])
    return None

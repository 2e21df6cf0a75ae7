"""Namespace tools: a group of functions under a name, which other dialects and many backends do not know.

They are flattened to functions named `<namespace>__<name>`, and calls are mapped back by the request that offered them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nemo_gym.dialects.conversion.shapes import as_text, objects
from nemo_gym.records.codec import JsonObject


def flat_name(namespace: str, name: str) -> str:
    """Return the flat name of a function in a namespace."""
    return f"{namespace}__{name}"


def flatten_tools(tools: Any) -> list[Any]:
    """Return `tools` with each namespace replaced by its functions under their flat names."""
    return list(_flattened(tools))


def _flattened(tools: Any) -> Iterator[Any]:
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict) and tool.get("type") == "namespace":
            for inner in objects(tool.get("tools")):
                if isinstance(inner.get("name"), str):
                    yield {**inner, "name": flat_name(str(tool.get("name")), inner["name"])}
        else:
            yield tool


def flatten_call(item: JsonObject) -> JsonObject:
    """Return a replayed call under its flat name; other items stay as they are."""
    namespace = item.get("namespace")
    if item.get("type") not in ("function_call", "custom_tool_call") or not isinstance(namespace, str) or not namespace:
        return item
    flat = {key: value for key, value in item.items() if key != "namespace"}
    return {**flat, "name": flat_name(namespace, str(item.get("name")))}


def restore_namespaces(response: JsonObject, *, request: JsonObject) -> JsonObject:
    """Return `response` with flat calls mapped back to `namespace` and `name`, by the namespaces that `request` offers.

    `request` is the client's own, before its namespaces were flattened.
    """
    known = {
        flat_name(str(tool.get("name")), inner["name"]): (str(tool.get("name")), inner["name"])
        for tool in offered_tools(request)
        if tool.get("type") == "namespace"
        for inner in objects(tool.get("tools"))
        if isinstance(inner.get("name"), str)
    }
    output = response.get("output")
    if not known or not isinstance(output, list):
        return response
    return {**response, "output": [_restored(item, known) for item in output]}


def offered_tools(request: JsonObject) -> list[JsonObject]:
    """Return every tool that a Responses request offers, those of `additional_tools` items included."""
    tools = objects(request.get("tools"))
    items = request.get("input")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and item.get("type") == "additional_tools":
            tools.extend(tool for tool in objects(item.get("tools")))
    return tools


def custom_tool_names(request: JsonObject) -> set[str]:
    """Return the flat names of the custom (free text) tools that a Responses request offers."""
    return {
        tool["name"]
        for tool in flatten_tools(offered_tools(request))
        if tool.get("type") == "custom" and isinstance(tool.get("name"), str)
    }


def _restored(item: Any, known: dict[str, tuple[str, str]]) -> Any:
    if not isinstance(item, dict) or item.get("type") not in ("function_call", "custom_tool_call"):
        return item
    if as_text(item.get("name")) not in known or item.get("namespace"):
        return item
    namespace, name = known[item["name"]]
    return {**item, "namespace": namespace, "name": name}

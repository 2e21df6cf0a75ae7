"""Which POST routes of a server are offered as MCP tools, and whether each can be called as one."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI, routing
from fastapi.routing import APIRoute
from pydantic import BaseModel

from nemo_gym.errors import ConfigError
from nemo_gym.servers.mcp_names import RESERVED_MCP_TOOL_NAMES

logger = logging.getLogger(__name__)

MCP_PATH: Final = "/mcp"

_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")
_PARAMETER = re.compile(r"\{[^}]*\}")
_OPEN_OBJECT: Mapping[str, Any] = {"type": "object", "additionalProperties": True}


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool: what a client sees of it, and the route that does it."""

    name: str
    route: Any
    input_schema: Mapping[str, Any]
    description: str = ""

    @property
    def path(self) -> str:
        """The path that is called; a catch-all's parameter is the tool's name."""
        return _PARAMETER.sub(self.name, self.route.path)


@dataclass(frozen=True, slots=True)
class CatchAll:
    """The one POST route whose path has a parameter: it serves tools that have no route of their own."""

    route: Any

    def tool(self, name: str, input_schema: Mapping[str, Any] | None = None, description: str | None = None) -> McpTool:
        """Return a tool that this route serves; without a schema any object is accepted."""
        shown = self.route.description if description is None else description
        return McpTool(name, self.route, _OPEN_OBJECT if input_schema is None else input_schema, shown)


def harvest(app: FastAPI) -> tuple[list[McpTool], CatchAll | None]:
    """Return a tool for each POST route without path parameters, and the catch-all if there is one."""
    tools, catch_alls = [], []
    for route in _post_routes(app):
        name = route.path.strip("/")
        if _PARAMETER.search(route.path):
            catch_alls.append(route)
        elif name not in RESERVED_MCP_TOOL_NAMES:
            tools.append(McpTool(name, route, _schema_of(route), route.description))
    if len(catch_alls) > 1:
        listed = ", ".join(f"`{route.path}`" for route in catch_alls)
        raise ConfigError(f"only one POST route with a path parameter can serve MCP tools, but there are {listed}")
    return tools, CatchAll(catch_alls[0]) if catch_alls else None


def _post_routes(app: FastAPI) -> Iterator[Any]:
    """Yield the POST routes, those of included routers with the paths that they have in the app.

    Newer releases keep included routers as they are, and show their routes as contexts; older ones copy the routes.
    """
    contexts = getattr(routing, "iter_route_contexts", None)
    routes: Iterable[Any] = app.router.routes if contexts is None else contexts(app.router.routes)
    for route in routes:
        if isinstance(getattr(route, "original_route", route), APIRoute) and "POST" in (route.methods or ()):
            yield route


def checked(tools: Iterable[McpTool] | None, catch_all: CatchAll | None) -> list[McpTool]:
    """Return the tools that a server offers; raises ConfigError for one that could not be called."""
    chosen = list(tools or ())
    seen: set[str] = set()
    for tool in chosen:
        problem = _name_problem(tool.name, seen) or _shape_problem(tool.route)
        if problem:
            raise ConfigError(f"`POST {tool.route.path}` cannot be the MCP tool `{tool.name}`: {problem}")
        seen.add(tool.name)
    if catch_all is not None and not any(tool.route is catch_all.route for tool in chosen):
        logger.warning(
            "no MCP tool is served by `POST %s`: an override of `mcp_tools` adds them with `catchall.tool(name)`",
            catch_all.route.path,
        )
    return chosen


def _name_problem(name: str, seen: set[str]) -> str | None:
    if not _NAME.match(name):
        return "a name has letters, digits, `_` and `-` only"
    if name in RESERVED_MCP_TOOL_NAMES:
        return "the name is reserved"
    return "another tool has this name" if name in seen else None


def _body_annotation(route: Any) -> Any:
    fields = route.dependant.body_params
    return fields[0].field_info.annotation if fields else None


def _is_mapping(annotation: Any) -> bool:
    origin = getattr(annotation, "__origin__", annotation)
    return inspect.isclass(origin) and issubclass(origin, Mapping)


def _schema_of(route: Any) -> Mapping[str, Any]:
    annotation = _body_annotation(route)
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        schema: Mapping[str, Any] = annotation.model_json_schema()
        return schema
    return _OPEN_OBJECT


def _shape_problem(route: Any) -> str | None:
    """Say why a handler cannot be given a tool's arguments, or return None."""
    needs = route.dependant
    if needs.dependencies or route.dependencies:
        return "its handler has dependencies"
    if elsewhere := [*needs.query_params, *needs.header_params, *needs.cookie_params]:
        return f"its handler takes `{elsewhere[0].name}` from outside the body, where the arguments are"
    if len(needs.body_params) > 1:
        return "its handler takes more than one body"
    if needs.body_params and type(needs.body_params[0].field_info).__name__ in ("Form", "File"):
        return "its handler takes a form"
    annotation = _body_annotation(route)
    if annotation is not None and not _is_mapping(annotation):
        if not (inspect.isclass(annotation) and issubclass(annotation, BaseModel)):
            return f"its body is `{annotation}`, which is neither a pydantic model nor a dict"
        if getattr(needs.body_params[0].field_info, "embed", None):
            return "its body is embedded under a key"
    return _path_problem(needs.path_params)


def _path_problem(params: Sequence[Any]) -> str | None:
    if len(params) > 1:
        return "its path has more than one parameter"
    if params and params[0].field_info.annotation is not str:
        return f"its path parameter `{params[0].name}` is no `str`"
    return None

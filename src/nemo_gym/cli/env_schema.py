"""`gym env schema`."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import TypeAdapter

from nemo_gym.cli.output import print_json
from nemo_gym.cli.selection import SearchDirOption
from nemo_gym.cli.user_module import load_user_module
from nemo_gym.config import component_search_roots, find_component
from nemo_gym.errors import ConfigError

TASK_DATA = "task_data.py"


def command(
    *,
    resources_server: Annotated[
        str, typer.Option("--resources-server", metavar="NAME", help="A resources server, by name.")
    ],
    search_dir: SearchDirOption = None,
) -> int:
    """Print the JSON Schema of a row's task fields: of `TaskData` in the server's `task_data.py`."""
    roots = component_search_roots(search_dir or ())
    file = find_component("resources_servers", resources_server, roots).parents[1] / TASK_DATA
    if not file.is_file():
        raise ConfigError(f"`{resources_server}` does not describe its rows: there is no `{file}`.")
    module = load_user_module(file)
    if not hasattr(module, "TaskData"):
        raise ConfigError(f"`{file}` must have `TaskData`, a pydantic model or a union of models")
    print_json(TypeAdapter(module.TaskData).json_schema())
    return 0

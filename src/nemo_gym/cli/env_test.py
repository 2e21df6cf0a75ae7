"""`gym env test`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Annotated

import typer

from nemo_gym.cli.selection import SearchDirOption
from nemo_gym.config import component_search_roots, find_component
from nemo_gym.errors import ConfigError, MissingExtraError


def command(
    *,
    resources_server: Annotated[
        str, typer.Option("--resources-server", metavar="NAME", help="A resources server, by name.")
    ],
    search_dir: SearchDirOption = None,
) -> int:
    """Run the tests of a resources server's folder with pytest, in this Python.

    The exit code is pytest's. What the server's `requirements.txt` names has to be installed.
    """
    roots = component_search_roots(search_dir or ())
    folder = find_component("resources_servers", resources_server, roots).parents[1]
    if not (folder / "tests").is_dir():
        raise ConfigError(f"`{resources_server}` has no tests: there is no folder `{folder / 'tests'}`.")
    if importlib.util.find_spec("pytest") is None:
        raise MissingExtraError("tests need pytest: `python -m pip install pytest httpx`")
    # The root that holds the folder comes first: `resources_servers.NAME` is then this one.
    named = [str(folder.parents[1]), *(str(root) for root in roots)]
    environment = {**os.environ, "NEMO_GYM_EXTRA_ROOTS": os.pathsep.join(dict.fromkeys(named))}
    path = [str(folder.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    words = [sys.executable, "-m", "pytest", "--import-mode=importlib", f"--rootdir={folder}", str(folder)]
    # There, as the server itself runs: what is beside `app.py` is imported by its bare name.
    return subprocess.run(words, cwd=folder, env=environment, check=False).returncode

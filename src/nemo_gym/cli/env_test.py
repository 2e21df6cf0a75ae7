"""`gym env test`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from nemo_gym.cli.catalog import check_entry, exercise_entry
from nemo_gym.cli.output import print_json, show
from nemo_gym.cli.selection import SearchDirOption
from nemo_gym.config import component_search_roots, find_component
from nemo_gym.errors import ConfigError, MissingExtraError, UsageError


def command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="An environment with a manifest: its verifier is held to its cases."),
    ] = None,
    *,
    resources_server: Annotated[
        str | None,
        typer.Option("--resources-server", metavar="NAME", help="A resources server: pytest runs in its folder."),
    ] = None,
    search_dir: SearchDirOption = None,
    update_expected: Annotated[
        bool, typer.Option("--update-expected", help="Write what came out into the file of cases.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Run the tests of a resources server, or the cases of an environment's verifier, in this Python.

    The exit code of tests is pytest's. What the server's `requirements.txt` names has to be installed.
    """
    if (name is None) == (resources_server is None):
        raise UsageError("name what is to be tested: an environment, or `--resources-server NAME`.")
    if resources_server is not None:
        if update_expected or as_json:
            raise UsageError("`--update-expected` and `--json` are for an environment's cases: `gym env test NAME`.")
        return _run_pytest(resources_server, search_dir or [])
    roots = component_search_roots(search_dir or ())
    entry = check_entry(str(name), roots, search_dir or ())
    results = exercise_entry(entry, roots, update_expected=update_expected)
    if as_json:
        print_json({"name": name, "cases": len(results), "results": [asdict(result) for result in results]})
    else:
        show(f"{len(results)} cases hold" if not update_expected else f"{len(results)} cases written")
    return 0


def _run_pytest(resources_server: str, search_dirs: Sequence[str]) -> int:
    roots = component_search_roots(search_dirs)
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

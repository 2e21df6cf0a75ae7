"""`gym dataset make`: rows of tasks from an environment's own generator, its `make_dataset.py`."""

from __future__ import annotations

import errno
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from nemo_gym.cli.output import note
from nemo_gym.cli.selection import Overrides, SearchDirOption
from nemo_gym.cli.user_module import load_user_module
from nemo_gym.config import component_search_roots, find_component
from nemo_gym.config.overrides import parse_override
from nemo_gym.errors import ConfigError, nearest_name
from nemo_gym.records import codec
from nemo_gym.store import staged
from nemo_gym.store.atomic import is_written_through

GENERATOR = "make_dataset.py"

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)

RowMaker = Callable[..., Iterable[Mapping[str, Any]]]


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A resources server that can make its own tasks.")],
    settings: Overrides = None,
    *,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where the rows go (JSONL).")],
    size: Annotated[int | None, typer.Option("--size", min=1, help="How many rows.")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="The same seed gives the same rows.", show_default=False)
    ] = None,
    search_dir: SearchDirOption = None,
) -> int:
    """Make a dataset with an environment's own generator.

    What else a generator takes is in the environment's README, and is given as +key=value.
    """
    # Help needs none of what a run is made of, and it takes long to load.
    from nemo_gym.rollouts.output_check import check_no_run

    given = {key: value for key, value in (("size", size), ("seed", seed)) if value is not None}
    for token in settings or ():
        override = parse_override(token)
        if override.operation == "delete" or len(override.path) != 1:
            raise ConfigError(f"`{token}`: a generator's settings look like `+key=value`")
        given[override.key] = override.value
    make_rows = _generator_of(name, search_dir or ())
    _check_settings(name, make_rows, given)
    path = Path(output)
    check_no_run(path)
    _check_place(path)
    count = 0
    try:
        with staged(path) as file:
            for row in make_rows(**given):
                file.write(codec.encode_line(dict(row)))
                count += 1
    except OSError as error:
        # A generator reads files of its own; what is wrong with these is another matter.
        if error.errno not in _CANNOT_WRITE and str(error.filename) != str(path):
            raise
        raise ConfigError(f"`{path}` cannot be written: {_reason(error)}.") from error
    note(f"{count} rows in `{path}`")
    return 0


def _check_place(path: Path) -> None:
    """Make the folder of a file that is to be written. Raises `ConfigError` when there can be no such file."""
    if path.is_dir():
        raise ConfigError(f"`{path}` is a folder; name a file in it, such as `{path / 'tasks.jsonl'}`.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be written: `{error.filename}`: {_reason(error)}.") from error
    if not is_written_through(path) and not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"`{path}` cannot be written: no permission in `{path.parent}`.")


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def _generator_of(name: str, search_dirs: Iterable[str]) -> RowMaker:
    folder = find_component("resources_servers", name, component_search_roots(search_dirs)).parents[1]
    file = folder / GENERATOR
    if not file.is_file():
        raise ConfigError(f"`{name}` has no generator: there is no `{file}`. See its README.")
    make_rows: RowMaker | None = getattr(load_user_module(file), "make_rows", None)
    if make_rows is None:
        raise ConfigError(f"`{file}` must have a function `make_rows(**settings)` that yields rows")
    return make_rows


def _check_settings(name: str, make_rows: RowMaker, given: Mapping[str, Any]) -> None:
    known = list(inspect.signature(make_rows).parameters)
    for key in given:
        if key not in known:
            hint = nearest_name(key, known) or f" It takes {', '.join(f'`{item}`' for item in known)}."
            raise ConfigError(f"the generator of `{name}` has no setting `{key}`.{hint}")

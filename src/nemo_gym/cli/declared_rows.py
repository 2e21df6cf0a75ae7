"""The rows of a serving run: a given file, or one made of the datasets that the configuration declares."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_gym.cli.output import note
from nemo_gym.config import ResolvedConfig, find_file
from nemo_gym.rollouts.settings import E2ERolloutCollectionConfig, parse_settings
from nemo_gym.store import RunFiles, read_status


@contextlib.contextmanager
def settings_with_rows(resolved: ResolvedConfig) -> Iterator[dict[str, Any]]:
    """Give the settings with an input file. What was made for it goes when the block fails before the run began."""
    settings = dict(resolved.data)
    if settings.get("input_jsonl_fpath"):
        yield settings
        return
    e2e = parse_settings(E2ERolloutCollectionConfig, settings)
    target = e2e.files.prepared_folder / f"{e2e.split}.jsonl"
    made = [path for path in (target, *target.parents) if not path.exists()]
    try:
        _prepare(resolved, e2e, target)
        yield {**settings, "input_jsonl_fpath": str(target)}
    except BaseException:
        if not has_begun(e2e.files):
            for path in made:
                with contextlib.suppress(OSError):  # a folder in which something else lies by now
                    path.rmdir() if path.is_dir() else path.unlink()
        raise


def has_begun(files: RunFiles) -> bool:
    """Return whether the run that is saved there is this process's own."""
    with contextlib.suppress(ValueError):
        saved = read_status(files)
        return saved is not None and saved.pid == os.getpid()
    return False


def _prepare(resolved: ResolvedConfig, e2e: E2ERolloutCollectionConfig, target: Path) -> None:
    from nemo_gym.rollouts.datasets import datasets_of_split, prepare_split  # a given file needs neither
    from nemo_gym.rollouts.topology import Topology

    topology = Topology(resolved.data)
    datasets = datasets_of_split(topology, e2e.split)
    if e2e.reuse_existing_data_preparation and target.is_file():
        note(f"Using the rows prepared before in `{target}`.")
        return
    rows = prepare_split(
        topology, datasets, target, resolve=lambda path: find_file(path, resolved.roots, what="dataset")
    )
    names = ", ".join(f"`{dataset.path}`" for dataset in datasets)
    why = "" if "split" in resolved.data else " (no --input and no --split)"
    limit = resolved.data.get("limit")
    part = f"{limit} of {rows}" if isinstance(limit, int) and 0 < limit < rows else str(rows)
    note(f"Running {part} rows of split `{e2e.split}`{why}: {names}.")

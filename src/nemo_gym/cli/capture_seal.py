"""`gym capture seal` and `unseal`: finished captures compressed, and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from nemo_gym.capture import CaptureStore
from nemo_gym.capture.archive import sealed_path
from nemo_gym.cli.capture_places import size_text, stores_in
from nemo_gym.cli.output import note
from nemo_gym.errors import DataError

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A capture directory, or a folder above some.")]


def seal_command(directory: Directory) -> int:
    """Compress every rollout's capture into one zstd frame. Everything reads it as before.

    A rollout with calls that are still being served is left as it is. Any zstd tool unpacks the files:
    `zstd -d --long=27`.

    \b
    Examples:
      gym capture seal runs/first/model-calls
    """
    return _each(directory, CaptureStore.seal, "sealed")


def unseal_command(directory: Directory) -> int:
    """Turn sealed captures back into plain JSONL, byte for byte as they were.

    \b
    Examples:
      gym capture unseal runs/first/model-calls
    """
    return _each(directory, CaptureStore.unseal, "unsealed")


def _each(directory: Path, change: Callable[[CaptureStore, str], bool], word: str) -> int:
    count = before = after = failed = 0
    for store in stores_in(directory):
        for rollout_id in store.rollout_ids():
            if any(call.served for call in store.open_calls(rollout_id)):
                note(f"rollout `{rollout_id}` is left as it is: calls are still being served")
                continue
            size = _size(store, rollout_id)
            try:
                changed = change(store, rollout_id)
            except (OSError, DataError) as error:
                note(f"rollout `{rollout_id}` could not be {word}: {error}")
                failed += 1
                continue
            if changed:
                count, before, after = count + 1, before + size, after + _size(store, rollout_id)
    print(f"{count} rollouts {word}: {size_text(before)} became {size_text(after)}")
    return 1 if failed else 0


def _size(store: CaptureStore, rollout_id: str) -> int:
    data = store.path_for(rollout_id)
    return sum(path.stat().st_size for path in (data, sealed_path(data)) if path.exists())

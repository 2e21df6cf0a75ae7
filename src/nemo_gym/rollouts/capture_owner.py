"""Noticing that two evaluation runs share a capture directory: their ids hold no run id and would collide (A4)."""

from __future__ import annotations

import logging
from pathlib import Path

from nemo_gym.records.codec import decode_object, encode
from nemo_gym.store.atomic import write_atomic

logger = logging.getLogger(__name__)

_PREFIX = ".owner-"


def claim(directory: Path, *, run_id: str, output: Path) -> list[str]:
    """Leave this run's marker in the directory; return what the user must know about runs whose captures lie there.

    A marker of an earlier run with the same output is replaced: that run's captures are cleared as rows are sent.
    A directory that cannot be written is no concern of the collector, which only reads captures.
    """
    others: list[str] = []
    replaces = False
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for marker in sorted(directory.glob(f"{_PREFIX}*")):
            if marker.name == f"{_PREFIX}{run_id}":
                continue
            owner = _output_in(marker)
            if owner == str(output.absolute()):
                marker.unlink(missing_ok=True)
                replaces = any(True for path in directory.iterdir() if not path.name.startswith("."))
            elif owner is not None:
                others.append(owner)
        write_atomic(
            directory / f"{_PREFIX}{run_id}",
            encode({"run_id": run_id, "output": str(output.absolute())}),
            durable=False,
        )
    except OSError as error:
        logger.info("capture directory `%s` was not claimed: %s", directory, error)
    notes = []
    if replaces:
        notes.append(
            f"the model calls that an earlier run at `{output}` captured in `{directory}` make room, rollout by "
            "rollout, for those of this one; what its records hold of them stays. A directory for each run keeps both."
        )
    if others:
        named = ", ".join(f"`{other}`" for other in others)
        notes.append(
            f"Warning: the capture directory `{directory}` is also used by {named}. "
            "Rollout ids hold no run id, so captures of both runs share files: give each run a directory of its own."
        )
    return notes


def _output_in(marker: Path) -> str | None:
    try:
        output = decode_object(marker.read_bytes()).get("output")
    except (OSError, ValueError):
        return None
    return output if isinstance(output, str) else None

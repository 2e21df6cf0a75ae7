"""Noticing that two evaluation runs share a capture directory: their ids hold no run id and would collide (A4)."""

from __future__ import annotations

import logging
from pathlib import Path

from nemo_gym.records.codec import decode_object, encode
from nemo_gym.store.atomic import write_atomic

logger = logging.getLogger(__name__)

_PREFIX = ".owner-"


def claim(directory: Path, *, run_id: str, output: Path) -> str:
    """Leave this run's marker in the directory; return a warning when another run's is there too, else "".

    A marker of an earlier run with the same output is replaced: that run's captures are cleared as rows are sent.
    A directory that cannot be written is no concern of the collector, which only reads captures.
    """
    others: list[str] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for marker in sorted(directory.glob(f"{_PREFIX}*")):
            if marker.name == f"{_PREFIX}{run_id}":
                continue
            owner = _output_in(marker)
            if owner == str(output.absolute()):
                marker.unlink(missing_ok=True)
            elif owner is not None:
                others.append(owner)
        write_atomic(
            directory / f"{_PREFIX}{run_id}",
            encode({"run_id": run_id, "output": str(output.absolute())}),
            durable=False,
        )
    except OSError as error:
        logger.info("capture directory `%s` was not claimed: %s", directory, error)
    if not others:
        return ""
    return (
        f"the capture directory `{directory}` is also used by {', '.join(f'`{other}`' for other in others)}. "
        "Rollout ids hold no run id, so captures of both runs share files: give each run a directory of its own."
    )


def _output_in(marker: Path) -> str | None:
    try:
        output = decode_object(marker.read_bytes()).get("output")
    except (OSError, ValueError):
        return None
    return output if isinstance(output, str) else None

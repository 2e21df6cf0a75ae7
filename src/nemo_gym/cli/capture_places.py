"""Where `gym capture` looks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nemo_gym.capture import CaptureStore
from nemo_gym.capture.inspection import capture_directories
from nemo_gym.errors import UsageError


def stores_in(directory: Path) -> Iterator[CaptureStore]:
    """Yield the capture directories at or below `directory`; raises UsageError when there are none."""
    if not directory.is_dir():
        raise UsageError(f"`{directory}` is no directory")
    found = False
    for folder in capture_directories(directory):
        found = True
        yield CaptureStore(folder)
    if not found:
        raise UsageError(
            f"there are no captures in `{directory}`. Give the directory that `model_call_capture_dir` names."
        )


def size_text(size: int) -> str:
    """Return a number of bytes for people."""
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"

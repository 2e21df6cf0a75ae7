"""What can be said of a capture directory without knowing its run: how much there is, and what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nemo_gym.capture import archive
from nemo_gym.capture.store import DATA_SUFFIX, MARKER_SUFFIX, CaptureStore
from nemo_gym.records.codec import JsonObject

_SUFFIXES = (DATA_SUFFIX, DATA_SUFFIX + archive.SEALED_SUFFIX, MARKER_SUFFIX)


@dataclass(slots=True, kw_only=True)
class RolloutCapture:
    """One rollout's capture. `size_bytes` is what its files take on disk; `errors` counts calls with a category.

    `missing` names calls without a record, `{model_call_id, reason, time}`; `serving` those that still run. `unnamed`:
    the marker says that a call is missing, and not which. `unreadable`: why nothing could be read, or None.
    """

    rollout_id: str
    calls: int = 0
    errors: int = 0
    size_bytes: int = 0
    sealed: bool = False
    damaged_lines: int = 0
    missing: list[JsonObject] = field(default_factory=list)
    serving: int = 0
    unnamed: bool = False
    unreadable: str | None = None

    @property
    def problems(self) -> list[str]:
        """What is wrong, in words; empty when nothing is."""
        found = []
        if self.unreadable is not None:
            found.append(self.unreadable)
        if self.damaged_lines:
            found.append(f"{self.damaged_lines} damaged line{'s' if self.damaged_lines > 1 else ''}")
        found += [f"call {call['model_call_id']} is missing: {call['reason']}" for call in self.missing]
        if self.unnamed:
            found.append("marked incomplete, without the call's name")
        return found


def inspect_rollout(store: CaptureStore, rollout_id: str) -> RolloutCapture:
    """Return what there is of a rollout; nothing on disk makes this raise."""
    found = RolloutCapture(rollout_id=rollout_id)
    data = store.path_for(rollout_id)
    for path in (data, archive.sealed_path(data)):
        if path.exists():
            found.size_bytes += path.stat().st_size
            found.sealed = path != data
    try:
        lines, found.damaged_lines = store.read_available(rollout_id)
        known = {str(line.get("model_call_id")) for _, line in lines}
        missing = store.missing_calls(rollout_id, known)
        running = {call.model_call_id for call in store.open_calls(rollout_id) if call.served}
        found.unnamed = store.misses_unnamed_calls(rollout_id)
    except (OSError, ValueError) as error:
        found.unreadable = f"cannot be read: {error}"
        return found
    found.calls = len(lines)
    found.errors = sum(line.get("error_category") is not None for _, line in lines)
    found.missing = [call for call in missing if call["model_call_id"] not in running]
    found.serving = len(running)
    return found


def capture_directories(path: Path) -> Iterator[Path]:
    """Yield `path` when it holds captures, else every folder below it that does, in order."""
    for folder, below, names in os.walk(path):
        below.sort()
        if any(name.endswith(_SUFFIXES) for name in names) or ".open-calls" in below:
            below.clear()
            yield Path(folder)

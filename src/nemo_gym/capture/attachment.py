"""Captured calls on a rollout record, and clearing them before a dispatch (C11, C18, C19).

No join happens here: which invocation made which call is the trajectory's business.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.capture.reading import read_available_model_call_records, sum_model_calls
from nemo_gym.capture.store import CaptureStore
from nemo_gym.records import gaps as gap_codes
from nemo_gym.records import identity, keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.model_calls import ModelCallRecord

_LOG = logging.getLogger(__name__)
_NAMED_CALLS = 20


@dataclass(frozen=True, slots=True)
class AttachedCapture:
    """What was attached: `capture` is the very object on the record, `calls` the records it was made from.

    `complete` says that every line could be read and no call is known to be missing.
    """

    rollout_id: str
    capture: JsonObject
    calls: list[ModelCallRecord]
    complete: bool


def attach_model_call_capture(
    record: MutableMapping[str, Any],
    *,
    row: Mapping[str, Any],
    capture_dirs: Sequence[str | Path | CaptureStore],
    include_payloads: bool,
    encoded_bodies: bool = False,
) -> AttachedCapture | None:
    """Set `record["ng_model_call_capture"] = {rollout_id, metrics, calls[, gaps]}` from the capture of `row`.

    Nothing else of the record is touched (C19). `encoded_bodies` is for a record that is only going to be written: its
    bodies are then `codec.Encoded`. Returns None, and changes nothing, without directories or when the row
    has no identity. Raises ValueError when the row's explicit id is unusable.
    """
    if not capture_dirs:
        return None
    rollout_id = identity.rollout_id_of(row)
    if rollout_id is None:
        return None
    calls: list[ModelCallRecord] = []
    gaps: list[JsonObject] = []
    for directory in capture_dirs:
        _read(directory, rollout_id, calls, gaps, encoded_bodies)
    if not calls and not gaps:
        gaps.append({"code": gap_codes.CAPTURE_NO_RECORDS})
    capture: JsonObject = {
        "rollout_id": rollout_id,
        "metrics": sum_model_calls(calls),
        "calls": [call.model_dump(include_payloads=include_payloads) for call in calls],
    }
    if gaps:
        capture["gaps"] = gaps
    record[keys.MODEL_CALL_CAPTURE] = capture
    return AttachedCapture(rollout_id, capture, calls, complete=not gaps)


def clear_model_call_captures_for_rollouts(
    rows: Iterable[Mapping[str, Any]], capture_dirs: Sequence[str | Path | CaptureStore]
) -> None:
    """Delete the captures of exactly the ids that are about to be dispatched (C11); rows without identity are skipped.

    A call of an earlier dispatch that is still being served is not recorded when it ends. Raises OSError when a file
    cannot be removed: dispatching over it would mix two attempts.
    """
    stores = [_store(directory) for directory in capture_dirs]
    for row in rows if stores else ():
        rollout_id = identity.rollout_id_of(row)
        if rollout_id is not None:
            for store in stores:
                store.delete(rollout_id)


def seal_rollout(row: Mapping[str, Any], capture_dirs: Sequence[str | Path]) -> bool:
    """Compress the capture of a rollout whose record is written; returns whether anything was compressed.

    A call that arrives later goes to a plain file beside it. Never raises: a capture that cannot be sealed stays as it
    is, with a warning.
    """
    try:
        rollout_id = identity.rollout_id_of(row)
        if rollout_id is None:
            return False
        sealed = [CaptureStore(directory).seal(rollout_id) for directory in capture_dirs]
        return any(sealed)
    except (OSError, ValueError) as error:
        _LOG.warning("capture: a rollout's capture could not be sealed: %s", error)
        return False


def _store(directory: str | Path | CaptureStore) -> CaptureStore:
    return directory if isinstance(directory, CaptureStore) else CaptureStore(directory)


def _read(
    directory: str | Path | CaptureStore,
    rollout_id: str,
    calls: list[ModelCallRecord],
    gaps: list[JsonObject],
    encoded_bodies: bool,
) -> None:
    """Add one directory's calls and gaps; nothing that is on disk makes this raise."""
    try:
        store = _store(directory)
        found, invalid = read_available_model_call_records(store, rollout_id, encoded_bodies=encoded_bodies)
        missing, misses_unnamed = store.losses(rollout_id, {str(call.model_call_id) for call in found})
        first = len(calls)
        for call in found if first else ():  # a second directory goes on counting
            call.call_index += first
        calls += found
    except (OSError, ValueError):
        gaps.append({"code": gap_codes.CAPTURE_UNREADABLE})
        return
    if invalid:
        gaps.append({"code": gap_codes.CAPTURE_RECORDS_UNREADABLE, "detail": f"count={invalid}"})
    if missing or misses_unnamed:
        gap: JsonObject = {"code": gap_codes.CAPTURE_INCOMPLETE}
        if missing:
            names = [str(call["model_call_id"]) for call in missing]
            more = f" and {len(names) - _NAMED_CALLS} more" if len(names) > _NAMED_CALLS else ""
            gap["detail"] = "calls=" + ",".join(names[:_NAMED_CALLS]) + more
        gaps.append(gap)

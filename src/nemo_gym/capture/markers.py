"""Naming the calls that could not be recorded, in their rollouts' incomplete markers.

A full disk refuses the marker line too. Then the line is owed: it is tried again when a write has succeeded, and when
the writer is flushed. Until it is durable the call stays announced in the ledger of open calls, as one that nobody
need wait for, so that it is named even when this process dies first.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from nemo_gym.capture.open_calls import OpenCallLedger, Slot
from nemo_gym.capture.store import CaptureStore

_LOG = logging.getLogger(__name__)


class Marker(NamedTuple):
    """A line for a rollout's incomplete marker, and where the ledger announces its call."""

    model_call_id: str
    reason: str
    slot: Slot | None = None


class MarkerBook:
    """The marker lines that are still to be written. Thread-safe; a line is written once."""

    def __init__(self, store: CaptureStore, ledger: OpenCallLedger) -> None:
        self._store, self._ledger = store, ledger
        self._lock = threading.Lock()
        """Held while lines are written: whoever pays next finds them either durable or still owed."""
        self._owed: deque[tuple[str, Marker]] = deque()

    @property
    def owes(self) -> bool:
        """Whether a line is still to be written."""
        return bool(self._owed)

    def write(self, rollout_id: str, markers: Sequence[Marker]) -> None:
        """Write the lines after those that are owed, as far as that can be done now."""
        for marker in markers:
            self._ledger.lose(marker.slot)
        with self._lock:
            self._owed.extend((rollout_id, marker) for marker in markers)
            self._pay()

    def pay(self) -> None:
        """Write what is owed, as far as that can be done now. Waits for whoever is writing."""
        with self._lock:
            self._pay()

    def _pay(self) -> None:
        while self._owed:
            rollout_id, marker = self._owed[0]
            try:
                if not self._ledger.is_void(marker.slot, marker.model_call_id):  # else the rollout was cleared since
                    self._store.mark_incomplete(rollout_id, model_call_id=marker.model_call_id, reason=marker.reason)
            except OSError as error:
                _LOG.error("capture: rollout `%s` misses a call and cannot be marked yet: %s", rollout_id, error)
                self._owed.rotate(-1)  # one that can never be written must not stand before the others
                return
            self._owed.popleft()
            self._ledger.end(marker.slot)

"""When a rollout's evidence is cleared, read, attached and deleted around its `/run` (A5, A10, A13, C11).

File work happens in threads; what is attached is decided in `enrich`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.capture import (
    CaptureStore,
    await_model_call_capture_quiescence,
    clear_model_call_captures_for_rollouts,
    seal_rollout,
)
from nemo_gym.errors import BoundaryError
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.gaps import PROJECTION_FAILED
from nemo_gym.records.identity import rollout_id_of
from nemo_gym.rollouts.enrich import attach_evidence
from nemo_gym.rollouts.lane import Lane
from nemo_gym.trajectory import payloads_are_redacted

QUIESCENCE_TIMEOUT_S = 5.0
SHORT_BYTES = 256 << 10
"""A capture up to this size is read and projected at once."""


@dataclass(frozen=True, kw_only=True)
class EvidencePolicy:
    """What is done with the evidence of each rollout.

    `capture_dirs` is empty when observability is off. `attach` puts capture, trajectory and performance on results;
    `keep_captured_payloads` leaves bodies in `ng_model_call_capture` after the projection; `delete_captures` removes a
    capture once its calls are on the record; `seal_captures` compresses it once the record is written;
    `encoded_bodies` puts captured bodies and lists of records on results as the bytes that are written, when nobody but
    the writer gets them.
    """

    capture_dirs: Sequence[Path] = field(default_factory=tuple)
    attach: bool = False
    include_payloads: bool = True
    keep_captured_payloads: bool = False
    delete_captures: bool = False
    seal_captures: bool = False
    encoded_bodies: bool = False
    _clearing: Lane = field(default_factory=Lane, init=False, repr=False)
    _attaching: Lane = field(default_factory=Lane, init=False, repr=False)

    @functools.cached_property
    def _stores(self) -> list[CaptureStore]:
        return [CaptureStore(directory) for directory in self.capture_dirs]

    @property
    def captures(self) -> bool:
        """Whether model calls are captured at all."""
        return bool(self.capture_dirs)

    def concerns(self, result: Mapping[str, Any]) -> bool:
        """Return whether `attach_to` has anything to do for this result."""
        return self.attach and (self.captures or any(key in result for key in keys.EVIDENCE_KEYS))

    async def clear_before(self, row: JsonObject) -> None:
        """Remove any capture of exactly the id that is about to be dispatched (C11)."""
        try:
            await self._clear(row)
        except OSError as error:
            raise BoundaryError(
                f"an older capture of rollout `{rollout_id_of(row)}` cannot be removed ({error}); "
                "running it again would mix the calls of two tries"
            ) from error

    def attach_now(self, row: JsonObject, result: JsonObject, *, latency_ms: float | None) -> bool:
        """Attach a result's evidence in place when nothing has to be waited for; return whether that was done."""
        if not self._attaching.free:
            return False
        rollout_id = rollout_id_of(row)
        size = 0
        try:
            for store in self._stores if rollout_id is not None else ():
                if any(call.served for call in store.open_calls(rollout_id)):
                    return False
                size += store.size_of(str(rollout_id))
        except OSError:
            return False
        if size > SHORT_BYTES:
            return False
        self._attaching.now(self._attach(row, result, latency_ms))
        return True

    async def attach_to(self, row: JsonObject, result: JsonObject, *, latency_ms: float | None) -> None:
        """Wait until the rollout's calls are written, at most five seconds, then attach its evidence in place."""
        rollout_id = rollout_id_of(row)
        for store in self._stores if rollout_id is not None else ():
            # A directory that cannot be read becomes a gap when it is attached.
            with contextlib.suppress(OSError):
                await await_model_call_capture_quiescence(store, str(rollout_id), QUIESCENCE_TIMEOUT_S)
        await self._attaching.run(self._attach(row, result, latency_ms))

    def _attach(self, row: JsonObject, result: JsonObject, latency_ms: float | None) -> Callable[[], object]:
        return functools.partial(
            attach_evidence,
            row,
            result,
            capture_dirs=self._stores,
            rollout_latency_ms=latency_ms,
            include_payloads=self.include_payloads,
            keep_captured_payloads=self.keep_captured_payloads,
            include_perf_detail=True,
            encoded_bodies=self.encoded_bodies,
        )

    @property
    def tidies(self) -> bool:
        """Whether something is done with a capture after its record is written."""
        return self.delete_captures or self.seal_captures

    def may_delete(self, result: Mapping[str, Any]) -> bool:
        """Return whether the capture is redundant: every call was read, and projected, with its bodies.

        Evidence whose bodies are withheld (`multimodal_history_redacted`) leaves the capture as their only place.
        """
        if not self.delete_captures or payloads_are_redacted(result):
            return False
        capture, trajectory = result.get(keys.MODEL_CALL_CAPTURE), result.get(keys.TRAJECTORY)
        if not isinstance(capture, Mapping) or not isinstance(trajectory, Mapping) or capture.get("gaps"):
            return False
        return all(_gap_code(gap) != PROJECTION_FAILED for gap in trajectory.get("gaps") or ())

    async def delete_after(self, row: JsonObject) -> None:
        """Remove the capture of this attempt, whose calls are on a durable record."""
        await self._clear(row)

    async def _clear(self, row: JsonObject) -> None:
        clear = functools.partial(clear_model_call_captures_for_rollouts, [row], self._stores)
        await self._clearing.run(clear, short=True)

    async def seal_after(self, row: JsonObject) -> None:
        """Compress the capture of this attempt, whose record is written."""
        await self._clearing.run(functools.partial(seal_rollout, row, self.capture_dirs))


def _gap_code(gap: object) -> object:
    return gap.get("code") if isinstance(gap, Mapping) else None

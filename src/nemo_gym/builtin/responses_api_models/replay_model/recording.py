"""A captured run, ready to be asked: which recorded call answers a request."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.base_responses_api_model import CaptureStore
from nemo_gym.builtin.responses_api_models.replay_model.content import exact_key, spoken_key
from nemo_gym.dialects import MODEL_CALL_PATHS, Dialect
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)
_SUFFIXES = (".capture.jsonl", ".capture.jsonl.zst")
_DIALECTS = frozenset(MODEL_CALL_PATHS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One call: its answer in its dialect, and its times in seconds. `status` is an HTTP status."""

    rollout_id: str
    dialect: Dialect
    started_at: float
    status: int
    response: dict[str, Any]
    latency_s: float
    ttft_s: float


class Recording:
    """The calls of a run by what they asked."""

    def __init__(self, calls: Iterator[tuple[dict[str, Any], RecordedCall]]) -> None:
        self.size = 0
        self._exact: dict[bytes, list[RecordedCall]] = defaultdict(list)
        self._spoken: dict[bytes, list[RecordedCall]] = defaultdict(list)
        self._given: Counter[tuple[str, bytes]] = Counter()
        for request, call in sorted(calls, key=lambda pair: pair[1].started_at):
            self.size += 1
            self._exact[exact_key(request, call.dialect)].append(call)
            spoken = spoken_key(request, call.dialect)
            if spoken is not None:
                self._spoken[spoken].append(call)

    def answer(self, body: dict[str, Any], dialect: Dialect, *, caller: str) -> RecordedCall | None:
        """Return the call that answers a request, None when it was never captured.

        Of several calls with the same request, each `caller` gets one after the other, its own rollout's where there
        are some, and the last one from then on.
        """
        key = exact_key(body, dialect)
        found = self._exact.get(key)
        if not found:
            spoken = spoken_key(body, dialect)
            found, key = (self._spoken.get(spoken), spoken) if spoken is not None else (None, key)
        if not found:
            return None
        own = [call for call in found if call.rollout_id == caller]
        candidates = own or found
        place = (caller, key)
        turn = self._given[place]
        self._given[place] += 1
        return candidates[min(turn, len(candidates) - 1)]


def load_recording(path: Path) -> Recording:
    """Read the captures in a file, or anywhere under a folder. Raises ConfigError when there are none."""
    if not path.exists():
        raise ConfigError(f"`captures_fpath`: there is no `{path}`; name a run's folder, or a capture file")
    files = [path] if path.is_file() else sorted(found for found in path.rglob("*.capture.jsonl*") if found.is_file())
    files = [found for found in files if found.name.endswith(_SUFFIXES)]
    recording = Recording(pair for found in files for pair in _calls_of(found))
    if not recording.size:
        raise ConfigError(
            f"`captures_fpath`: `{path}` holds no captured call with an answer; captures are written when "
            "`observability_enabled` is true"
        )
    return recording


def _calls_of(path: Path) -> Iterator[tuple[dict[str, Any], RecordedCall]]:
    rollout_id = path.name.removesuffix(".zst").removesuffix(".capture.jsonl")
    lines, damaged = CaptureStore(path.parent).read_available(rollout_id)
    if damaged:
        logger.warning("`%s`: %d lines cannot be read and will not be replayed", path, damaged)
    for _, line in lines:
        request, response, dialect = line.get("request"), line.get("response"), line.get("dialect")
        if not isinstance(request, dict) or dialect not in _DIALECTS:
            continue
        error = line.get("stream_error")
        failed = isinstance(error, dict)
        if failed:
            response = {"error": error}
        if not isinstance(response, dict) or (line.get("stream") and line.get("terminal") is None):
            continue  # the client left, or the answer was cut, or there was none: there is nothing whole to say again
        status = line.get("client_status_code") or line.get("status_code") or 200
        latency = _seconds(line.get("latency_ms"))
        yield (
            request,
            RecordedCall(
                rollout_id=rollout_id,
                dialect=dialect,
                started_at=float(line.get("started_at") or 0),
                status=502 if failed and status < 400 else int(status),
                response=response,
                latency_s=latency,
                ttft_s=min(_seconds(line.get("latency_ttft_ms")) or latency, latency),
            ),
        )


def _seconds(milliseconds: Any) -> float:
    return float(milliseconds) / 1000 if isinstance(milliseconds, (int, float)) else 0.0

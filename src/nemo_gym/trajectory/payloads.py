"""Where request and response bodies may stay on a record (A10).

After a successful projection the trajectory holds them, so the capture attachment drops its copies; the store keeps the
originals. A producer that left images out of its record asks for no bodies at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_gym.records import keys
from nemo_gym.records.gaps import PAYLOADS_REDACTED


def payloads_are_redacted(result: Mapping[str, Any]) -> bool:
    """Return whether the agent's own evidence says that payloads were left out on purpose."""
    for key in (keys.TRAJECTORY, keys.AGENT_OBSERVATIONS):
        evidence = result.get(key)
        gaps = evidence.get("gaps") if isinstance(evidence, Mapping) else None
        if isinstance(gaps, list) and any(
            isinstance(gap, Mapping) and gap.get("code") == PAYLOADS_REDACTED for gap in gaps
        ):
            return True
    return False


def drop_captured_payloads(capture: object) -> None:
    """Remove the bodies from every call of a capture attachment, in place."""
    calls = capture.get("calls") if isinstance(capture, dict) else None
    if not isinstance(calls, list):
        return
    payload_keys = keys.PAYLOAD_KEYS
    for call in calls:
        if isinstance(call, dict):
            for key in payload_keys:
                call.pop(key, None)

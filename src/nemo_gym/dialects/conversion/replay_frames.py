"""The framing of server-sent events."""

from __future__ import annotations

from nemo_gym.records.codec import JsonObject, encode

DONE = b"data: [DONE]\n\n"


def named_event(data: JsonObject) -> bytes:
    """Return an event whose name is its `type`."""
    return b"event: " + str(data["type"]).encode() + b"\ndata: " + encode(data) + b"\n\n"


def plain_event(data: JsonObject) -> bytes:
    """Return an event without a name."""
    return b"data: " + encode(data) + b"\n\n"

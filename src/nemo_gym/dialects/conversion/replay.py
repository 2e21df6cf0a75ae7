"""A finished object as the event stream that its dialect would have sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from nemo_gym.dialects.conversion.replay_chat import chat_events
from nemo_gym.dialects.conversion.replay_messages import messages_events
from nemo_gym.dialects.conversion.replay_responses import responses_events
from nemo_gym.records.codec import JsonObject

STREAM_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
"""Headers of a replayed stream; the last keeps proxies from collecting it."""


def replay_events(
    dialect: Literal["responses", "chat", "messages"], response: JsonObject, *, include_usage: bool = False
) -> Iterator[bytes]:
    """Yield `response`, a finished object of `dialect`, as server-sent events, one complete event per chunk.

    An error object of the dialect becomes its in-stream error. `include_usage` is what a chat client asked for; the
    other dialects always carry usage.
    """
    if dialect == "responses":
        return responses_events(response)
    if dialect == "chat":
        return chat_events(response, include_usage=include_usage)
    return messages_events(response)

"""The three API shapes, the paths that speak them, and how to tell an answer's shape from itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

Dialect: TypeAlias = Literal["responses", "chat", "messages"]

DIALECTS: tuple[Dialect, ...] = ("responses", "chat", "messages")

MODEL_CALL_PATHS: Mapping[str, Dialect] = MappingProxyType(
    {"/v1/responses": "responses", "/v1/chat/completions": "chat", "/v1/messages": "messages"}
)
"""Path after the rollout prefix -> the dialect it speaks. Without trailing slashes."""


def dialect_of(response: object) -> Dialect | None:
    """Return the dialect that a finished answer is written in, or None when its shape says nothing."""
    if not isinstance(response, dict):
        return None
    if isinstance(response.get("choices"), list):
        return "chat"
    if isinstance(response.get("output"), list) or response.get("object") == "response":
        return "responses"
    if response.get("type") == "message" and isinstance(response.get("content"), list):
        return "messages"
    return None

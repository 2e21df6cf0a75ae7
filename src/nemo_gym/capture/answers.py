"""What the answer of a call says: tokens, identity, how it ended, what it asks for."""

from __future__ import annotations

from typing import NamedTuple

from nemo_gym.dialects.finish import finish_reason_of, model_of, response_id_of, response_status_of
from nemo_gym.dialects.names import Dialect
from nemo_gym.dialects.reasoning import reasoning_of
from nemo_gym.dialects.tool_calls import tool_calls_of
from nemo_gym.dialects.usage import TokenCounts, token_counts, usage_of
from nemo_gym.records.codec import JsonObject

SHAPE_FAULTS = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError)
"""What reading a body of an impossible shape can raise."""

_OBJECT_OR_NULL = frozenset({dict, type(None)})


class Answer(NamedTuple):
    """What a call's answer says."""

    tokens: TokenCounts
    response_id: str | None
    model: str | None
    status: str | None
    finish_reason: str | None
    tool_calls: list[JsonObject]
    reasoning: str | None


def answer_to(request: object, response: object, dialect: Dialect | None, usage: object) -> Answer:
    """Return what the answer says; raises one of `SHAPE_FAULTS` when it has an impossible shape."""
    return Answer(
        # What the answer says; else what the server knew, although the answer could not say it. Null says that nothing
        # was counted, and that numbers in the answer only fill its shape.
        token_counts(None if usage is None else usage_of(response) or usage, dialect),
        response_id_of(response),
        model_of(response, request),
        response_status_of(response),
        finish_reason_of(response),
        tool_calls_of(response, dialect),
        reasoning_of(response, dialect),
    )


def check_bodies(request: object, response: object, stream_error: object) -> None:
    """Raise ValueError when one is neither an object nor null."""
    if not (
        type(response) in _OBJECT_OR_NULL
        and type(request) in _OBJECT_OR_NULL
        and (stream_error is None or type(stream_error) is dict)
    ):
        raise ValueError("a body is an object")

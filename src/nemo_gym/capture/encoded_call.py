"""A line of a capture file as a record whose bodies stay the bytes that they are: nobody looks inside them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import orjson

from nemo_gym.capture.answers import Answer, answer_to, check_bodies
from nemo_gym.capture.store import is_utf8
from nemo_gym.dialects.names import Dialect
from nemo_gym.dialects.usage import TokenCounts
from nemo_gym.records.codec import Encoded
from nemo_gym.records.evidence import Finite
from nemo_gym.records.model_calls import ModelCallRecord


def encoded_call(line: memoryview, call_index: int, ascii_only: bool) -> ModelCallRecord:
    """Return the record of a well-formed line, the bodies as they are in it; raises for any other line."""
    call = _decode_encoded(line)
    if call.type != "call" or not (ascii_only or is_utf8(line)):
        raise ValueError("not a well-formed call")
    request, response = bytes(call.request), bytes(call.response)
    # What nobody decodes may hold a number that is out of range. The fastest decoder is the cheapest check, and
    # what it refuses without need (integers of hundreds of digits) is only read again, exactly.
    asked, answered = orjson.loads(request), _decode_any(response)
    check_bodies(asked, answered, call.stream_error)
    call.complete(answer_to(asked, answered, call.dialect, call.usage))
    call.call_index = call_index
    call.request = None if asked is None else Encoded(request)  # type: ignore[assignment]
    call.response = None if answered is None else Encoded(response)  # type: ignore[assignment]
    return call


# What a record has and no line states; `complete` sets each, whatever a line has under these names.
_DERIVED = (
    "call_index",
    *("response_id", "model", "response_status", "finish_reason", "tool_calls", "reasoning_content", "problems"),
    *TokenCounts.__struct_fields__,
)


class _EncodedCall(
    ModelCallRecord, kw_only=True, rename={"latency_total_ms": "latency_ms"} | {name: f"{name}?" for name in _DERIVED}
):
    """A line decoded straight into a record, the bodies as they are in it; this is done for every call of a run."""

    type: Any = "call"
    usage: Any = msgspec.UNSET
    call_index: int = 0
    dialect: Dialect | None = None
    started_at: Finite | None = None
    completed_at: Finite | None = None
    request: msgspec.Raw = msgspec.Raw(b"null")  # type: ignore[assignment]
    response: msgspec.Raw = msgspec.Raw(b"null")  # type: ignore[assignment]
    latency_total_ms: Finite | None = None
    latency_ttft_ms: Finite | None = None
    latency_first_content_ms: Finite | None = None
    stream_error: Any = None

    def complete(self, answer: Answer) -> None:
        """Take what the answer says."""
        tokens = answer.tokens
        self.response_id, self.model, self.response_status = answer.response_id, answer.model, answer.status
        self.finish_reason, self.tool_calls = answer.finish_reason, answer.tool_calls
        self.reasoning_content, self.problems = answer.reasoning, None
        self.tokens_in, self.tokens_out = tokens.tokens_in, tokens.tokens_out
        self.tokens_reasoning, self.tokens_total = tokens.tokens_reasoning, tokens.tokens_total
        self.cached_tokens, self.cache_creation_tokens = tokens.cached_tokens, tokens.cache_creation_tokens
        self.cache_hit = tokens.cache_hit

    def model_dump(
        self, *, exclude: Collection[str] = (), exclude_none: bool = False, include_payloads: bool = True
    ) -> dict[str, Any]:
        """Return what a plain record would."""
        own = (*exclude, "type", "usage")
        return super().model_dump(exclude=own, exclude_none=exclude_none, include_payloads=include_payloads)


_decode_encoded = msgspec.json.Decoder(_EncodedCall).decode
_decode_any = msgspec.json.Decoder().decode

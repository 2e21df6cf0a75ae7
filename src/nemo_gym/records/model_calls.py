"""One captured model call, as readers see it.

`ModelCallRecord` is derived from one line of a capture file and is never stored (C13). None means unknown, never zero.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.evidence import ModelServerRef

SUMMED_FIELDS = ("tokens_in", "tokens_out", "tokens_reasoning", "tokens_total", "cached_tokens", "latency_total_ms")
"""The fields that `ng_model_call_capture.metrics` adds up."""


class ModelCallRecord(msgspec.Struct, kw_only=True):
    """One captured exchange with a model server.

    `call_index` is the position in the file, which is durable append order and nothing more: neither it nor the times
    say which call caused which. `started_at` and `completed_at` are UTC Unix seconds around the inner application; the
    latencies are milliseconds of a monotonic clock. `client_session_id` and `invocation_id` are what the client
    declared: evidence, not proof. `problems` names what could not be read of the exchange, None when all could.
    """

    call_index: int
    model_call_id: str | None = None
    response_id: str | None = None
    client_session_id: str | None = None
    invocation_id: str | None = None
    model_ref: ModelServerRef | None = None
    model: str | None = None
    dialect: str | None = None
    status_code: int | None = None
    client_status_code: int | None = None
    response_status: str | None = None
    finish_reason: str | None = None
    upstream_attempted: bool | None = None
    response_source: str | None = None
    upstream_status_code: int | None = None
    local_response_reason: str | None = None
    started_at: float | None = None
    completed_at: float | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_reasoning: int | None = None
    tokens_total: int | None = None
    request: JsonObject | None = None
    response: JsonObject | None = None
    request_raw: str | None = None
    response_raw: str | None = None
    tool_calls: list[JsonObject] = msgspec.field(default_factory=list)
    reasoning_content: str | None = None
    cache_hit: bool | None = None
    cached_tokens: int | None = None
    cache_creation_tokens: int | None = None
    error_category: str | None = None
    latency_total_ms: float | None = None
    latency_ttft_ms: float | None = None
    latency_first_content_ms: float | None = None
    stream: bool | None = None
    terminal: str | None = None
    stream_error: JsonObject | None = None
    problems: list[str] | None = None

    def model_dump(
        self, *, exclude: Collection[str] = (), exclude_none: bool = False, include_payloads: bool = True
    ) -> dict[str, Any]:
        """Return the record as a plain dict; payloads are the same objects, not copies.

        Without `include_payloads` the keys `request`, `response`, `request_raw`, `response_raw` are left out.
        """
        dump: dict[str, Any] = msgspec.structs.asdict(self)
        if self.model_ref is not None:
            dump["model_ref"] = {"type": self.model_ref.type, "name": self.model_ref.name}
        for name in exclude if include_payloads else (*exclude, *keys.PAYLOAD_KEYS):
            dump.pop(name, None)
        return {name: value for name, value in dump.items() if value is not None} if exclude_none else dump

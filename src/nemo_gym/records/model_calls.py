"""One captured model call, as readers see it.

`ModelCallRecord` is derived from one line of a capture file and is never stored (C13). None means unknown, never zero.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

import msgspec

from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.evidence import ModelServerRef, says

SUMMED_FIELDS = ("tokens_in", "tokens_out", "tokens_reasoning", "tokens_total", "cached_tokens", "latency_total_ms")
"""The fields that `ng_model_call_capture.metrics` adds up."""


class ModelCallRecord(msgspec.Struct, kw_only=True):
    """One captured exchange with a model server.

    `call_index` is the position in the file, which is durable append order and nothing more: neither it nor the times
    say which call caused which. `started_at` and `completed_at` are UTC Unix seconds around the inner application; the
    latencies are milliseconds of a monotonic clock. `client_session_id` and `invocation_id` are what the client
    declared: evidence, not proof. `problems` names what could not be read of the exchange, None when all could.
    """

    call_index: Annotated[int, says("Position in the capture file, from 0: durable append order and nothing more.")]
    model_call_id: Annotated[
        str | None, says("The id that the model server returned as `x-ng-model-call-id`; null if none.")
    ] = None
    response_id: Annotated[str | None, says("The `id` of the response body; null if it has none.")] = None
    client_session_id: Annotated[
        str | None, says("The one `x-session-id` that the client declared; null if none, or several.")
    ] = None
    invocation_id: Annotated[str | None, says("The invocation that the URL named; null if it named none.")] = None
    model_ref: Annotated[ModelServerRef | None, says("The model server that was called; null if not known.")] = None
    model: Annotated[str | None, says("The model's name in the response, else in the request; null if neither.")] = None
    dialect: Annotated[str | None, says("The API shape: `responses`, `chat` or `messages`; null if not known.")] = None
    status_code: Annotated[
        int | None, says("HTTP status that capture saw sent, else the exception's; null if neither.")
    ] = None
    client_status_code: Annotated[
        int | None,
        says("HTTP status that capture saw sent to the client; null if it saw none, as when the handler raised."),
    ] = None
    response_status: Annotated[str | None, says("The response body's own `status`; null if it has none.")] = None
    finish_reason: Annotated[
        str | None, says("Why generation stopped, in the provider's word; null if it did not say.")
    ] = None
    upstream_attempted: Annotated[bool | None, says("Whether the provider was called; null if not known.")] = None
    response_source: Annotated[str | None, says("Who made the answer: `upstream` or `local`; null if not known.")] = (
        None
    )
    upstream_status_code: Annotated[
        int | None, says("HTTP status that the provider gave; null if it gave none, or not known.")
    ] = None
    local_response_reason: Annotated[
        str | None, says("Why the model server answered by itself; null if it did not.")
    ] = None
    started_at: Annotated[float | None, says("When the call began, UTC Unix seconds; null if not known.")] = None
    completed_at: Annotated[float | None, says("When the answer ended, UTC Unix seconds; null if not known.")] = None
    tokens_in: Annotated[int | None, says("The whole prompt, tokens, cached part included; null if not reported.")] = (
        None
    )
    tokens_out: Annotated[int | None, says("Generated tokens, reasoning included; null if not reported.")] = None
    tokens_reasoning: Annotated[int | None, says("Generated tokens that are reasoning; null if not reported.")] = None
    tokens_total: Annotated[int | None, says("Prompt and generated tokens; null if not known.")] = None
    request: Annotated[JsonObject | None, says("The request body; null if it was no JSON object.")] = None
    response: Annotated[
        JsonObject | None, says("The response body, a stream put together; null if it was no JSON object.")
    ] = None
    request_raw: Annotated[str | None, says("The request body as text, when it was no JSON object; else null.")] = None
    response_raw: Annotated[
        str | None, says("The response as text, if no JSON object or a stream that did not end well; else null.")
    ] = None
    tool_calls: Annotated[
        list[JsonObject], says("Tool calls of the response: `call_id`, `name`, `arguments`; maybe empty.")
    ] = msgspec.field(default_factory=list)
    reasoning_content: Annotated[str | None, says("The reasoning that the response shows; null if it shows none.")] = (
        None
    )
    cache_hit: Annotated[bool | None, says("Whether any prompt token came from a cache; null if not reported.")] = None
    cached_tokens: Annotated[int | None, says("Prompt tokens that were read from a cache; null if not reported.")] = (
        None
    )
    cache_creation_tokens: Annotated[
        int | None, says("Prompt tokens that were written to a cache; null if not reported.")
    ] = None
    error_category: Annotated[
        str | None, says("The kind of failure, such as `timeout` or `cancelled`; null when it worked.")
    ] = None
    latency_total_ms: Annotated[
        float | None, says("From request to end of answer, milliseconds; null if not measured.")
    ] = None
    latency_ttft_ms: Annotated[
        float | None, says("Time to a stream's first byte, milliseconds; null if no stream.")
    ] = None
    latency_first_content_ms: Annotated[
        float | None, says("Time to a stream's first content, milliseconds; null if there was none.")
    ] = None
    stream: Annotated[bool | None, says("Whether the answer was streamed; null if not known.")] = None
    terminal: Annotated[
        str | None, says("A stream's end: complete, clean_eof, incomplete, error; null if cut off, or no stream.")
    ] = None
    stream_error: Annotated[JsonObject | None, says("The error object inside the stream; null if there was none.")] = (
        None
    )
    problems: Annotated[list[str] | None, says("Keys of the line that could not be read; null when all could.")] = None

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

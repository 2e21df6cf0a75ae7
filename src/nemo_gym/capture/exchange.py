"""What was seen of one model call, and the line it becomes.

The middleware fills an `Exchange` while the call passes; a writer thread turns it into a line afterwards, so that
parsing never delays the server.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from nemo_gym.capture import bodies
from nemo_gym.capture.execution import LIST_FACTS, OTHER_FACTS, OUTCOME_FACTS
from nemo_gym.dialects.accumulate import StreamAccumulator
from nemo_gym.dialects.errors import error_category_for_exception, error_category_for_status, status_of_exception
from nemo_gym.dialects.names import Dialect
from nemo_gym.records.codec import JsonObject, encode

SCHEMA_VERSION = "1.0"
KEPT_REQUEST_HEADERS = frozenset({b"anthropic-version", b"anthropic-beta", b"user-agent"})
"""All that is kept of the request headers: credentials travel in the others."""

_encode_lines = msgspec.json.Encoder().encode_lines
_NULL = Raw(b"null")
_GOOD_ENDS = ("complete", "clean_eof")


class Exchange:
    """One model call. Times: `started_at`, `completed_at` UTC seconds; `latency`, `ttft`, `first_content` seconds."""

    __slots__ = (
        "accumulator",
        "app_error",
        "client_session_id",
        "completed_at",
        "dialect",
        "disconnected",
        "facts",
        "first_content",
        "invocation_id",
        "kept_headers",
        "latency",
        "model_call_id",
        "model_ref",
        "notes",
        "raw_stream",
        "request_chunks",
        "request_encoding",
        "response_chunks",
        "response_complete",
        "response_encoding",
        "rollout_id",
        "started_at",
        "status",
        "ttft",
    )

    def __init__(self, *, model_call_id: str, rollout_id: str, dialect: Dialect, model_ref: Raw) -> None:
        self.model_call_id = model_call_id
        self.rollout_id = rollout_id
        self.dialect: Dialect = dialect
        self.model_ref = model_ref
        self.invocation_id: str | None = None
        self.client_session_id: str | None = None
        self.kept_headers: dict[str, str] = {}
        self.request_encoding: str | None = None
        self.request_chunks: list[bytes] = []
        self.status: int | None = None
        self.response_encoding: str | None = None
        self.response_chunks: list[bytes] = []
        self.response_complete = False
        self.accumulator: StreamAccumulator | None = None
        self.raw_stream: bodies.RawText | None = None
        self.disconnected = False
        self.app_error: BaseException | None = None
        self.started_at = self.completed_at = self.latency = 0.0
        self.ttft: float | None = None
        self.first_content: float | None = None
        self.facts: JsonObject = {}
        self.notes: list[str] = []

    @property
    def held_bytes(self) -> int:
        """About how much memory the bodies take."""
        size = sum(map(len, self.request_chunks)) + sum(map(len, self.response_chunks))
        return size if self.raw_stream is None else size + 2 * self.raw_stream.size

    def line(self) -> bytes:
        """Return the newline-terminated line, and let the bodies go. To be called once, after the call has ended."""
        request, request_raw = self._request()
        response, response_raw, category = self._response()
        facts = self.facts
        if facts.get("local_response_reason") == "context_length_exceeded":
            category = "context_length_exceeded"
        line: dict[str, Any] = {
            "model_call_id": self.model_call_id,
            "dialect": self.dialect,
            "model_ref": self.model_ref,
            "started_at": self.started_at,
            "completed_at": self.completed_at,
            "latency_ms": _milliseconds(self.latency),
            "latency_ttft_ms": _milliseconds(self.ttft),
            "status_code": self._status_code(),
            "error_category": category,
            "request": request,
            "response": response,
            "schema_version": SCHEMA_VERSION,
            "method": "POST",
            "stream": self.accumulator is not None,
            "client_status_code": self.status,
        }
        if self.client_session_id is not None:
            line["client_session_id"] = self.client_session_id
        if self.invocation_id is not None:
            line["invocation_id"] = self.invocation_id
        if self.kept_headers:
            line["request_headers"] = self.kept_headers
        if request_raw is not None:
            line["request_raw"] = request_raw
        if response_raw is not None:
            line["response_raw"] = response_raw
        if self.accumulator is not None:
            line["latency_first_content_ms"] = _milliseconds(self.first_content)
            line["terminal"] = self.accumulator.terminal
            line["stream_error"] = self.accumulator.stream_error
            line["reassembly_problems"] = self.accumulator.problems
        if facts:
            self._add_facts(line)
        if self.notes:
            line["capture_problems"] = self.notes
        encoded = _encode_line(line)
        self.request_chunks, self.response_chunks, self.accumulator, self.raw_stream = [], [], None, None
        return encoded

    def _status_code(self) -> int | None:
        if self.status is not None or self.app_error is None:
            return self.status
        return status_of_exception(self.app_error)

    def _add_facts(self, line: dict[str, Any]) -> None:
        facts = self.facts
        if any(name in facts for name in OUTCOME_FACTS):
            for name in OUTCOME_FACTS:
                line[name] = facts.get(name)
        for name in (*LIST_FACTS, *OTHER_FACTS):
            if name in facts:
                line[name] = facts[name]

    def _request(self) -> tuple[Raw, str | None]:
        body = _joined(self.request_chunks)
        if not body:
            return _NULL, None
        plain = bodies.inflated(body, self.request_encoding) if self.request_encoding else body
        if plain is None:
            self.notes.append("request_encoding_unknown")
            return _NULL, bodies.text_of(body)
        found = bodies.object_bytes(plain, self.notes, name="request")
        return (_NULL, bodies.text_of(plain)) if found is None else (Raw(found), None)

    def _response(self) -> tuple[Raw | JsonObject, str | None, str | None]:
        """The response object, what is kept as text, and the error category."""
        if self.accumulator is not None:
            return *self._stream_response(self.accumulator), self._category(self.accumulator)
        found, raw = self._body_response()
        category = self._category(None)
        if category is None and raw is not None:
            category = "capture_parse_error"
        return found, raw, category

    def _stream_response(self, accumulator: StreamAccumulator) -> tuple[Raw | JsonObject, str | None]:
        accumulator.finish()
        response = accumulator.response
        found = _NULL if response is None else response
        assert self.raw_stream is not None
        good = response is not None and accumulator.terminal in _GOOD_ENDS and not accumulator.problems
        if good or not self.raw_stream.size:
            return found, None
        if self.response_encoding:
            whole = self.raw_stream.whole()
            plain = None if whole is None else bodies.inflated(whole, self.response_encoding)
            if plain is not None:
                return found, bodies.text_of(plain)
        return found, self.raw_stream.text()

    def _body_response(self) -> tuple[Raw, str | None]:
        body = _joined(self.response_chunks)
        if not body:
            text = body_of_exception(self.app_error)
            return _NULL, text
        plain = bodies.inflated(body, self.response_encoding) if self.response_encoding else body
        if plain is None:
            self.notes.append("response_encoding_unknown")
            return _NULL, bodies.text_of(body)
        found = bodies.object_bytes(plain, self.notes, name="response")
        return (_NULL, bodies.text_of(plain)) if found is None else (Raw(found), None)

    def _category(self, accumulator: StreamAccumulator | None) -> str | None:
        if self.app_error is not None:
            return error_category_for_exception(self.app_error)
        category = None if self.status is None else error_category_for_status(self.status)
        if category is not None:
            return category
        ended = accumulator is not None and accumulator.terminal is not None
        if not self.response_complete and not ended:  # the application gave up: the client left, or on its own
            return "cancelled" if self.disconnected else "exception" if accumulator is None else "stream_truncated"
        return None if accumulator is None else accumulator.error_category


def body_of_exception(error: BaseException | None) -> str | None:
    """Return the response body that an exception carries, as text."""
    response = getattr(error, "response", None)
    found = (getattr(error, "response_content", None), getattr(response, "content", None))
    for value in (*found, getattr(response, "text", None)):
        if isinstance(value, bytes):
            return bodies.text_of(value)
        if isinstance(value, str):
            return value
    return None


def _joined(chunks: list[bytes]) -> bytes:
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)


def _encode_line(line: dict[str, Any]) -> bytes:
    try:
        return _encode_lines([line])
    except (TypeError, ValueError, OverflowError, RecursionError):  # a fact or header that fast JSON refuses
        safe = {key: value if isinstance(value, Raw) else Raw(encode(value)) for key, value in line.items()}
        return _encode_lines([safe])

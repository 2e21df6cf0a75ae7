"""What was seen of one model call, and the line it becomes.

The middleware fills an `Exchange` while the call passes; a writer thread turns it into a line afterwards, so that
parsing never delays the server.
"""

from __future__ import annotations

import ctypes
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

_encode = msgspec.json.Encoder().encode
_NULL = b"null"
_LARGE = 16 << 20
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""What the C library of most Linux systems has."""
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
        "request",
        "request_encoding",
        "response",
        "response_complete",
        "response_encoding",
        "rollout_id",
        "started_at",
        "status",
        "ttft",
    )

    def __init__(self, model_call_id: str, rollout_id: str, dialect: Dialect, model_ref: bytes) -> None:
        self.model_call_id = model_call_id
        self.rollout_id = rollout_id
        self.dialect: Dialect = dialect
        self.model_ref = model_ref
        self.invocation_id: str | None = None
        self.client_session_id: str | None = None
        self.kept_headers: dict[str, str] = {}
        self.request_encoding: str | None = None
        self.request = bodies.KeptBytes(bodies.MAX_BODY_BYTES)
        self.status: int | None = None
        self.response_encoding: str | None = None
        self.response = bodies.KeptBytes(bodies.MAX_BODY_BYTES)
        """The body, or the raw text of a stream, which is kept only when the stream did not end well."""
        self.response_complete = False
        self.accumulator: StreamAccumulator | None = None
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
        request, response = self.request, self.response
        size = request.held + response.held
        return size if self.accumulator is None else size + response.size

    def line(self) -> bytes:
        """Return the newline-terminated line, and let the bodies go. To be called once, after the call has ended."""
        request, request_raw = self._request()
        response, response_raw, category = self._response()
        if self.facts.get("local_response_reason") == "context_length_exceeded":
            category = "context_length_exceeded"
        status = self.status
        sent = "null" if status is None else status
        optional = self._optional(request_raw, response_raw)
        stream = "false" if self.accumulator is None else "true"
        self.request.clear()  # before the line exists: a large body must not be there three times
        self.response.clear()
        self.accumulator = None
        if len(response) > _LARGE:
            _return_memory()
        # Put together as text: this runs for every call, and an encoder takes three times as long.
        pieces = [
            f'{{"model_call_id":"{self.model_call_id}","dialect":"{self.dialect}","model_ref":'.encode(),
            self.model_ref,
            f',"started_at":{self.started_at!r},"completed_at":{self.completed_at!r},'
            f'"latency_ms":{_milliseconds(self.latency)},"latency_ttft_ms":{_milliseconds(self.ttft)},'
            f'"status_code":{sent if status is not None or self.app_error is None else self._status_of_error()},'
            f'"error_category":{_quoted(category)},"request":'.encode(),
            request,
            b',"response":',
            response,
            f',"schema_version":"{SCHEMA_VERSION}","method":"POST","stream":{stream},'
            f'"client_status_code":{sent}'.encode(),
        ]
        if optional:
            pieces += (b",", _encode_object(optional)[1:-1])
        pieces.append(b"}\n")
        return b"".join(pieces)

    def _optional(self, request_raw: str | None, response_raw: str | None) -> JsonObject:
        """The keys that a line has only when there is something to say."""
        line: JsonObject = {}
        if self.client_session_id is not None:
            line["client_session_id"] = self.client_session_id
        if self.invocation_id is not None:
            line["invocation_id"] = self.invocation_id
        if self.kept_headers:
            line["request_headers"] = self.kept_headers
        if request_raw is not None:
            _add_raw(line, "request", request_raw, self.request)
        if response_raw is not None:
            _add_raw(line, "response", response_raw, self.response)
        if self.accumulator is not None:
            line["latency_first_content_ms"] = Raw(_milliseconds(self.first_content).encode())
            line["terminal"] = self.accumulator.terminal
            line["stream_error"] = self.accumulator.stream_error
            line["reassembly_problems"] = self.accumulator.problems
        if self.facts:
            self._add_facts(line)
        if self.notes:
            line["capture_problems"] = self.notes
        return line

    def _status_of_error(self) -> str:
        assert self.app_error is not None
        status = status_of_exception(self.app_error)
        return "null" if status is None else str(int(status))

    def _add_facts(self, line: dict[str, Any]) -> None:
        facts = self.facts
        if any(name in facts for name in OUTCOME_FACTS):
            for name in OUTCOME_FACTS:
                line[name] = facts.get(name)
        for name in (*LIST_FACTS, *OTHER_FACTS):
            if name in facts:
                line[name] = facts[name]

    def _request(self) -> tuple[bytes, str | None]:
        if not self.request.size:
            return _NULL, None
        return self._object_of(self.request, self.request_encoding, "request")

    def _response(self) -> tuple[bytes, str | None, str | None]:
        """The response object, what is kept as text, and the error category."""
        if self.accumulator is not None:
            return *self._stream_response(self.accumulator), self._category(self.accumulator)
        found, raw = self._body_response()
        category = self._category(None)
        if category is None and raw is not None:
            category = "capture_parse_error"
        return found, raw, category

    def _stream_response(self, accumulator: StreamAccumulator) -> tuple[bytes, str | None]:
        large = self.response.size > _LARGE
        if large and accumulator.terminal in _GOOD_ENDS and not accumulator.problems:
            self.response.clear()  # the object will do: memory is short now
            _return_memory()
        accumulator.finish()
        good = accumulator.response is not None and accumulator.terminal in _GOOD_ENDS and not accumulator.problems
        if good:
            self.response.clear()
        if large:
            _return_memory()
        found = _NULL if accumulator.response is None else _encode_object(accumulator.response)
        if good or not self.response.size:
            return found, None
        if self.response_encoding:
            whole = self.response.whole()
            plain = None if whole is None else bodies.inflated(whole, self.response_encoding)
            if plain is not None:
                return found, bodies.text_of(plain)
        return found, self.response.text()

    def _body_response(self) -> tuple[bytes, str | None]:
        if not self.response.size:
            return _NULL, body_of_exception(self.app_error)
        return self._object_of(self.response, self.response_encoding, "response")

    def _object_of(self, body: bodies.KeptBytes, encoding: str | None, name: str) -> tuple[bytes, str | None]:
        """The body as a JSON object, or as text when it is none."""
        whole = body.whole()
        if whole is None:
            return _NULL, body.text()
        plain = bodies.inflated(whole, encoding) if encoding else whole
        if plain is None:
            self.notes.append(f"{name}_encoding_unknown")
            return _NULL, bodies.text_of(whole)
        found = bodies.object_bytes(plain, self.notes, name=name)
        return (_NULL, bodies.text_of(plain)) if found is None else (found, None)

    def _category(self, accumulator: StreamAccumulator | None) -> str | None:
        if self.app_error is not None:
            return error_category_for_exception(self.app_error)
        if self.status == 200 and self.response_complete and accumulator is None:
            return None
        category = None if self.status is None else error_category_for_status(self.status)
        if category is not None:
            return category
        ended = accumulator is not None and accumulator.terminal is not None
        if not self.response_complete and not ended:  # the application gave up: the client left, or on its own
            return "cancelled" if self.disconnected else "exception" if accumulator is None else "stream_truncated"
        return None if accumulator is None else accumulator.error_category


def _return_memory() -> None:
    """Give freed memory back to the system: the pieces of a large body leave holes between what is still in use."""
    if _trim is not None:
        _trim(0)


def _add_raw(line: JsonObject, name: str, raw: str, body: bodies.KeptBytes) -> None:
    line[f"{name}_raw"] = raw
    truncation = body.truncation()
    if truncation is not None:
        line[f"{name}_truncated"] = truncation


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


def _milliseconds(seconds: float | None) -> str:
    return "null" if seconds is None else f"{seconds * 1000:.2f}"


def _quoted(text: str | None) -> str:
    return "null" if text is None else encode(text).decode()


def _encode_object(value: JsonObject) -> bytes:
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):  # a fact or header that fast JSON refuses
        return _encode({key: item if isinstance(item, Raw) else Raw(encode(item)) for key, item in value.items()})

"""From raw lines to `ModelCallRecord`s and their sums.

Building a record never raises: whatever shape a line has, what can be read is read, and the keys that cannot are named
in the record's `problems`.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from nemo_gym.capture.answers import SHAPE_FAULTS, Answer, answer_to, check_bodies
from nemo_gym.capture.encoded_call import encoded_call
from nemo_gym.capture.store import CaptureStore, decode_exchange, is_call, is_utf8
from nemo_gym.dialects.finish import finish_reason_of, model_of, response_id_of, response_status_of
from nemo_gym.dialects.names import DIALECTS, Dialect
from nemo_gym.dialects.reasoning import reasoning_of
from nemo_gym.dialects.tool_calls import tool_calls_of
from nemo_gym.dialects.usage import TokenCounts, token_counts, usage_of
from nemo_gym.records.evidence import Finite, ModelServerRef
from nemo_gym.records.model_calls import SUMMED_FIELDS, ModelCallRecord

T = TypeVar("T")
_summed_fields = operator.attrgetter(*SUMMED_FIELDS)
_UNKNOWN_TOKENS = TokenCounts()


def build_model_call_record(exchange: Mapping[str, Any], *, call_index: int) -> ModelCallRecord:
    """Return the record of one raw line (C13, C14). Never raises for what the line holds."""
    try:
        stated = msgspec.convert(exchange, _Stated, strict=True)
        return _record_of(stated, _answer_of(stated), call_index)
    except (msgspec.ValidationError, *SHAPE_FAULTS):  # now value by value, to keep the others and name the bad ones
        line = _Line(exchange)
        stated = line.stated()
        answer = line.answer(stated)
        return _record_of(stated, answer, call_index, line.problems or None)


def read_model_call_records(store: CaptureStore, rollout_id: str) -> list[ModelCallRecord]:
    """Return the rollout's calls in durable append order (C12); raises DataError on a damaged line."""
    return [build_model_call_record(line, call_index=index) for index, line in enumerate(store.read(rollout_id))]


def read_available_model_call_records(
    store: CaptureStore, rollout_id: str, *, encoded_bodies: bool = False
) -> tuple[list[ModelCallRecord], int]:
    """Return what can be read, with the original line indices, and how many lines cannot.

    With `encoded_bodies`, `request` and `response` of a well-formed line are `codec.Encoded`: the bytes of the line.
    """
    if encoded_bodies:
        return _records_with_encoded_bodies(store.data(rollout_id))
    records: list[ModelCallRecord] = []
    invalid = 0
    for index, line in enumerate(store.lines(rollout_id)):
        try:
            record = _record_of_line(line, index)
        except ValueError:
            invalid += 1
        else:
            if record is not None:
                records.append(record)
    return records, invalid


def _records_with_encoded_bodies(data: bytes) -> tuple[list[ModelCallRecord], int]:
    """Read the lines where they lie, without a copy of each: a rollout has hundreds of kilobytes of them."""
    view, ascii_only = memoryview(data), data.isascii()
    records: list[ModelCallRecord] = []
    invalid = index = start = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        line = view[start:end]
        start = end
        try:
            record: ModelCallRecord | None = encoded_call(line, index, ascii_only)
        except (msgspec.DecodeError, *SHAPE_FAULTS):
            text = bytes(line)
            if text.isspace():
                continue
            try:
                record = _record_of_line(text, index)
            except ValueError:
                record = None
                invalid += 1
        index += 1
        if record is not None:
            records.append(record)
    return records, invalid


def _record_of_line(line: bytes, call_index: int) -> ModelCallRecord | None:
    """Return the record of a line, None when it is no call; raises ValueError when it is damaged.

    A well-formed line is decoded into its typed form at once; every other one takes the way of `store.read_available`.
    """
    try:
        stated = _decode_stated(line)
        _check_well_formed(stated.type, line)
        return _record_of(stated, _answer_of(stated), call_index)
    except (msgspec.DecodeError, *SHAPE_FAULTS):
        exchange = decode_exchange(line)
        return build_model_call_record(exchange, call_index=call_index) if is_call(exchange) else None


def _check_well_formed(kind: object, line: bytes) -> None:
    # What is skipped, because no reader wants it, is not checked for being text.
    if kind != "call" or not (line.isascii() or is_utf8(line)):
        raise ValueError("not a well-formed call")


def _record_of(stated: _Stated, answer: Answer, call_index: int, problems: list[str] | None = None) -> ModelCallRecord:
    check_bodies(stated.request, stated.response, stated.stream_error)
    tokens = answer.tokens
    return ModelCallRecord(
        call_index=call_index,
        model_call_id=stated.model_call_id,
        response_id=answer.response_id,
        client_session_id=stated.client_session_id,
        invocation_id=stated.invocation_id,
        model_ref=stated.model_ref,
        model=answer.model,
        dialect=stated.dialect,
        status_code=stated.status_code,
        client_status_code=stated.client_status_code,
        response_status=answer.status,
        finish_reason=answer.finish_reason,
        upstream_attempted=stated.upstream_attempted,
        response_source=stated.response_source,
        upstream_status_code=stated.upstream_status_code,
        local_response_reason=stated.local_response_reason,
        started_at=stated.started_at,
        completed_at=stated.completed_at,
        tokens_in=tokens.tokens_in,
        tokens_out=tokens.tokens_out,
        tokens_reasoning=tokens.tokens_reasoning,
        tokens_total=tokens.tokens_total,
        request=stated.request,
        response=stated.response,
        request_raw=stated.request_raw,
        response_raw=stated.response_raw,
        tool_calls=answer.tool_calls,
        reasoning_content=answer.reasoning,
        cache_hit=tokens.cache_hit,
        cached_tokens=tokens.cached_tokens,
        cache_creation_tokens=tokens.cache_creation_tokens,
        error_category=stated.error_category,
        latency_total_ms=stated.latency_ms,
        latency_ttft_ms=stated.latency_ttft_ms,
        latency_first_content_ms=stated.latency_first_content_ms,
        stream=stated.stream,
        terminal=stated.terminal,
        stream_error=stated.stream_error,
        problems=problems,
    )


def sum_model_calls(calls: Iterable[ModelCallRecord]) -> dict[str, Any]:
    """Return the sums that a rollout record carries: of known values only, None where none is known; `num_calls`."""
    counted = [_summed_fields(call) for call in calls]
    sums: dict[str, Any] = dict.fromkeys(SUMMED_FIELDS)
    for name, values in zip(SUMMED_FIELDS, zip(*counted, strict=True), strict=False):  # no values without a call
        known = [value for value in values if value is not None] if None in values else values
        if known:
            sums[name] = sum(known)
    sums["num_calls"] = len(counted)
    return sums


def aggregate_model_call_records(calls: Iterable[ModelCallRecord]) -> dict[str, Any]:
    """Return the sums of `sum_model_calls` and what they rest on.

    Beside the sums: `cache_creation_tokens`, `num_errors`, `errors_by_category`, and `observed`, how many calls each
    sum covers: a sum over a part of the calls looks complete otherwise. All four are None without calls.
    """
    counted = list(calls)
    result = sum_model_calls(counted)
    names = (*SUMMED_FIELDS, "cache_creation_tokens")
    observed = {name: sum(getattr(call, name) is not None for call in counted) for name in names}
    written = [call.cache_creation_tokens for call in counted if call.cache_creation_tokens is not None]
    errors = Counter(call.error_category for call in counted if call.error_category is not None)
    result["cache_creation_tokens"] = sum(written) if written else None
    result["num_errors"] = errors.total() if counted else None
    result["errors_by_category"] = dict(errors) if counted else None
    result["observed"] = observed if counted else None
    return result


def aggregate_model_call_metrics(store: CaptureStore, rollout_id: str) -> dict[str, Any]:
    """Return the aggregate of a rollout's calls (C12); without a file every sum is None and `num_calls` 0."""
    return aggregate_model_call_records(read_model_call_records(store, rollout_id))


class _Stated(msgspec.Struct, kw_only=True):
    """What a well-formed line says, as it says it. `Any` keeps an object as it is, instead of a copy."""

    type: Any = "call"
    model_call_id: str | None = None
    client_session_id: str | None = None
    invocation_id: str | None = None
    model_ref: ModelServerRef | None = None
    dialect: Dialect | None = None
    status_code: int | None = None
    client_status_code: int | None = None
    upstream_attempted: bool | None = None
    response_source: str | None = None
    upstream_status_code: int | None = None
    local_response_reason: str | None = None
    started_at: Finite | None = None
    completed_at: Finite | None = None
    request: Any = None
    response: Any = None
    request_raw: str | None = None
    response_raw: str | None = None
    error_category: str | None = None
    latency_ms: Finite | None = None
    latency_ttft_ms: Finite | None = None
    latency_first_content_ms: Finite | None = None
    stream: bool | None = None
    terminal: str | None = None
    stream_error: Any = None
    usage: Any = msgspec.UNSET


_decode_stated = msgspec.json.Decoder(_Stated).decode


def _answer_of(stated: _Stated) -> Answer:
    return answer_to(stated.request, stated.response, stated.dialect, stated.usage)


class _Line:
    """A raw line with unreliable values; what is of the wrong shape is None, and its key a problem."""

    def __init__(self, exchange: Mapping[str, Any]) -> None:
        self.exchange = exchange
        self.problems: list[str] = []

    def stated(self) -> _Stated:
        """Return what can be read of the line."""
        return _Stated(
            dialect=self.dialect(),
            model_call_id=self.value("model_call_id", str),
            client_session_id=self.value("client_session_id", str),
            invocation_id=self.value("invocation_id", str),
            model_ref=self.model_ref(),
            status_code=self.integer("status_code"),
            client_status_code=self.integer("client_status_code"),
            upstream_attempted=self.value("upstream_attempted", bool),
            response_source=self.value("response_source", str),
            upstream_status_code=self.integer("upstream_status_code"),
            local_response_reason=self.value("local_response_reason", str),
            started_at=self.number("started_at"),
            completed_at=self.number("completed_at"),
            request=self.value("request", dict),
            response=self.value("response", dict),
            request_raw=self.value("request_raw", str),
            response_raw=self.value("response_raw", str),
            error_category=self.value("error_category", str),
            latency_ms=self.number("latency_ms"),
            latency_ttft_ms=self.number("latency_ttft_ms"),
            latency_first_content_ms=self.number("latency_first_content_ms"),
            stream=self.value("stream", bool),
            terminal=self.value("terminal", str),
            stream_error=self.value("stream_error", dict),
        )

    def answer(self, stated: _Stated) -> Answer:
        """Return what can be read of the answer."""
        request, response, dialect = stated.request, stated.response, stated.dialect
        said = self.exchange.get("usage", msgspec.UNSET)
        counted = None if said is None else self.derived("response", lambda: usage_of(response), None) or said
        return Answer(
            self.derived("usage", lambda: token_counts(counted, dialect), _UNKNOWN_TOKENS),
            self.derived("response", lambda: response_id_of(response), None),
            self.derived("response", lambda: model_of(response, request), None),
            self.derived("response", lambda: response_status_of(response), None),
            self.derived("response", lambda: finish_reason_of(response), None),
            self.derived("response", lambda: tool_calls_of(response, dialect), []),
            self.derived("response", lambda: reasoning_of(response, dialect), None),
        )

    def value(self, key: str, kind: type[T]) -> T | None:
        found = self.exchange.get(key)
        if found is None or isinstance(found, kind):
            return found
        self._note(key)
        return None

    def integer(self, key: str) -> int | None:
        found = self.exchange.get(key)
        if found is None or (isinstance(found, int) and not isinstance(found, bool)):
            return found
        self._note(key)
        return None

    def number(self, key: str) -> float | None:
        found = self.exchange.get(key)
        if found is None:
            return None
        if isinstance(found, (int, float)) and not isinstance(found, bool):
            try:
                number = float(found)
            except OverflowError:
                self._note(key)
                return None
            if math.isfinite(number):
                return number
        self._note(key)
        return None

    def dialect(self) -> Dialect | None:
        found = self.value("dialect", str)
        if found is None or found in DIALECTS:
            return found
        self._note("dialect")
        return None

    def model_ref(self) -> ModelServerRef | None:
        found = self.exchange.get("model_ref")
        if found is None:
            return None
        try:
            return msgspec.convert({key: found[key] for key in ("type", "name")}, ModelServerRef)
        except (msgspec.ValidationError, *SHAPE_FAULTS):
            self._note("model_ref")
            return None

    def derived(self, key: str, make: Callable[[], T], otherwise: T) -> T:
        try:
            return make()
        except SHAPE_FAULTS:
            self._note(key)
            return otherwise

    def _note(self, key: str) -> None:
        if key not in self.problems:
            self.problems.append(key)

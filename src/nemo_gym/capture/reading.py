"""From raw lines to `ModelCallRecord`s and their sums.

Building a record never raises: whatever shape a line has, what can be read is read, and the keys that cannot are named
in the record's `problems`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from nemo_gym.capture.store import CaptureStore
from nemo_gym.dialects.finish import finish_reason_of, model_of, response_id_of, response_status_of
from nemo_gym.dialects.names import DIALECTS, Dialect
from nemo_gym.dialects.reasoning import reasoning_of
from nemo_gym.dialects.tool_calls import tool_calls_of
from nemo_gym.dialects.usage import TokenCounts, token_counts, usage_of
from nemo_gym.records.evidence import ModelServerRef
from nemo_gym.records.model_calls import SUMMED_FIELDS, ModelCallRecord

T = TypeVar("T")
_UNKNOWN_TOKENS = TokenCounts()
_SHAPE_FAULTS = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError)


def build_model_call_record(exchange: Mapping[str, Any], *, call_index: int) -> ModelCallRecord:
    """Return the record of one raw line (C13, C14). Never raises for what the line holds."""
    line = _Line(exchange)
    dialect = line.dialect()
    request, response = line.value("request", dict), line.value("response", dict)
    # What the answer says; else what the server knew, although the answer could not say it.
    counted = line.derived("response", lambda: usage_of(response), None) or exchange.get("usage")
    tokens = line.derived("usage", lambda: token_counts(counted, dialect), _UNKNOWN_TOKENS)
    return ModelCallRecord(
        call_index=call_index,
        model_call_id=line.value("model_call_id", str),
        response_id=line.derived("response", lambda: response_id_of(response), None),
        client_session_id=line.value("client_session_id", str),
        invocation_id=line.value("invocation_id", str),
        model_ref=line.model_ref(),
        model=line.derived("response", lambda: model_of(response, request), None),
        dialect=dialect,
        status_code=line.integer("status_code"),
        client_status_code=line.integer("client_status_code"),
        response_status=line.derived("response", lambda: response_status_of(response), None),
        finish_reason=line.derived("response", lambda: finish_reason_of(response), None),
        upstream_attempted=line.value("upstream_attempted", bool),
        response_source=line.value("response_source", str),
        upstream_status_code=line.integer("upstream_status_code"),
        local_response_reason=line.value("local_response_reason", str),
        started_at=line.number("started_at"),
        completed_at=line.number("completed_at"),
        tokens_in=tokens.tokens_in,
        tokens_out=tokens.tokens_out,
        tokens_reasoning=tokens.tokens_reasoning,
        tokens_total=tokens.tokens_total,
        request=request,
        response=response,
        request_raw=line.value("request_raw", str),
        response_raw=line.value("response_raw", str),
        tool_calls=line.derived("response", lambda: tool_calls_of(response, dialect), []),
        reasoning_content=line.derived("response", lambda: reasoning_of(response, dialect), None),
        cache_hit=tokens.cache_hit,
        cached_tokens=tokens.cached_tokens,
        cache_creation_tokens=tokens.cache_creation_tokens,
        error_category=line.value("error_category", str),
        latency_total_ms=line.number("latency_ms"),
        latency_ttft_ms=line.number("latency_ttft_ms"),
        latency_first_content_ms=line.number("latency_first_content_ms"),
        stream=line.value("stream", bool),
        terminal=line.value("terminal", str),
        stream_error=line.value("stream_error", dict),
        problems=line.problems or None,
    )


def read_model_call_records(store: CaptureStore, rollout_id: str) -> list[ModelCallRecord]:
    """Return the rollout's calls in durable append order (C12); raises DataError on a damaged line."""
    return [build_model_call_record(line, call_index=index) for index, line in enumerate(store.read(rollout_id))]


def read_available_model_call_records(store: CaptureStore, rollout_id: str) -> tuple[list[ModelCallRecord], int]:
    """Return what can be read, with the original line indices, and how many lines cannot."""
    lines, invalid = store.read_available(rollout_id)
    return [build_model_call_record(line, call_index=index) for index, line in lines], invalid


def sum_model_calls(calls: Iterable[ModelCallRecord]) -> dict[str, Any]:
    """Return the sums that a rollout record carries: of known values only, None where none is known; `num_calls`."""
    counted = list(calls)
    sums: dict[str, Any] = {}
    for name in SUMMED_FIELDS:
        known = [value for call in counted if (value := getattr(call, name)) is not None]
        sums[name] = sum(known) if known else None
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


class _Line:
    """A raw line with unreliable values; what is of the wrong shape is None, and its key a problem."""

    def __init__(self, exchange: Mapping[str, Any]) -> None:
        self.exchange = exchange
        self.problems: list[str] = []

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
        except (msgspec.ValidationError, *_SHAPE_FAULTS):
            self._note("model_ref")
            return None

    def derived(self, key: str, make: Callable[[], T], otherwise: T) -> T:
        try:
            return make()
        except _SHAPE_FAULTS:
            self._note(key)
            return otherwise

    def _note(self, key: str) -> None:
        if key not in self.problems:
            self.problems.append(key)

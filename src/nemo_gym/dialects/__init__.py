"""The three API shapes that models are called in, and everything that can be read from an answer. Pure: no I/O.

`make_accumulator` reassembles a stream as it passes; `token_counts`, `tool_calls_of`, `reasoning_of`, `finish_of` and
the error functions normalise what any provider sends. Conversion between shapes is in `nemo_gym.dialects.conversion`.
"""

from __future__ import annotations

from nemo_gym.dialects.accumulate import StreamAccumulator, Terminal, error_object_of
from nemo_gym.dialects.chat import ChatAccumulator
from nemo_gym.dialects.errors import (
    ErrorCategory,
    coarse_error_category,
    error_body,
    error_category_for_error,
    error_category_for_exception,
    error_category_for_status,
    status_of_exception,
)
from nemo_gym.dialects.finish import (
    Finish,
    finish_of,
    finish_reason_of,
    model_of,
    normal_finish,
    response_id_of,
    response_status_of,
)
from nemo_gym.dialects.messages import MessagesAccumulator
from nemo_gym.dialects.names import DIALECTS, MODEL_CALL_PATHS, Dialect, dialect_of
from nemo_gym.dialects.problems import STREAM_PROBLEMS
from nemo_gym.dialects.reasoning import reasoning_of
from nemo_gym.dialects.responses import ResponsesAccumulator
from nemo_gym.dialects.tool_calls import parse_arguments, tool_calls_of
from nemo_gym.dialects.usage import TokenCounts, UsageDetails, token_counts, usage_details, usage_of

_ACCUMULATORS: dict[Dialect, type[StreamAccumulator]] = {
    "responses": ResponsesAccumulator,
    "chat": ChatAccumulator,
    "messages": MessagesAccumulator,
}


def make_accumulator(dialect: Dialect, *, content_encoding: str | None = None) -> StreamAccumulator:
    """Return an accumulator for one streamed answer in `dialect`.

    `content_encoding` is the response's header value: the accumulator is fed the bytes as they were sent.
    """
    accumulator = _ACCUMULATORS[dialect](content_encoding=content_encoding)
    accumulator.shorten_repeats()
    return accumulator


__all__ = [
    "DIALECTS",
    "MODEL_CALL_PATHS",
    "STREAM_PROBLEMS",
    "Dialect",
    "ErrorCategory",
    "Finish",
    "StreamAccumulator",
    "Terminal",
    "TokenCounts",
    "UsageDetails",
    "coarse_error_category",
    "dialect_of",
    "error_body",
    "error_category_for_error",
    "error_category_for_exception",
    "error_category_for_status",
    "error_object_of",
    "finish_of",
    "finish_reason_of",
    "make_accumulator",
    "model_of",
    "normal_finish",
    "parse_arguments",
    "reasoning_of",
    "response_id_of",
    "response_status_of",
    "status_of_exception",
    "token_counts",
    "tool_calls_of",
    "usage_details",
    "usage_of",
]

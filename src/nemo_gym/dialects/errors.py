"""Error categories, and error bodies in each dialect's own shape.

Source: capture contract 2.5 with its recommendations (`overloaded`, `content_filter`, `refusal`; in-stream errors by
their own code and type; exceptions by their class hierarchy, never by a part of their name) and the end of 5.2.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import re
import ssl
from socket import gaierror, herror
from typing import Literal, TypeAlias

from nemo_gym.dialects.names import Dialect
from nemo_gym.records.codec import JsonObject

UPSTREAM_ERROR = "upstream_error"

ErrorCategory: TypeAlias = Literal[
    "timeout",
    "rate_limit",
    "overloaded",
    "auth",
    "not_found",
    "client_error",
    "upstream_error",
    "connection",
    "cancelled",
    "exception",
    "incomplete",
    "stream_truncated",
    "capture_parse_error",
    "context_length_exceeded",
    "content_filter",
    "refusal",
]

_BY_STATUS: dict[int, str] = {
    401: "auth",
    403: "auth",
    404: "not_found",
    408: "timeout",
    429: "rate_limit",
    504: "timeout",
    529: "overloaded",
}

# Letters and digits of a code or type, lower case -> category. The first table is looked at before a numeric status,
# since it says more than one; the second after it. Order matters: the first hit counts.
_SPECIFIC: tuple[tuple[str, str], ...] = (
    ("contextlength", "context_length_exceeded"),
    ("contextwindow", "context_length_exceeded"),
    ("contentfilter", "content_filter"),
    ("contentpolicy", "content_filter"),
    ("contentmanagement", "content_filter"),
    ("moderation", "content_filter"),
    ("responsibleai", "content_filter"),
    ("refusal", "refusal"),
    ("overload", "overloaded"),
    ("ratelimit", "rate_limit"),
    ("toomanyrequests", "rate_limit"),
    ("quota", "rate_limit"),
    ("resourceexhausted", "rate_limit"),
    ("budgetexceeded", "rate_limit"),
    ("timeout", "timeout"),
    ("timedout", "timeout"),
    ("deadlineexceeded", "timeout"),
    ("authentication", "auth"),
    ("unauthenticated", "auth"),
    ("unauthorized", "auth"),
    ("permission", "auth"),
    ("forbidden", "auth"),
    ("apikey", "auth"),
    ("notfound", "not_found"),
    ("cancel", "cancelled"),
    ("abort", "cancelled"),
    ("connection", "connection"),
)
_GENERAL: tuple[tuple[str, str], ...] = (
    ("badrequest", "client_error"),
    ("invalid", "client_error"),
    ("unprocessable", "client_error"),
    ("unsupported", "client_error"),
    ("toolarge", "client_error"),
    ("toolong", "client_error"),
    ("clienterror", "client_error"),
)
_WORD_KEYS = ("code", "type", "status", "error_type", "reason")
_STATUS_KEYS = ("code", "status", "status_code", "http_status")
_NOT_ALNUM = re.compile(r"[^a-z0-9]+")

_COARSE = {"overloaded": UPSTREAM_ERROR, "content_filter": UPSTREAM_ERROR, "refusal": UPSTREAM_ERROR}


def error_category_for_status(status: int) -> str | None:
    """Return the category of an HTTP status, or None below 400."""
    if status < 400:
        return None
    return _BY_STATUS.get(status) or ("client_error" if status < 500 else UPSTREAM_ERROR)


def error_category_for_error(error: object) -> str:
    """Return the category of an error object sent inside a 200 stream, by its own code, type and status.

    What says nothing is `upstream_error`.
    """
    if not isinstance(error, dict):
        return UPSTREAM_ERROR
    metadata = error.get("metadata")
    sources = [error, metadata] if isinstance(metadata, dict) else [error]
    words = [
        _NOT_ALNUM.sub("", value.lower())
        for source in sources
        for value in map(source.get, _WORD_KEYS)
        if isinstance(value, str)
    ]
    specific = _first_hit(words, _SPECIFIC)
    if specific is not None:
        return specific
    for value in map(error.get, _STATUS_KEYS):
        status = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
        if type(status) is int and 400 <= status <= 599:
            return error_category_for_status(status) or UPSTREAM_ERROR
    return _first_hit(words, _GENERAL) or UPSTREAM_ERROR


def coarse_error_category(category: str | None) -> str | None:
    """Return the category in the vocabulary of readers that do not know the finer names."""
    return None if category is None else _COARSE.get(category, category)


def _first_hit(words: list[str], table: tuple[tuple[str, str], ...]) -> str | None:
    for word in words:
        for part, category in table:
            if part in word:
                return category
    return None


# Classes of libraries that are not imported here, by top package and class name; looked up along the class hierarchy.
_BY_CLASS: dict[tuple[str, str], str] = {
    ("aiohttp", "ServerTimeoutError"): "timeout",
    ("aiohttp", "ClientConnectionError"): "connection",
    ("aiohttp", "ClientPayloadError"): "connection",
    ("httpx", "TimeoutException"): "timeout",
    ("httpx", "TransportError"): "connection",
    ("httpcore", "TimeoutException"): "timeout",
    ("httpcore", "NetworkError"): "connection",
    ("httpcore", "ProtocolError"): "connection",
    ("openai", "APITimeoutError"): "timeout",
    ("openai", "APIConnectionError"): "connection",
    ("anthropic", "APITimeoutError"): "timeout",
    ("anthropic", "APIConnectionError"): "connection",
    ("requests", "Timeout"): "timeout",
    ("requests", "ConnectionError"): "connection",
    ("urllib3", "TimeoutError"): "timeout",
    ("urllib3", "NewConnectionError"): "connection",
    ("urllib3", "ProtocolError"): "connection",
    ("botocore", "ReadTimeoutError"): "timeout",
    ("botocore", "ConnectTimeoutError"): "timeout",
    ("botocore", "HTTPClientError"): "connection",
    ("websockets", "ConnectionClosed"): "connection",
}
_CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)
_CONNECTION = (ConnectionError, gaierror, herror, ssl.SSLError, asyncio.IncompleteReadError)
_NETWORK_ERRNOS = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ENOTCONN, errno.EADDRNOTAVAIL}
)
_LONGEST_CHAIN = 8


def error_category_for_exception(exc: BaseException) -> str:
    """Return the category of a raised exception.

    A status on it, or on its response, goes through the status table first. Then its class hierarchy decides, then
    that of what it was raised from. What says nothing is `exception`.
    """
    link: BaseException | None = exc
    for _ in range(_LONGEST_CHAIN):
        if link is None:
            break
        category = _category_of_one(link)
        if category is not None:
            return category
        link = link.__cause__
    return "exception"


def status_of_exception(exc: BaseException) -> int | None:
    """Return the HTTP status that an exception, or its response, carries; None when none."""
    for holder in (exc, getattr(exc, "response", None)):
        for name in ("status", "status_code"):
            value = getattr(holder, name, None)
            if type(value) is int and 100 <= value <= 599:
                return value
            if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:  # http.HTTPStatus
                return int(value)
    return None


def _category_of_one(exc: BaseException) -> str | None:
    status = status_of_exception(exc)
    by_status = None if status is None else error_category_for_status(status)
    if by_status is not None:
        return by_status
    if isinstance(exc, _CANCELLED):
        return "cancelled"
    if isinstance(exc, TimeoutError):
        return "timeout"
    named = [_BY_CLASS.get((cls.__module__.partition(".")[0], cls.__name__)) for cls in type(exc).__mro__]
    known = "timeout" if "timeout" in named else next((name for name in named if name is not None), None)
    if known is not None:  # a time limit while connecting is both, in some libraries: it is a timeout
        return known
    if isinstance(exc, _CONNECTION):
        return "connection"
    if isinstance(exc, OSError) and exc.errno in _NETWORK_ERRNOS:
        return "connection"
    return None


_MESSAGES_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


_STATUS_OF_CATEGORY = {
    "timeout": 504,
    "rate_limit": 429,
    "overloaded": 529,
    "auth": 401,
    "not_found": 404,
    "client_error": 400,
    "context_length_exceeded": 400,
    "content_filter": 400,
    "refusal": 400,
}


def status_for_error(error: object) -> int:
    """Return the HTTP status that says what an error object says, for one that came with none; 500 when unclear."""
    return _STATUS_OF_CATEGORY.get(error_category_for_error(error), 500)


def error_body(
    dialect: Dialect, *, status: int, message: str, code: str | None = None, type: str | None = None
) -> JsonObject:
    """Return an error body in the shape that `dialect`'s clients read.

    `type` defaults to the one that belongs to `status`. The Messages shape has no place for `code`.
    """
    if dialect == "messages":
        kind = type or _MESSAGES_TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}
    kind = type or _OPENAI_TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}

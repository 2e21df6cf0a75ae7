"""Failures of a model backend, and the answers that callers get for them: the dialect's shape, the backend's status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
from starlette.exceptions import HTTPException
from starlette.responses import Response

from nemo_gym.dialects.errors import error_body, error_category_for_exception, status_for_error
from nemo_gym.dialects.names import Dialect
from nemo_gym.errors import RemoteError
from nemo_gym.records import codec
from nemo_gym.servers.answers import json_answer

UPSTREAM_STATUS_HEADER = "x-upstream-status"
BAD_GATEWAY, GATEWAY_TIMEOUT = 502, 504

NOT_ASKED = "upstream_unavailable"
"""The code of a call that was not sent, because the backend has failed too often in a row."""

_MAX_MESSAGE = 4000


class UpstreamError(RemoteError):
    """A model backend answered with an error, or did not answer; backends raise it and the base class answers it.

    Attributes: `status`, the backend's HTTP status or None when there was no answer; `body`, what it said; `headers`,
    its response headers; `dialect`, the shape of `body` when it is known, so that a caller of the same dialect gets the
    body as it is; `code` and `type`, a category of our own, such as `context_length_exceeded`.
    """

    def __init__(
        self,
        message: str,
        *,
        server: str,
        status: int | None = None,
        body: bytes | str | Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        dialect: Dialect | None = None,
        code: str | None = None,
        type: str | None = None,
        attempt: int = 1,
    ) -> None:
        self.body, self.headers, self.dialect = body, headers or {}, dialect
        self.code, self.type = code, type
        super().__init__(message, server=server, status=status, attempt=attempt)

    @property
    def upstream_status(self) -> int | None:
        """The status that the backend gave; None also for a call that was not even sent."""
        return None if self.code == NOT_ASKED else self.status

    @property
    def response_content(self) -> bytes | None:
        """The body as bytes, under the name that captured calls read it by."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return self.body.encode() if isinstance(self.body, str) else codec.encode(dict(self.body))


def error_answer(
    dialect: Dialect,
    *,
    status: int,
    message: str,
    code: str | None = None,
    type: str | None = None,
    headers: Mapping[str, str] | None = None,
    detail: object = None,
) -> Response:
    """Return an error in the dialect's own shape; `detail` is added for clients that read FastAPI's document."""
    body: dict[str, Any] = error_body(dialect, status=status, message=message, code=code, type=type)
    if detail is not None:
        body = {**body, "detail": detail}
    return json_answer(codec.encode(body), status, dict(headers or {}))


def error_said(dialect: Dialect, body: Mapping[str, Any]) -> Response:
    """Return a finished answer that is an error of the dialect with the HTTP status that belongs to what it says."""
    return json_answer(codec.encode(body), status_for_error(body.get("error")))


def failure_answer(dialect: Dialect, error: Exception) -> Response | None:
    """Return the answer to a failure that the backend or the handler meant to answer; None for any other exception.

    The backend's status is kept, and repeated in `x-upstream-status`; `Retry-After` is passed on; so is its body, when
    it is an error of the caller's dialect already.
    """
    if isinstance(error, UpstreamError):
        return _upstream_answer(dialect, error)
    if isinstance(error, aiohttp.ClientResponseError):
        content = getattr(error, "response_content", None)
        return _upstream_answer(
            dialect,
            UpstreamError(
                error.message or "the model backend answered with an error",
                server=str(error.request_info.real_url),
                status=error.status or None,
                body=content,
                headers=error.headers or {},
            ),
        )
    if isinstance(error, HTTPException):
        return error_answer(
            dialect,
            status=error.status_code,
            message=_text_of(error.detail),
            headers=error.headers,
            detail=error.detail,
        )
    return None


def _upstream_answer(dialect: Dialect, error: UpstreamError) -> Response:
    status = error.status if error.status is not None and error.status >= 400 else _status_without_answer(error)
    headers: dict[str, str] = {}
    if error.upstream_status is not None:
        headers[UPSTREAM_STATUS_HEADER] = str(error.upstream_status)
    for name, value in error.headers.items():
        if name.lower() == "retry-after":
            headers["retry-after"] = value
    parsed = _object_of(error.response_content)
    if parsed is not None and error.code is None and _fits(dialect, parsed, error.dialect):
        return json_answer(codec.encode(parsed), status, headers)
    inner = _inner_error(parsed)
    message = _text_of(inner.get("message")) if inner.get("message") else _plain_text(error)
    return error_answer(
        dialect,
        status=status,
        message=message[:_MAX_MESSAGE],
        code=error.code or _short(inner.get("code")),
        type=error.type or (_short(inner.get("type")) if error.dialect == dialect else None),
        headers=headers,
    )


def _status_without_answer(error: UpstreamError) -> int:
    return GATEWAY_TIMEOUT if error_category_for_exception(error) == "timeout" else BAD_GATEWAY


def _plain_text(error: UpstreamError) -> str:
    content = error.response_content
    said = content.decode("utf-8", "replace").strip() if content else ""
    return f"{error}: {said}" if said and said not in str(error) else str(error)


def _object_of(content: bytes | None) -> dict[str, Any] | None:
    if not content:
        return None
    try:
        return codec.decode_object(content)
    except ValueError:
        return None


def _fits(dialect: Dialect, body: Mapping[str, Any], known: Dialect | None) -> bool:
    """Return whether an error body has the shape that a client of the dialect parses."""
    if not isinstance(body.get("error"), Mapping) or not body["error"].get("message"):
        return False
    is_messages = body.get("type") == "error"
    if known is not None and (known == "messages") != (dialect == "messages"):
        return False
    return is_messages == (dialect == "messages")


def _inner_error(body: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if body is None:
        return {}
    inner = body.get("error")
    if isinstance(inner, Mapping):
        return inner
    if isinstance(inner, str):
        return {"message": inner}
    return {"message": body.get("message") or body.get("detail"), "code": body.get("code"), "type": body.get("type")}


def _text_of(value: object) -> str:
    return value if isinstance(value, str) else codec.encode(value).decode()


def _short(value: object) -> str | None:
    return str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else None

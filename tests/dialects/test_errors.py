"""Error categories (2.5) and error bodies (end of 5.2)."""

from __future__ import annotations

import asyncio
import errno
import http
import socket
from typing import Any

import pytest

from nemo_gym.dialects import (
    error_body,
    error_category_for_error,
    error_category_for_exception,
    error_category_for_status,
    error_object_of,
)


@pytest.mark.parametrize(
    ("status", "category"),
    [
        (200, None), (307, None), (400, "client_error"), (401, "auth"), (403, "auth"), (404, "not_found"),
        (408, "timeout"), (413, "client_error"), (422, "client_error"), (429, "rate_limit"), (499, "client_error"),
        (500, "upstream_error"), (502, "upstream_error"), (504, "timeout"), (529, "overloaded"),
    ],
)  # fmt: skip
def test_status(status: int, category: str | None) -> None:
    assert error_category_for_status(status) == category


@pytest.mark.parametrize(
    ("error", "category"),
    [
        ({"code": 504}, "timeout"),
        ({"code": "429"}, "rate_limit"),
        ({"type": "overloaded_error", "code": 500}, "overloaded"),
        ({"type": "invalid_request_error", "code": "context_length_exceeded"}, "context_length_exceeded"),
        ({"type": "invalid_request_error", "code": "model_not_found"}, "not_found"),
        ({"type": "invalid_request_error", "code": None}, "client_error"),
        ({"code": "content_filter", "status": 400}, "content_filter"),
        ({"code": "image_content_policy_violation"}, "content_filter"),
        ({"status": "RESOURCE_EXHAUSTED", "code": 429}, "rate_limit"),
        ({"status": "DEADLINE_EXCEEDED"}, "timeout"),
        ({"code": "insufficient_quota"}, "rate_limit"),
        ({"type": "authentication_error"}, "auth"),
        ({"type": "APIConnectionError"}, "connection"),
        ({"type": "BadRequestError", "code": 400}, "client_error"),
        ({"type": "server_error"}, "upstream_error"),
        ({"code": 502, "metadata": {"error_type": "rate_limit_exceeded"}}, "rate_limit"),
        ({"code": True, "type": ["odd"]}, "upstream_error"),
        ({"code": 200}, "upstream_error"),
        ({}, "upstream_error"),
        (None, "upstream_error"),
        ("text", "upstream_error"),
    ],
)
def test_in_stream_error(error: Any, category: str) -> None:
    assert error_category_for_error(error) == category


def library_class(module: str, name: str, *bases: type[BaseException]) -> type[BaseException]:
    return type(name, bases or (Exception,), {"__module__": module})


CONNECT = library_class("requests.exceptions", "ConnectionError", OSError)
LIMIT = library_class("requests.exceptions", "Timeout", OSError)


def with_status(error: Exception, **attributes: Any) -> Exception:
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


class Answer:
    status_code = 429


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (asyncio.CancelledError(), "cancelled"),
        (TimeoutError(), "timeout"),
        (ConnectionResetError(), "connection"),
        (BrokenPipeError(), "connection"),
        (socket.gaierror(), "connection"),
        (OSError(errno.EHOSTUNREACH, "x"), "connection"),
        (OSError(errno.ENOSPC, "x"), "exception"),
        (library_class("openai", "APITimeoutError", library_class("openai", "APIConnectionError"))(), "timeout"),
        (
            library_class(
                "aiohttp.x", "ServerDisconnectedError", library_class("aiohttp.y", "ClientConnectionError")
            )(),
            "connection",
        ),
        (library_class("requests.exceptions", "ConnectTimeout", CONNECT, LIMIT)(), "timeout"),
        (library_class("mine", "ConnectorTimeoutSettings")(), "exception"),
        (with_status(ValueError(), status=429), "rate_limit"),
        (with_status(ValueError(), status_code=http.HTTPStatus.GATEWAY_TIMEOUT), "timeout"),
        (with_status(ValueError(), response=Answer()), "rate_limit"),
        (with_status(TimeoutError(), status=200), "timeout"),
        (with_status(ValueError(), status="429"), "exception"),
        (ValueError(), "exception"),
    ],
)
def test_exception(error: BaseException, category: str) -> None:
    assert error_category_for_exception(error) == category


def test_an_exception_is_what_it_was_raised_from_when_it_says_nothing_itself() -> None:
    outer = RuntimeError("wrapped")
    outer.__cause__ = ConnectionRefusedError()
    assert error_category_for_exception(outer) == "connection"
    loop = RuntimeError()
    loop.__cause__ = loop
    assert error_category_for_exception(loop) == "exception"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"),
        (404, "not_found_error"), (413, "request_too_large"), (429, "rate_limit_error"), (500, "api_error"),
        (502, "api_error"), (529, "overloaded_error"), (422, "invalid_request_error"),
    ],
)  # fmt: skip
def test_messages_body(status: int, kind: str) -> None:
    wanted = {"type": "error", "error": {"type": kind, "message": "m"}}
    assert error_body("messages", status=status, message="m", code="c") == wanted


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_openai_body(dialect: Any) -> None:
    assert error_body(dialect, status=400, message="m", code="c") == {
        "error": {"message": "m", "type": "invalid_request_error", "param": None, "code": "c"}
    }
    assert error_body(dialect, status=502, message="m")["error"]["type"] == "server_error"
    assert error_body(dialect, status=502, message="m", type="mine")["error"]["type"] == "mine"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (error_body("chat", status=400, message="m"), error_body("chat", status=400, message="m")["error"]),
        (error_body("messages", status=400, message="m"), {"type": "invalid_request_error", "message": "m"}),
        ({"error": "text"}, {"message": "text"}),
        ({"object": "error", "message": "m"}, {"object": "error", "message": "m"}),
        ({"error": None, "id": "x"}, None),
        ([], None),
    ],
)
def test_the_error_of_a_body(body: Any, error: Any) -> None:
    assert error_object_of(body) == error

"""The outer middleware of a served app: exceptions become answers, and a client that left stops its handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias
from urllib.parse import quote

import aiohttp
from fastapi.exceptions import ResponseValidationError
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.capture.shared_timer import SharedTimer
from nemo_gym.errors import BoundaryError
from nemo_gym.records import codec, keys
from nemo_gym.records.refused_body import refused_body_text
from nemo_gym.records.server_failure import failed_server, failure_text
from nemo_gym.servers.fault import place_of
from nemo_gym.servers.unverified import UnverifiedError

logger = logging.getLogger(__name__)

ErrorAnswer: TypeAlias = Callable[[Scope, BaseException, str], Response]
"""Makes the answer to an unhandled exception from the request's scope, the exception and a one-line description."""

WATCH_AFTER_S = 0.05
"""Requests that end sooner are not watched for a client that left: there is nothing worth stopping."""

_BODY_EXCERPT = 2000
_MOST_PROBLEMS = 5
_TAKES_THE_ROW = ("/seed_session", "/verify")
"""Routes of a resources server whose body is the row: what it lacks was never in the data."""
_READ_AHEAD = 64
_CLIENT_LEFT_SCOPE_KEY = "ng_client_left"
"""Where the scope says that the handler was cancelled because nobody waits for its answer."""


class _StoppedError(BoundaryError):
    """The server is being ended, and the request with it."""

    status = 503


def describe(error: BaseException) -> str:
    """Return what a caller is told about an unhandled exception; an inner server's own words are kept."""
    error = _told(error)
    if isinstance(error, asyncio.CancelledError):
        return "Request was cancelled"
    inner = getattr(error, "response_content", None)
    if isinstance(error, aiohttp.ClientResponseError) and inner is not None:
        said = inner.decode("utf-8", "replace") if isinstance(inner, bytes) else str(inner)
        try:
            plain = codec.decode(said)
        except ValueError:
            plain = said
        # A server of ours says its exception as a JSON string; quoting it again would hide it in backslashes.
        shown = refused_body_text(plain) or (plain if isinstance(plain, str) else said)[:_BODY_EXCERPT]
        if error.status == 422 and error.request_info.real_url.path.endswith(_TAKES_THE_ROW):
            shown += " (the row may be one of another environment)"
        return failure_text(error.headers, f"`{error.request_info.real_url}`", error.status, shown)
    if isinstance(error, ResponseValidationError):
        return _unfit_answer(error)
    return repr(error)


def _unfit_answer(error: ResponseValidationError) -> str:
    """Say what a handler returned that its annotation does not allow; the exception's own `repr` says nothing."""
    function, file = getattr(error, "endpoint_function", None), getattr(error, "endpoint_file", None)
    who = f"`{function}`" if function else "the handler"
    where = f" (in `{file}`)" if file else ""
    problems = [
        f"`{'.'.join(map(str, found['loc'][1:]))}`: {found['msg']}" if found["loc"][1:] else str(found["msg"])
        for found in error.errors()
    ]
    more = len(problems) - _MOST_PROBLEMS
    listed = "; ".join(problems[:_MOST_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
    return f"{who}{where} returned something else than its annotation says: {listed}"


def _told(error: BaseException) -> BaseException:
    """Return the exception that is spoken of: of a rollout that was not verified, why it was not."""
    return error.__cause__ if isinstance(error, UnverifiedError) and error.__cause__ is not None else error


def plain_error(_scope: Scope, _error: BaseException, description: str) -> Response:
    """Answer 500 with the description as a JSON string, which tool-calling models read."""
    return Response(codec.encode(description), status_code=500, media_type="application/json")


class ExceptionMiddleware:
    """Turns every exception that a handler lets out into a JSON answer, and logs it with the server's name.

    This is the boundary where any exception is expected. When the answer has begun already, the connection is ended, so
    that the client cannot take the part for the whole. A request that ends with its server is answered 503: what became
    of it is open, and the fault is nobody's.
    """

    def __init__(self, app: ASGIApp, *, name: str, answer: ErrorAnswer = plain_error) -> None:
        self.app = app
        self._name = name
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and answer what it raises."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = False

        async def send_noting(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self.app(scope, receive, send_noting)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if began or scope.get(_CLIENT_LEFT_SCOPE_KEY):
                raise
            if task is not None and task.cancelling():
                await self._say_stopped(scope, receive, send)
                raise
            await self._reply(scope, receive, send, error)
        except Exception as error:
            if began:
                logger.exception("%s: `%s` failed after its answer began", self._name, scope["path"])
                raise
            await self._reply(scope, receive, send, error)

    async def _say_stopped(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = _StoppedError(f"`{self._name}` was stopped while it worked on this request")
        logger.warning("%s: `%s %s` was stopped with the server", self._name, scope["method"], scope["path"])
        answer = self._answer(scope, error, str(error))
        answer.status_code = error.status
        answer.headers[keys.FAILED_SERVER_HEADER] = quote(self._name)
        await answer(scope, receive, send)

    async def _reply(self, scope: Scope, receive: Receive, send: Send, error: BaseException) -> None:
        description = describe(error)
        where = f"{scope['method']} {scope['path']}"
        logger.error("%s: `%s` failed: %s", self._name, where, description[:500], exc_info=error)
        answer = self._answer(scope, error, description)
        told = _told(error)
        # Words of another server that are passed on: the fault is there, and so is the place to look at.
        passed_on = isinstance(told, aiohttp.ClientResponseError) and hasattr(told, "response_content")
        inner = failed_server(told.headers) if isinstance(told, aiohttp.ClientResponseError) else None
        answer.headers[keys.FAILED_SERVER_HEADER] = quote(inner or self._name)
        if not passed_on and (place := place_of(told)) is not None:
            answer.headers[keys.FAILED_AT_HEADER] = quote(place)
        await answer(scope, receive, send)


class DisconnectMiddleware:
    """Cancels the handler when the client goes away, so that nobody computes for a caller that left."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._timer: SharedTimer | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on while its client is there."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        task = asyncio.current_task()
        assert task is not None
        loop, timer = asyncio.get_running_loop(), self._timer
        if timer is None or timer.loop is not loop:
            timer = self._timer = SharedTimer(loop, WATCH_AFTER_S)
        watch = _Watch(receive, task, loop, scope)
        timer.add(watch)
        try:
            await self.app(scope, watch.receive, watch.sender(send))
        except asyncio.CancelledError:
            if not watch.has_cancelled or task.uncancel() > 0:
                raise
            logger.info("`%s`: the client left, its handler was stopped", scope["path"])
        finally:
            watch.close()


class _Watch:
    """Reads the request's messages ahead of the app, once the request lasts long enough to be worth it."""

    def __init__(
        self, receive: Receive, task: asyncio.Task[object], loop: asyncio.AbstractEventLoop, scope: Scope
    ) -> None:
        self._receive = receive
        self._scope = scope
        self._task = task
        self._loop = loop
        self._reading = 0
        self._is_due = False
        self._read_ahead: asyncio.Queue[Message] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._complete = False
        self.has_cancelled = False
        self.settled = False

    async def receive(self) -> Message:
        """Return the next message, as the app would have got it."""
        if self._read_ahead is not None:
            return await self._read_ahead.get()
        self._reading += 1
        try:
            return await self._receive()
        finally:
            self._reading -= 1
            if self._is_due and not self._reading and not self._complete:
                self.expire()

    def sender(self, send: Send) -> Send:
        """Return `send`, noting when the answer is complete."""

        async def send_noting(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                self._complete = True
            await send(message)

        return send_noting

    def expire(self) -> None:
        """Begin to read ahead, unless the request is over."""
        if self.settled:
            return
        if self._reading:  # The app is waiting for a message itself; two readers would steal from each other.
            self._is_due = True
            return
        self._read_ahead = asyncio.Queue(maxsize=_READ_AHEAD)
        self._reader = self._loop.create_task(self._read(self._read_ahead))

    async def _read(self, queue: asyncio.Queue[Message]) -> None:
        while True:
            message = await self._receive()
            await queue.put(message)
            if message["type"] == "http.disconnect":
                if not self._complete and not self._task.done():
                    self.has_cancelled = self._scope[_CLIENT_LEFT_SCOPE_KEY] = True
                    self._task.cancel()
                return

    def close(self) -> None:
        """Stop watching."""
        self.settled = True
        if self._reader is not None:
            self._reader.cancel()

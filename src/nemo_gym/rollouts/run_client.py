"""The one place that talks to agents: `POST /run`, never sent twice unless nothing was sent."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

import aiohttp

from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject, decode, decode_object, encode
from nemo_gym.records.failure_kinds import (
    AGENT_REQUEST_FAILED,
    AGENT_RUN_ERROR,
    TRANSPORT_LOCAL_RESOURCE,
    TRANSPORT_PEER_DROP,
    TRANSPORT_TIMEOUT,
    TRANSPORT_UNREACHABLE,
)
from nemo_gym.records.failures import MAX_TEXT, RunFailure, cut, failure_of_status, with_rollout
from nemo_gym.records.refused_body import refused_body_text
from nemo_gym.records.server_failure import failure_text
from nemo_gym.servers.access import server_token_headers

MAX_CONNECTIONS = 102_400
MAX_CONNECTIONS_PER_HOST = 1024
DEFAULT_CONNECTION_RETRIES = 8

# Below the 5 s after which uvicorn closes an idle connection: a request on a connection that the agent is just closing
# would be lost in a way that cannot be told from a crash.
_IDLE_CONNECTION_S = 2.0
_CONNECT_TIMEOUT_S = 60.0
_FIRST_BACKOFF_S = 0.1
_LONGEST_REASON = 1000
_MAX_BACKOFF_S = 2.0
_LOCAL_RESOURCE_ERRNOS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN}
)
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class FailedRunError(Exception):
    """One `/run` failed. `failure` holds the facts; `__cause__` is what was caught, if anything was."""

    def __init__(self, failure: RunFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class RunClient:
    """A pool of connections to agents; an async context manager. Cancelling a call closes its connection."""

    def __init__(self, *, connection_retries: int = DEFAULT_CONNECTION_RETRIES, timeout_s: float | None = None) -> None:
        self._retries = connection_retries
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> RunClient:
        self._session = _open_session(self._timeout_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post_run(self, url: str, body: JsonObject) -> JsonObject:
        """Send one rollout and return the object that came back.

        Raises FailedRunError for a status of 400 or above, a reply that is not a JSON object, and a transport error.
        Only a connection that was never made is tried again, with growing pauses.
        """
        payload = encode(body)
        attempt = 0
        while True:
            try:
                return await self._post_once(url, payload)
            except FailedRunError as error:
                if error.failure.delivery != "not_sent" or attempt >= self._retries:
                    if attempt:
                        tried = f"{error.failure.message} (after {attempt + 1} tries to connect)"
                        raise FailedRunError(replace(error.failure, message=tried)) from error.__cause__
                    raise
            await asyncio.sleep(min(_FIRST_BACKOFF_S * 2**attempt, _MAX_BACKOFF_S))
            attempt += 1

    async def post_json(self, url: str, payload: bytes | AsyncIterator[bytes], *, timeout_s: float) -> Any:
        """POST encoded JSON, whole or in pieces; return the decoded answer or raise FailedRunError like `post_run`."""
        try:
            async with self._opened().post(
                url, data=payload, timeout=aiohttp.ClientTimeout(total=timeout_s)
            ) as response:
                raw = await response.read()
                status, headers = response.status, response.headers
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise FailedRunError(
                failure_of_exception(error, url, no_answer=f"no answer came within {timeout_s:g} s")
            ) from error
        if status >= 400:
            raise FailedRunError(_status_failure(status, raw, url, headers))
        try:
            return decode(raw)
        except ValueError as error:
            raise FailedRunError(_unreadable_reply(status, raw, url, error)) from error

    def _no_answer(self) -> str:
        if self._timeout_s is None:
            return "no answer came in time"
        return f"no answer came within {self._timeout_s:g} s; `rollout_timeout_s` bounds how long a rollout may take"

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is used outside of its `async with` block")
        return self._session

    async def _post_once(self, url: str, payload: bytes) -> JsonObject:
        try:
            async with self._opened().post(url, data=payload) as response:
                raw = await response.read()
                status, headers = response.status, response.headers
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise FailedRunError(failure_of_exception(error, url, no_answer=self._no_answer())) from error
        if status >= 400:
            raise FailedRunError(_status_failure(status, raw, url, headers))
        try:
            return decode_object(raw)
        except ValueError as error:
            raise FailedRunError(_unreadable_reply(status, raw, url, error)) from error


def failure_of_exception(error: BaseException, url: str, *, no_answer: str) -> RunFailure:
    """Return what a transport error means: how the rollout failed, and whether the request can have arrived.

    `no_answer` is what to say of a request that was sent and not answered in time.
    """
    text = str(error) or repr(error)
    kind, delivery = TRANSPORT_PEER_DROP, "possibly_delivered"
    if _is_local_resource(error):
        kind, delivery = TRANSPORT_LOCAL_RESOURCE, "not_sent"
    elif isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)):
        kind, delivery = TRANSPORT_UNREACHABLE, "not_sent"
    elif isinstance(error, TimeoutError):
        kind, text = TRANSPORT_TIMEOUT, no_answer
    return RunFailure(
        failure_class=AGENT_REQUEST_FAILED,
        kind=kind,
        delivery="not_sent" if delivery == "not_sent" else "possibly_delivered",
        message=f"`POST {url}`: {text}",
        exception_type=type(error).__name__,
    )


def _is_local_resource(error: BaseException) -> bool:
    number = error.errno if isinstance(error, OSError) else None
    inner = getattr(error, "os_error", None)
    if isinstance(inner, OSError):
        number = inner.errno
    return isinstance(error, (aiohttp.ClientOSError, OSError)) and number in _LOCAL_RESOURCE_ERRNOS


def _status_failure(status: int, raw: bytes, url: str, headers: Mapping[str, str]) -> RunFailure:
    try:
        value = decode(raw)
    except ValueError:
        value = None
    reason, body = _reason_in(value), raw.decode(errors="replace")
    handed_over = value.get(keys.FAILED_ROLLOUT) if isinstance(value, dict) else None
    if handed_over is not None and reason is not None:
        body = reason  # the rest of it is on the row
    failure = failure_of_status(
        status,
        body,
        exception_type="ClientResponseError",
        message=failure_text(headers, f"`POST {url}`", status, cut(reason or body, _LONGEST_REASON)),
    )
    return with_rollout(failure, handed_over)


def _reason_in(value: Any) -> str | None:
    """Return the message inside the value of a JSON error body, in the shapes that servers here use."""
    refused = refused_body_text(value)
    if refused is not None:
        return refused
    if isinstance(value, dict):
        value = value.get("detail") or value.get("error") or value.get("message")
    if isinstance(value, dict):
        value = value.get("message")
    return value if isinstance(value, str) else None


def _unreadable_reply(status: int, raw: bytes, url: str, error: ValueError) -> RunFailure:
    return RunFailure(
        failure_class=AGENT_RUN_ERROR,
        kind=AGENT_RUN_ERROR,
        delivery="delivered",
        message=f"`POST {url}` answered {status} with something that is no JSON object: {error}",
        exception_type="JSONDecodeError" if "object is needed" not in str(error) else "InvalidRolloutResult",
        status=status,
        body=raw[: 4 * (MAX_TEXT + 1)].decode(errors="replace"),
    )


def _open_session(timeout_s: float | None) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=MAX_CONNECTIONS,
        limit_per_host=MAX_CONNECTIONS_PER_HOST,
        keepalive_timeout=_IDLE_CONNECTION_S,
        socket_factory=_keepalive_socket,
    )
    return aiohttp.ClientSession(
        connector=connector,
        headers={"Content-Type": "application/json", **server_token_headers()},
        # A rollout may take hours: no limit unless one was asked for, and then for the whole exchange.
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_TIMEOUT_S),
        # A cookie names one rollout's session; it must not travel to the next rollout.
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=True,
        read_bufsize=1 << 18,
    )


def _keepalive_socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    sock = socket.socket(family=family, type=kind, proto=protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        for name, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock

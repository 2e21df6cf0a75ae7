"""Calls from a model server to the endpoint behind it: bounded tries, and each one written down.

Tried again are 408, 409, 429, 5xx and 529 only, with full jitter and the endpoint's own Retry-After. A connection that
cannot be made is reported at once, with its URL: a wrong port must not look like a slow model.
"""

from __future__ import annotations

import asyncio
import base64
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
from yarl import URL

from nemo_gym.dialects.names import Dialect
from nemo_gym.servers.http_session import get_global_aiohttp_client
from nemo_gym.servers.upstream import NOT_ASKED, UpstreamError
from nemo_gym.servers.upstream_health import RETEST_S, Breaker, RetryBudget, is_permanent

RETRIED_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504, 520, 529})
_FIRST_PAUSE_S = 0.5
_BROKEN = (TimeoutError, aiohttp.ClientError)
_SECRET_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
_SHORTEST_SECRET = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """Where the endpoint is and how long to insist.

    `base_url` has no trailing slash; times are seconds; `idle_timeout_s` is the longest silence, before an answer or
    between two pieces of it, `total_timeout_s` the longest a call may take, None for no limit; `longest_pause_s` bounds
    one pause between two tries, whatever Retry-After asks for; `retest_s` is how long a refused key or a used-up quota
    is believed; `max_concurrent` bounds the calls of this process, None for no bound.
    """

    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    max_attempts: int = 3
    connect_timeout_s: float = 10.0
    idle_timeout_s: float | None = 600.0
    total_timeout_s: float | None = None
    longest_pause_s: float = 30.0
    retest_s: float = RETEST_S
    max_concurrent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamReply:
    """An answer whose status is below 400. Either `read` or `chunks` must be used, which frees the connection."""

    response: aiohttp.ClientResponse
    release: Callable[[], None]

    @property
    def content_type(self) -> str:
        """The content type as the endpoint sent it."""
        return self.response.headers.get("Content-Type", "application/json")

    @property
    def is_stream(self) -> bool:
        """Whether the answer is a stream of events."""
        return self.content_type.lower().startswith("text/event-stream")

    async def read(self) -> bytes:
        """Return the whole body. Raises UpstreamError when the connection breaks."""
        try:
            return await self.response.read()
        except _BROKEN as error:
            raise unanswered(error, str(self.response.url)) from error
        finally:
            self.response.release()
            self.release()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; leaving early closes the connection, which tells the endpoint to stop."""
        try:
            async for chunk in self.response.content.iter_any():
                yield chunk
        except _BROKEN as error:
            raise unanswered(error, str(self.response.url)) from error
        finally:
            self.response.close()
            self.release()


class UpstreamClient:
    """One endpoint: its `base_url` without a user in it, and the `headers` that every request to it carries."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self.settings = settings
        self.base_url, self.headers = _without_user(settings.base_url, settings.headers)
        self.breaker = Breaker(retest_s=settings.retest_s)
        self._budget = RetryBudget()
        self._slots = None if settings.max_concurrent is None else asyncio.Semaphore(settings.max_concurrent)
        self._timeout = aiohttp.ClientTimeout(
            total=settings.total_timeout_s, sock_connect=settings.connect_timeout_s, sock_read=settings.idle_timeout_s
        )
        self._secrets = [
            secret.encode()
            for name, value in settings.headers.items()
            if name.lower() in _SECRET_HEADERS and len(secret := value.removeprefix("Bearer ")) >= _SHORTEST_SECRET
        ]

    async def post(
        self,
        path: str,
        body: bytes,
        *,
        dialect: Dialect,
        headers: Mapping[str, str] | None = None,
        attempts: list[dict[str, Any]],
    ) -> UpstreamReply:
        """POST a JSON body and return the answer once its headers are there.

        Each try is appended to `attempts` as {url, status, latency_ms, error}. Raises UpstreamError for a refusal that
        is final, for an endpoint that cannot be reached, and at once while the breaker is open.
        """
        url = self.base_url + path
        if not self.breaker.admit():
            raise self._closed(url)
        if self._slots is not None:
            await self._slots.acquire()
        release = _once(self._slots)
        try:
            response = await self._insist(url, body, dialect, headers or {}, attempts)
        except BaseException:
            self.breaker.abandoned()
            release()
            raise
        return UpstreamReply(response=response, release=release)

    async def _insist(
        self, url: str, body: bytes, dialect: Dialect, headers: Mapping[str, str], attempts: list[dict[str, Any]]
    ) -> aiohttp.ClientResponse:
        sent = {"Content-Type": "application/json", **self.headers, **headers}
        self._budget.earn()
        tries = 0
        while True:
            begun, tries = time.monotonic(), tries + 1
            try:
                response = await get_global_aiohttp_client().post(url, data=body, headers=sent, timeout=self._timeout)
            except (*_BROKEN, ValueError) as error:  # ValueError: what aiohttp says to some malformed URLs
                attempts.append(_attempt(url, begun, None, error))
                self.breaker.failed()
                raise unanswered(error, url, attempt=tries) from error
            attempts.append(_attempt(url, begun, response.status, None))
            if response.status < 400:
                self.breaker.succeeded()
                return response
            refusal = await self._refusal(response, url, dialect, attempt=tries)
            self._note(refusal)
            if not self._may_retry(refusal):
                raise refusal
            await asyncio.sleep(self._pause(refusal))

    def _note(self, refusal: UpstreamError) -> None:
        if is_permanent(refusal.status, refusal.response_content):
            self.breaker.refused(refusal)
        elif refusal.status is not None and refusal.status >= 500:
            self.breaker.failed()
        else:
            self.breaker.succeeded()  # it refuses this call, but it answers

    def _closed(self, url: str) -> UpstreamError:
        """Return the error of a call that is not even tried."""
        known, wait_s = self.breaker.refusal, self.breaker.closed_in_s
        if isinstance(known, UpstreamError):
            return UpstreamError(
                f"{known}; it will not be asked again for {wait_s:.0f} s",
                server=known.server,
                status=known.status,
                body=known.body,
                headers=known.headers,
                dialect=known.dialect,
            )
        return UpstreamError(
            f"the model at `{shown_url(url)}` has failed too often in a row; it is asked again in {wait_s:.0f} s",
            server=shown_url(url),
            status=503,
            headers={"Retry-After": f"{max(1, round(wait_s))}"},
            code=NOT_ASKED,
        )

    def _may_retry(self, refusal: UpstreamError) -> bool:
        if refusal.attempt >= self.settings.max_attempts or refusal.status not in RETRIED_STATUSES:
            return False
        if is_permanent(refusal.status, refusal.response_content):
            return False
        return self._budget.spend()

    def _pause(self, refusal: UpstreamError) -> float:
        jittered = random.uniform(0, _FIRST_PAUSE_S * 2**refusal.attempt)
        return min(max(jittered, _retry_after(refusal.headers)), self.settings.longest_pause_s)

    async def _refusal(
        self, response: aiohttp.ClientResponse, url: str, dialect: Dialect, *, attempt: int
    ) -> UpstreamError:
        try:
            body = await response.read()
        except _BROKEN:
            body = b""
        finally:
            response.release()
        for secret in self._secrets:  # some providers repeat the key that they refuse
            body = body.replace(secret, b"****")
        return UpstreamError(
            f"the model at `{shown_url(url)}` answered {response.status}",
            server=shown_url(url),
            status=response.status,
            body=body,
            headers=response.headers,
            dialect=dialect,
            attempt=attempt,
        )


def _without_user(url: str, headers: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """Return a URL without the user in it, who is shown as basic authentication unless a key is."""
    try:
        parsed = URL(url)
    except ValueError:
        return url, headers
    if parsed.user is None:
        return url, headers
    bare = str(parsed.with_user(None)).rstrip("/")
    if any(name.lower() == "authorization" for name in headers):
        return bare, headers
    shown = base64.b64encode(f"{parsed.user}:{parsed.password or ''}".encode()).decode()
    return bare, {**headers, "Authorization": f"Basic {shown}"}


def shown_url(url: str) -> str:
    """Return a URL without what may be secret in it: user, password, query."""
    try:
        return str(URL(url).with_user(None).with_query(None))
    except ValueError:
        return url.partition("?")[0]


def unanswered(error: BaseException, url: str, *, attempt: int = 1) -> UpstreamError:
    """Return the error for an endpoint that gave no answer, or broke off in the middle of one."""
    shown = shown_url(url)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        message = f"no model answers at `{shown}`: no connection could be made in time. Is the URL right, and is it up?"
    elif isinstance(error, TimeoutError):
        message = f"the model at `{shown}` was silent for too long"
    elif isinstance(error, aiohttp.ClientConnectorError):
        reason = error.os_error.strerror or str(error.os_error)
        message = f"no model answers at `{shown}`: {reason}. Is the URL right, and is it up?"
    elif isinstance(error, (aiohttp.InvalidURL, ValueError)):
        message = f"`{shown}` is not a URL that can be called: check the model's base URL"
    else:
        message = f"the model at `{shown}` broke the connection: {str(error) or type(error).__name__}"
    kind = "timeout" if isinstance(error, TimeoutError) else "connection"
    return UpstreamError(message, server=shown, status=None, code=f"upstream_{kind}", attempt=attempt)


def _once(slots: asyncio.Semaphore | None) -> Callable[[], None]:
    """Return what gives a slot back; further calls do nothing."""
    held = [slots]

    def release() -> None:
        taken = held[0]
        if taken is not None:
            held[0] = None
            taken.release()

    return release


def _attempt(url: str, begun: float, status: int | None, error: BaseException | None) -> dict[str, Any]:
    return {
        "url": shown_url(url),
        "status": status,
        "latency_ms": round((time.monotonic() - begun) * 1000, 2),
        "error": None if error is None else type(error).__name__,
    }


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that Retry-After asks for, as a number or a date; 0 when it asks for none."""
    value = next((given for name, given in headers.items() if name.lower() == "retry-after"), "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return 0.0

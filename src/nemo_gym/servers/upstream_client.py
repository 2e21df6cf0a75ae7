"""Calls from a model server to the backend behind it: bounded tries, and each one written down.

Tried again are 408, 409, 429, 5xx and 529 only, with full jitter and the backend's own Retry-After. A connection that
cannot be made is reported at once, with its URL: a wrong port must not look like a slow model.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from nemo_gym.dialects.names import Dialect
from nemo_gym.servers.http_session import get_global_aiohttp_client
from nemo_gym.servers.upstream import UpstreamError

RETRIED_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504, 520, 529})
_PERMANENT_CODES = (b"insufficient_quota", b"budget_exceeded", b"invalid_api_key")
_FIRST_PAUSE_S = 0.5
_BROKEN = (TimeoutError, aiohttp.ClientError)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """Where the backend is and how long to insist.

    `base_url` has no trailing slash; times are seconds; `idle_timeout_s` is the longest silence between two pieces of
    an answer, None for no limit; `longest_pause_s` bounds one pause between two tries, whatever Retry-After asks for.
    """

    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    max_attempts: int = 3
    connect_timeout_s: float = 10.0
    idle_timeout_s: float | None = 600.0
    longest_pause_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamReply:
    """An answer whose status is below 400. Either `read` or `chunks` must be used, which frees the connection."""

    response: aiohttp.ClientResponse

    @property
    def content_type(self) -> str:
        """The content type as the backend sent it."""
        return self.response.headers.get("Content-Type", "application/json")

    async def read(self) -> bytes:
        """Return the whole body. Raises UpstreamError when the connection breaks."""
        try:
            return await self.response.read()
        except _BROKEN as error:
            raise unanswered(error, str(self.response.url)) from error
        finally:
            self.response.release()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; leaving early closes the connection, which tells the backend to stop."""
        try:
            async for chunk in self.response.content.iter_any():
                yield chunk
        except _BROKEN as error:
            raise unanswered(error, str(self.response.url)) from error
        finally:
            self.response.close()


class UpstreamClient:
    """One backend."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self.settings = settings
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=settings.connect_timeout_s, sock_read=settings.idle_timeout_s
        )

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

        Each try is appended to `attempts` as {status, latency_ms, error}. Raises UpstreamError for a refusal that is
        final, and for a backend that cannot be reached.
        """
        url = self.settings.base_url + path
        sent = {"Content-Type": "application/json", **self.settings.headers, **(headers or {})}
        while True:
            begun = time.monotonic()
            try:
                response = await get_global_aiohttp_client().post(url, data=body, headers=sent, timeout=self._timeout)
            except (*_BROKEN, ValueError) as error:  # ValueError: what aiohttp says to some malformed URLs
                attempts.append(_attempt(begun, None, error))
                raise unanswered(error, url, attempt=len(attempts)) from error
            attempts.append(_attempt(begun, response.status, None))
            if response.status < 400:
                return UpstreamReply(response=response)
            refusal = await _refusal(response, url, dialect, attempt=len(attempts))
            if not self._may_retry(refusal):
                raise refusal
            await asyncio.sleep(self._pause(refusal))

    def _may_retry(self, refusal: UpstreamError) -> bool:
        if refusal.attempt >= self.settings.max_attempts or refusal.status not in RETRIED_STATUSES:
            return False
        # A quota that is used up does not come back in a few seconds.
        return not any(code in (refusal.response_content or b"") for code in _PERMANENT_CODES)

    def _pause(self, refusal: UpstreamError) -> float:
        jittered = random.uniform(0, _FIRST_PAUSE_S * 2**refusal.attempt)
        return min(max(jittered, _retry_after(refusal.headers)), self.settings.longest_pause_s)


def unanswered(error: BaseException, url: str, *, attempt: int = 1) -> UpstreamError:
    """Return the error for a backend that gave no answer, or broke off in the middle of one."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        message = f"no model answers at `{url}`: no connection could be made in time. Is the URL right, and is it up?"
    elif isinstance(error, TimeoutError):
        message = f"the model at `{url}` was silent for too long"
    elif isinstance(error, aiohttp.ClientConnectorError):
        reason = error.os_error.strerror or str(error.os_error)
        message = f"no model answers at `{url}`: {reason}. Is the URL right, and is it up?"
    elif isinstance(error, (aiohttp.InvalidURL, ValueError)):
        message = f"`{url}` is not a URL that can be called: check the model's base URL"
    else:
        message = f"the model at `{url}` broke the connection: {str(error) or type(error).__name__}"
    kind = "timeout" if isinstance(error, TimeoutError) else "connection"
    return UpstreamError(message, server=url, status=None, code=f"upstream_{kind}", attempt=attempt)


def _attempt(begun: float, status: int | None, error: BaseException | None) -> dict[str, Any]:
    return {
        "status": status,
        "latency_ms": round((time.monotonic() - begun) * 1000, 2),
        "error": None if error is None else type(error).__name__,
    }


async def _refusal(response: aiohttp.ClientResponse, url: str, dialect: Dialect, *, attempt: int) -> UpstreamError:
    try:
        body = await response.read()
    except _BROKEN:
        body = b""
    finally:
        response.release()
    return UpstreamError(
        f"the model at `{url}` answered {response.status}",
        server=url,
        status=response.status,
        body=body,
        headers=response.headers,
        dialect=dialect,
        attempt=attempt,
    )


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

"""An async client for endpoints that speak OpenAI's protocol, over aiohttp."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NoReturn

import aiohttp
from pydantic import BaseModel, Field, PrivateAttr

from nemo_gym.errors import RemoteError
from nemo_gym.records.codec import decode, encode
from nemo_gym.servers.http_session import CONNECT_TIMEOUT_S, get_global_aiohttp_client
from nemo_gym.servers.openai_types.retrying import (
    RETRY_AFTER_CAP_S,
    PermanentEndpointError,
    UnreachableEndpointError,
    backoff_s,
    is_retried,
    permanent_reason,
    retry_after_s,
)

REPROBE_AFTER_S = 300.0
"""How long a refused key is believed to be refused; then one call goes out again."""


class NeMoGymAsyncOpenAI(BaseModel):
    """Calls one endpoint with a bearer key; every method returns the parsed JSON.

    Statuses that may pass are tried `max_http_attempts` times in all, with exponential pauses and full jitter, and no
    sooner than the provider's `Retry-After`; the last answer is raised as `aiohttp.ClientResponseError` whose
    `response_content` is the body. A refused connection is reported at once, as an `UnreachableEndpointError` that
    names the URL; a connection lost on the way is tried `max_connection_retries` more times (None: as often as a
    status). A refused key or an empty account raises `PermanentEndpointError`, and so do later calls, without network,
    until five minutes have passed. `internal` marks an endpoint of our own; it has the same bounds. `timeout_s` limits
    one attempt; None does not limit it, since a generation may take long.
    """

    base_url: str
    api_key: str = Field(repr=False)
    internal: bool = False
    max_connection_retries: int | None = None
    max_http_attempts: int = 3
    default_headers: dict[str, str] = Field(default_factory=dict)
    timeout_s: float | None = None

    _refused: str | None = PrivateAttr(default=None)
    _refused_at: float = PrivateAttr(default=0.0)

    async def create_response(self, **body: Any) -> dict[str, Any]:
        """Create a Response; `body` is the request."""
        return await self._call("POST", f"{self._base()}/responses", body)

    async def create_chat_completion(self, **body: Any) -> dict[str, Any]:
        """Create a chat completion; `body` is the request."""
        return await self._call("POST", f"{self._base()}/chat/completions", body)

    async def create_completion(self, **body: Any) -> dict[str, Any]:
        """Create a plain completion; `body` is the request."""
        return await self._call("POST", f"{self._base()}/completions", body)

    async def create_models(self) -> dict[str, Any]:
        """List the endpoint's models."""
        return await self._call("GET", f"{self._base()}/models", None)

    async def create_tokenize(self, **body: Any) -> dict[str, Any]:
        """Tokenise; inference servers offer it beside `/v1`, not under it."""
        return await self._call("POST", f"{self._base().removesuffix('/v1')}/tokenize", body)

    def _base(self) -> str:
        return self.base_url.rstrip("/")

    async def _call(self, method: str, url: str, body: dict[str, Any] | None) -> dict[str, Any]:
        self._refuse_when_tripped(url)
        data = None if body is None else encode({key: _jsonable(value) for key, value in body.items()})
        connection_losses, attempt = 0, 0
        while True:
            attempt += 1
            try:
                response, content = await self._send(method, url, data)
            except aiohttp.ClientConnectorError as error:
                raise UnreachableEndpointError(
                    f"No connection to `{url}`: {error.os_error}. Check that the server runs and that"
                    " `base_url` is right.",
                    server=url,
                    attempt=attempt,
                ) from error
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
                connection_losses += 1
                allowed = self.max_connection_retries
                if connection_losses > (self.max_http_attempts - 1 if allowed is None else allowed):
                    raise UnreachableEndpointError(
                        f"`{url}` broke off {connection_losses} times: {type(error).__name__}: {error}.",
                        server=url,
                        attempt=attempt,
                    ) from error
                await _pause(backoff_s(connection_losses))
                continue
            if response.ok:
                return self._parsed(url, content, attempt)
            self._trip_when_permanent(url, response.status, content, attempt)
            wait = retry_after_s(response.headers)
            too_long = wait is not None and wait > RETRY_AFTER_CAP_S
            if not is_retried(response.status) or attempt >= self.max_http_attempts or too_long:
                await _raise_status(response, content)
            await _pause(backoff_s(attempt, retry_after=wait))

    async def _send(self, method: str, url: str, data: bytes | None) -> tuple[aiohttp.ClientResponse, bytes]:
        headers = {"Authorization": f"Bearer {self.api_key}", **self.default_headers}
        if data is not None:
            headers.setdefault("Content-Type", "application/json")
        timeout = aiohttp.ClientTimeout(total=self.timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        async with get_global_aiohttp_client().request(
            method, url, data=data, headers=headers, timeout=timeout
        ) as response:
            return response, await response.read()

    def _parsed(self, url: str, content: bytes, attempt: int) -> dict[str, Any]:
        try:
            value = decode(content)
        except ValueError as error:
            raise RemoteError(
                f"`{url}` answered something that is not JSON: {error}.", server=url, status=200, attempt=attempt
            ) from error
        return value if isinstance(value, dict) else {"data": value}

    def _refuse_when_tripped(self, url: str) -> None:
        if self._refused is None:
            return
        if time.monotonic() - self._refused_at >= REPROBE_AFTER_S:
            self._refused = None
            return
        raise PermanentEndpointError(f"`{url}` was not called: {self._refused}.", server=url, attempt=0)

    def _trip_when_permanent(self, url: str, status: int, content: bytes, attempt: int) -> None:
        reason = permanent_reason(status, content)
        if reason is None:
            return
        self._refused, self._refused_at = reason, time.monotonic()
        raise PermanentEndpointError(
            f"`{url}` answered {status}: {reason}. Body: {content[:500].decode('utf-8', 'replace')}",
            server=url,
            status=status,
            attempt=attempt,
        )


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def _raise_status(response: aiohttp.ClientResponse, content: bytes) -> NoReturn:
    from nemo_gym.servers.http import raise_for_status  # start time: types alone must not load the configuration

    await raise_for_status(response, content)
    raise AssertionError(f"`{response.status}` is no failure")


def _jsonable(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    return value

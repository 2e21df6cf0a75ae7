"""Outgoing HTTP requests: one try per request that may have been sent, bounded tries for one that was not."""

from __future__ import annotations

import asyncio
import json as json_module
import logging
import random
from collections.abc import Mapping
from typing import Any, cast

import aiohttp
import orjson
from aiohttp import ClientResponse
from multidict import CIMultiDict
from omegaconf import DictConfig, ListConfig, OmegaConf
from pydantic import BaseModel
from yarl import URL

from nemo_gym.errors import RemoteError
from nemo_gym.servers.http_session import get_global_aiohttp_client, is_request_debug

logger = logging.getLogger(__name__)

MAX_NUM_TRIES = 3
"""Tries of a call to a host outside this run."""
INTERNAL_CONNECTION_RETRIES = 8
"""Further tries of a call to a server of this run, whose process may be restarting."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY
_JSON_HEADERS = {"Content-Type": "application/json"}


class ServerUnreachableError(RemoteError, aiohttp.ClientConnectorError):
    """No connection could be made, so nothing was sent.

    Attributes: `server`, the name or URL; `attempt`, how many tries there were; `os_error`, the last reason.
    """

    def __init__(self, message: str, *, server: str, attempt: int, cause: aiohttp.ClientConnectorError) -> None:
        aiohttp.ClientConnectorError.__init__(self, cause._conn_key, cause.os_error)
        self._message = message
        self.server, self.status, self.attempt = server, None, attempt

    def __str__(self) -> str:
        return self._message


class ServerDroppedError(RemoteError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
    """A server of this run closed the connection without an answer: it ended, or has no descriptors left.

    What was asked may have been done.
    """

    def __init__(self, message: str, *, server: str = "") -> None:
        self.args, self.message = (message,), message
        self.server, self.status = server, None

    def __str__(self) -> str:
        return str(self.message)


async def request(
    method: str,
    url: str,
    _internal: bool = False,
    _max_connection_retries: int | None = None,
    _server_name: str | None = None,
    **kwargs: Any,
) -> ClientResponse:
    """Send a request through the shared session and return aiohttp's response; HTTP errors do not raise.

    `kwargs` are aiohttp's; `json` is encoded once, by the fast encoder. A request is tried again only while no
    connection could be made, with growing pauses: what may have reached the server is never sent twice. When the tries
    are used up, raises `ServerUnreachableError`, which is also aiohttp's `ClientConnectorError`; `ServerDroppedError`,
    also an aiohttp error, when a server of this run closed the connection instead of answering. A body that is no JSON
    raises TypeError before anything is sent.
    """
    if (body := kwargs.pop("json", None)) is not None:
        kwargs["data"] = encode_body(body)
        kwargs["headers"] = _json_headers(kwargs.get("headers"))
    retries = _max_connection_retries
    if retries is None:
        retries = INTERNAL_CONNECTION_RETRIES if _internal else MAX_NUM_TRIES - 1
    if is_request_debug():
        logger.info("%s %s (%d bytes)", method, url, len(kwargs.get("data") or b""))
    session = get_global_aiohttp_client()
    attempt = 1
    while True:
        try:
            return await session.request(method, url, **kwargs)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            if attempt > retries or isinstance(error, aiohttp.ClientSSLError):
                raise _unreachable(error, url=url, server=_server_name, attempt=attempt) from error
            if attempt == 1:
                logger.warning("%s; trying again", _reason(error, url, _server_name))
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if _server_name is None:
                raise
            said = f"`{_server_name}` at `{_shown(url)}` closed the connection without an answer: {error}"
            raise ServerDroppedError(said, server=_server_name) from error
        await asyncio.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**attempt) * (0.5 + random.random() / 2))
        attempt += 1


def _reason(error: Exception, url: str, server: str | None) -> str:
    named = f"`{server}` at `{_shown(url)}`" if server else f"`{_shown(url)}`"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"{named} has a host name that does not resolve"
    if isinstance(error, ConnectionRefusedError) or getattr(error, "errno", None) == 111:
        return f"{named} refuses connections: is the server running?"
    return f"{named} cannot be reached: {error}"


def _shown(url: str) -> str:
    """Return the URL without what may be secret in it."""
    parsed = URL(url)
    return str(parsed.with_query(None).with_user(None)) if parsed.is_absolute() else url


def _unreachable(error: Exception, *, url: str, server: str | None, attempt: int) -> Exception:
    if not isinstance(error, aiohttp.ClientConnectorError):
        return error
    tries = f" ({attempt} tries)" if attempt > 1 else ""
    return ServerUnreachableError(
        _reason(error, url, server) + tries, server=server or _shown(url), attempt=attempt, cause=error
    )


def _json_headers(headers: Any) -> Any:
    if not headers:
        return _JSON_HEADERS
    merged: CIMultiDict[str] = CIMultiDict(headers)
    merged.setdefault("Content-Type", "application/json")
    return merged


def encode_body(value: Any) -> bytes:
    """Return `value` as JSON; models are dumped without unset fields, configuration nodes resolved.

    Raises TypeError for a value that is no JSON. A lone surrogate, which models do produce, stays an escape.
    """
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_unset=True, by_alias=True, mode="json", warnings=False)
    try:
        return orjson.dumps(value, default=_plain, option=_OPTIONS)
    except TypeError:
        return _encode_slowly(value)


def _encode_slowly(value: Any) -> bytes:
    try:
        # Takes keys that are no text too, and almost twice as long for those that are.
        return orjson.dumps(value, default=_plain, option=_OPTIONS | orjson.OPT_NON_STR_KEYS)
    except TypeError as error:
        try:
            return json_module.dumps(value, default=_plain, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError):
            raise error from None


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True, by_alias=True, mode="json", warnings=False)
    if isinstance(value, (DictConfig, ListConfig)):
        return OmegaConf.to_container(value, resolve=True)
    raise TypeError(f"`{type(value).__name__}` is not JSON")


async def get_response_json(response: ClientResponse) -> Any:
    """Return the body as JSON; raises `JSONDecodeError` (a ValueError) when it is not."""
    body = await response.read()
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        try:  # Lone surrogate escapes, which the fast decoder refuses.
            return json_module.loads(body)
        except (ValueError, RecursionError):
            raise error from None


async def raise_for_status(response: ClientResponse, content: bytes | None = None) -> None:
    """Raise `ClientResponseError` for a 4xx or 5xx, with the body as its `response_content`.

    The error can be pickled: request info, headers and history are plain copies. `content` is the body when the caller
    has read it already.
    """
    if response.ok:
        return
    if content is None:
        content = await response.read()
    error = aiohttp.ClientResponseError(
        request_info=aiohttp.RequestInfo(
            url=response.request_info.url,
            method=response.request_info.method,
            headers=cast(Any, _plain_headers(response.request_info.headers)),
            real_url=response.request_info.real_url,
        ),
        history=(),
        status=response.status,
        message=response.reason or "",
        headers=_plain_headers(response.headers),
    )
    error.response_content = content  # type: ignore[attr-defined]
    raise error


def _plain_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Copy headers into a multidict without credentials."""
    kept = [(k, v) for k, v in headers.items() if k.lower() not in ("authorization", "x-api-key", "cookie")]
    return CIMultiDict(kept)

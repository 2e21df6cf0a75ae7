"""The one outgoing HTTP session of a process: many connections, no cookie jar, no total time limit."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import socket
from collections.abc import Mapping
from typing import Any, ClassVar

import aiohttp
from aiohttp.abc import AbstractCookieJar
from pydantic import BaseModel, Field

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
IDLE_CONNECTION_S = 4.0
"""Shorter than servers keep an idle connection, so that no request is written into a closing one, whose loss cannot be
told from a crash: uvicorn (and vLLM with it), Node.js and llama.cpp close after 5 s.
"""

_PREFIX = "global_aiohttp_"


class GlobalAIOHTTPAsyncClientConfig(BaseModel):
    """Settings of the session, read from the top level of the configuration; a limit of 0 means none."""

    global_aiohttp_connector_limit: int = Field(default=102_400, ge=0)
    global_aiohttp_connector_limit_per_host: int = Field(default=1024, ge=0)
    global_aiohttp_client_request_debug: bool = False
    num_workers: int = Field(default=1, ge=1)

    @classmethod
    def from_global_config(
        cls, config: Mapping[str, Any], *, num_workers: int | None = None
    ) -> GlobalAIOHTTPAsyncClientConfig:
        """Return the settings in `config`; limits are shared between `num_workers` processes."""
        given = {name: config[name] for name in cls.model_fields if name in config and name.startswith(_PREFIX)}
        for name in ("limit", "limit_per_host"):
            intended = config.get(f"{_PREFIX}intended_concurrency{name.removeprefix('limit')}")
            if intended is not None:
                given.setdefault(f"{_PREFIX}connector_{name}", intended)
        return cls(**given, num_workers=num_workers or 1)

    def share(self, limit: int) -> int:
        """Return this process's part of a limit."""
        return limit if limit == 0 else max(1, limit // self.num_workers)


class _Shared:
    """The settings, and one session per running loop: a server process has one loop, a test may have several."""

    config = GlobalAIOHTTPAsyncClientConfig()
    sessions: ClassVar[dict[asyncio.AbstractEventLoop, aiohttp.ClientSession]] = {}


def set_global_aiohttp_client(cfg: GlobalAIOHTTPAsyncClientConfig) -> aiohttp.ClientSession:
    """Open the session with these settings; needs a running loop. An open one of this loop is kept as it is."""
    _Shared.config = cfg
    return get_global_aiohttp_client()


def configure_global_aiohttp_client(cfg: GlobalAIOHTTPAsyncClientConfig) -> None:
    """Settle the settings of the session that the first request will open."""
    _Shared.config = cfg


def is_global_aiohttp_client_setup() -> bool:
    """Return whether the session of the running loop is open; outside of a loop, whether any is."""
    try:
        session = _Shared.sessions.get(asyncio.get_running_loop())
    except RuntimeError:
        return any(not session.closed for session in list(_Shared.sessions.values()))
    return session is not None and not session.closed


def is_request_debug() -> bool:
    """Return whether `global_aiohttp_client_request_debug` is on."""
    return _Shared.config.global_aiohttp_client_request_debug


def get_global_aiohttp_client() -> aiohttp.ClientSession:
    """Return the session of this process and loop, opened on first use."""
    loop = asyncio.get_running_loop()
    session = _Shared.sessions.get(loop)
    if session is None or session.closed:
        for ended in [other for other in list(_Shared.sessions) if other.is_closed()]:
            _discard(_Shared.sessions.pop(ended))
        session = _Shared.sessions[loop] = _open(_Shared.config)
    return session


def _open(config: GlobalAIOHTTPAsyncClientConfig) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=config.share(config.global_aiohttp_connector_limit),
        limit_per_host=config.share(config.global_aiohttp_connector_limit_per_host),
        keepalive_timeout=IDLE_CONNECTION_S,
        socket_factory=_keepalive_socket,
    )
    jar: AbstractCookieJar = aiohttp.DummyCookieJar()
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=jar,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
    )


def _keepalive_socket(addr_info: tuple[Any, ...]) -> socket.socket:
    """Probe idle peers, since a rollout may take hours and no time limit would notice a dead one."""
    family, kind, protocol, *_ = addr_info
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return sock


async def close_global_aiohttp_client() -> None:
    """Close the session of this loop."""
    session = _Shared.sessions.pop(asyncio.get_running_loop(), None)
    if session is not None and not session.closed:
        await session.close()


def global_aiohttp_client_exit() -> None:
    """Close what is open when the process ends."""
    while _Shared.sessions:
        _discard(_Shared.sessions.popitem()[1])


def _discard(session: aiohttp.ClientSession) -> None:
    """Close a session whose loop cannot do it any more; only its connector knows how."""
    connector = session.connector
    session.detach()
    if connector is not None:
        with contextlib.suppress(RuntimeError):
            connector._close()


atexit.register(global_aiohttp_client_exit)

"""Which dialects an endpoint serves: asked once, with an empty request to each route, which costs no token."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Literal

import aiohttp

from nemo_gym.dialects import Dialect
from nemo_gym.servers.http_session import get_global_aiohttp_client
from nemo_gym.servers.upstream_client import shown_url, unanswered

logger = logging.getLogger(__name__)

WireSetting = Literal["auto", "responses", "chat", "messages"]
WIRE_PATHS: dict[Dialect, str] = {"responses": "/responses", "chat": "/chat/completions", "messages": "/messages"}

NO_SUCH_ROUTE = frozenset({404, 405, 410, 501})
_PREFERRED: dict[Dialect, tuple[Dialect, ...]] = {
    "responses": ("responses", "chat", "messages"),
    "chat": ("chat", "responses", "messages"),
    "messages": ("messages", "responses", "chat"),
}


def wire_for(dialect: Dialect, served: frozenset[Dialect]) -> Dialect:
    """Return the endpoint's dialect to answer a client's with: the same if it is served, else what carries most."""
    return next((wire for wire in _PREFERRED[dialect] if wire in served), dialect)


async def probe(base_url: str, headers: Mapping[str, str], *, timeout_s: float = 10.0) -> frozenset[Dialect]:
    """Return the dialects whose routes exist under `base_url`, and log what was found.

    A route that refuses an empty request exists. Raises UpstreamError when the endpoint cannot be reached.
    """
    statuses = dict(
        zip(
            WIRE_PATHS,
            await asyncio.gather(*(_status(base_url + path, headers, timeout_s) for path in WIRE_PATHS.values())),
            strict=True,
        )
    )
    found = frozenset(wire for wire, status in statuses.items() if status not in NO_SUCH_ROUTE)
    shown = ", ".join(f"{WIRE_PATHS[wire]} {status}" for wire, status in statuses.items())
    if found:
        logger.info("`%s` serves %s (probed: %s)", shown_url(base_url), ", ".join(sorted(found)), shown)
    else:
        logger.warning("`%s` serves no known route (probed: %s); is the base URL right?", shown_url(base_url), shown)
    return found


async def _status(url: str, headers: Mapping[str, str], timeout_s: float) -> int:
    try:
        async with get_global_aiohttp_client().post(
            url, data=b"{}", headers={"Content-Type": "application/json", **headers}, timeout=_limit(timeout_s)
        ) as response:
            return response.status
    except (TimeoutError, aiohttp.ClientError, ValueError) as error:
        raise unanswered(error, url) from error


def _limit(timeout_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=timeout_s)

"""Which dialects an endpoint serves: asked with an empty request to each route, which costs no token.

A route is served, missing, or not known: what fails for reasons of the moment (a rate limit, a server error, silence,
a page instead of JSON) tells nothing about it. Missing routes are believed only once some route is known to be served,
since an endpoint that is not up yet often answers 404 everywhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Literal

import aiohttp

from nemo_gym.dialects import Dialect
from nemo_gym.records import codec
from nemo_gym.servers.http_session import get_global_aiohttp_client
from nemo_gym.servers.upstream_client import UpstreamClient, shown_url

logger = logging.getLogger(__name__)

WireSetting = Literal["auto", "responses", "chat", "messages"]
WIRE_PATHS: dict[Dialect, str] = {"responses": "/responses", "chat": "/chat/completions", "messages": "/messages"}
PROBE_TIMEOUT_S = 10.0

NO_SUCH_ROUTE = frozenset({404, 405, 410, 501})
_READ_BYTES = 4096
_OF_THE_MOMENT = frozenset({408, 425, 429})
_PREFERRED: dict[Dialect, tuple[Dialect, ...]] = {
    "responses": ("responses", "chat", "messages"),
    "chat": ("chat", "responses", "messages"),
    "messages": ("messages", "responses", "chat"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What a route said to an empty request. `served` is None when that does not tell; `shown` is for messages."""

    served: bool | None
    shown: str


class Routes:
    """What is known of one endpoint. One per process, used on one event loop."""

    def __init__(self, client: UpstreamClient) -> None:
        self._client = client
        self._known: dict[Dialect, bool] = {}
        self._last: Mapping[Dialect, Probed] = {}
        self._probing: asyncio.Task[Mapping[Dialect, Probed]] | None = None
        self._said: object = None

    def first(self, dialect: Dialect) -> Dialect:
        """Return the wire to answer a client's dialect with: its own unless that is missing, else what carries most."""
        return next(wire for wire in _PREFERRED[dialect] if self._known.get(wire) is not False)

    async def instead_of(self, refused: Dialect, dialect: Dialect) -> list[Dialect]:
        """Return the wires to try in order after a call on `refused` was told that there is no such route.

        Empty when the route is there after all, so that the refusal was about the call, and when no other can be.
        Calls that come while the routes are looked for wait for the same finding; one that is cancelled stops nobody.
        """
        if refused not in self._known:
            self._last = last = await self._probe()
            self._learn(last)
            found = {wire: probed.served for wire, probed in last.items()} | self._known
        else:
            found = {wire: self._known.get(wire) for wire in WIRE_PATHS}
        if found[refused]:
            return []
        others = [wire for wire in _PREFERRED[dialect] if wire != refused]
        served = next((wire for wire in others if found[wire]), None)
        return [wire for wire in others if found[wire] is None] if served is None else [served]

    def confirm(self, wire: Dialect) -> None:
        """Note that a call was answered on a wire, which is more than any probe can tell."""
        if not self._known.get(wire):
            last = {**self._last, wire: Probed(served=True, shown="answered a call")}
            self._known = {**_decided(last), **self._known, wire: True}
            self._say(last)

    def _learn(self, probed: Mapping[Dialect, Probed]) -> None:
        decided = _decided(probed)
        if self._known or any(decided.values()):
            self._known = {**decided, **self._known}
        self._say(probed)

    def _say(self, probed: Mapping[Dialect, Probed]) -> None:
        """Log what was found, each finding once."""
        url = shown_url(self._client.base_url)
        shown = ", ".join(f"{WIRE_PATHS[wire]} {found.shown}" for wire, found in probed.items())
        served = sorted(wire for wire, is_served in self._known.items() if is_served)
        if served:
            level, message = logging.INFO, f"`{url}` serves {', '.join(served)} (probed: {shown})"
        elif all(found.served is False for found in probed.values()):
            level = logging.WARNING
            message = f"`{url}` serves no known route (probed: {shown}); is the base URL right?"
        else:
            level = logging.WARNING
            message = (
                f"which routes `{url}` serves could not be found out (probed: {shown}); the next call that needs to "
                "know looks again"
            )
        finding = served or message.partition(" (probed")[0]
        if finding != self._said:
            self._said = finding
            logger.log(level, "%s", message)

    async def _probe(self) -> Mapping[Dialect, Probed]:
        """Return what the routes said, asked once for all who wait."""
        if self._probing is None or self._probing.done():
            # A task of its own, outside of the call's context: the call that needs it first may be cancelled.
            self._probing = asyncio.get_running_loop().create_task(probe(self._client), context=Context())
        return await asyncio.shield(self._probing)


def _decided(probed: Mapping[Dialect, Probed]) -> dict[Dialect, bool]:
    return {wire: found.served for wire, found in probed.items() if found.served is not None}


async def probe(client: UpstreamClient, *, timeout_s: float = PROBE_TIMEOUT_S) -> dict[Dialect, Probed]:
    """Return what each route of an endpoint says to an empty request. A route that refuses it exists."""
    asked = (_asked(client.base_url + path, client.headers, timeout_s) for path in WIRE_PATHS.values())
    return dict(zip(WIRE_PATHS, await asyncio.gather(*asked), strict=True))


async def _asked(url: str, headers: Mapping[str, str], timeout_s: float) -> Probed:
    limit = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with get_global_aiohttp_client().post(
            url, data=b"{}", headers={"Content-Type": "application/json", **headers}, timeout=limit
        ) as response:
            status = response.status
            if status == 404 and _is_about_the_model(await response.content.read(_READ_BYTES), response.url.path):
                return Probed(served=True, shown="404 for want of a model")
            if status in NO_SUCH_ROUTE:
                return Probed(served=False, shown=str(status))
            if status >= 500 or status in _OF_THE_MOMENT:
                return Probed(served=None, shown=str(status))
            # A page under 200 is what a proxy says when it has nobody to ask.
            if status < 400 and not (await response.content.read(_READ_BYTES)).lstrip().startswith((b"{", b"[")):
                return Probed(served=None, shown=f"{status} without JSON")
            return Probed(served=True, shown=str(status))
    except (TimeoutError, aiohttp.ClientError, ValueError) as error:  # ValueError: some malformed URLs
        return Probed(served=None, shown=f"no answer ({type(error).__name__})")


def _is_about_the_model(body: bytes, path: str) -> bool:
    """Return whether a 404 is a route's own, which looks for the model before anything else and was told none.

    What says that there is no such route names no model, unless as a part of the path that it repeats.
    """
    try:
        error = codec.decode_object(body).get("error")
    except ValueError:
        return False
    code, message = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, error)
    return code == "model_not_found" or (isinstance(message, str) and "model" in message.replace(path, "").lower())

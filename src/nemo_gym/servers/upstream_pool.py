"""Several endpoints of one model: a rollout's calls meet the same one, as long as it is healthy.

Rendezvous hashing needs no table and no cookies, and when an endpoint goes away only its own rollouts move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
from starlette.requests import Request

from nemo_gym.capture.correlation import current_rollout_id
from nemo_gym.dialects.names import Dialect
from nemo_gym.records import codec, keys
from nemo_gym.servers.upstream import NOT_ASKED, UpstreamError
from nemo_gym.servers.upstream_client import UpstreamClient, UpstreamReply, shown_url


class UpstreamPool:
    """The endpoints of one model, which are asked in the order of a call's affinity."""

    def __init__(self, clients: Sequence[UpstreamClient]) -> None:
        self.clients = list(clients)

    @property
    def base_url(self) -> str:
        """The first endpoint's URL, for messages."""
        return shown_url(self.clients[0].base_url)

    async def post(
        self,
        path: str,
        body: bytes,
        *,
        dialect: Dialect,
        affinity: str = "",
        headers: Mapping[str, str] | None = None,
        attempts: list[dict[str, Any]],
    ) -> UpstreamReply:
        """POST to the first healthy endpoint; one that cannot be reached hands the call to the next.

        Raises UpstreamError as `UpstreamClient.post` does; of several unreachable endpoints, the last one's.
        """
        waiting = self.ordered(affinity)
        while True:
            client = waiting.pop(0)
            try:
                return await client.post(path, body, dialect=dialect, headers=headers, attempts=attempts)
            except UpstreamError as error:
                if not waiting or not _was_not_sent(error):
                    raise

    def ordered(self, affinity: str) -> list[UpstreamClient]:
        """Return the endpoints, healthy ones first, each group by rendezvous hashing of `affinity`."""
        if len(self.clients) == 1:
            return list(self.clients)

        def rank(client: UpstreamClient) -> tuple[bool, bytes]:
            weight = hashlib.sha256(f"{affinity}\n{client.settings.base_url}".encode()).digest()
            return client.breaker.closed_in_s == 0, weight

        return sorted(self.clients, key=rank, reverse=True)


def _was_not_sent(error: UpstreamError) -> bool:
    """Return whether the endpoint never got the call, so that another may be asked without asking twice."""
    unreachable = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
    return error.code == NOT_ASKED or isinstance(error.__cause__, unreachable)


def affinity_of(request: Request, body: Mapping[str, Any]) -> str:
    """Return what a call's endpoint is chosen by: its rollout, else its session, else how its conversation begins."""
    rollout = current_rollout_id() or request.headers.get(keys.SESSION_ID_HEADER)
    if rollout:
        return rollout
    conversation = body.get("messages") or body.get("input")
    first = conversation[:2] if isinstance(conversation, list) else conversation
    return hashlib.sha256(codec.encode([body.get("system"), body.get("instructions"), first])).hexdigest()

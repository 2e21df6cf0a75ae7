"""What commands ask the head server."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_gym.config.names import DEFAULT_HEAD_PORT, HEAD_SERVER
from nemo_gym.engine.local.probe import Answer, ask
from nemo_gym.errors import HeadServerUnreachableError, RemoteError
from nemo_gym.records.keys import SERVER_TOKEN_ENV, SERVER_TOKEN_HEADER

STARTED_IN = "started_in"
"""In a server's entry: the working directory of the command that started it, which tells whose it is."""

_TIMEOUT_S = 5.0
_EVERY_INTERFACE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class HeadAddress:
    """Where the head server is."""

    host: str
    port: int

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> HeadAddress:
        """Return the address in a configuration, with the defaults for what it does not say."""
        head = data.get(HEAD_SERVER) or {}
        return cls(str(head.get("host") or "127.0.0.1"), int(head.get("port") or DEFAULT_HEAD_PORT))

    @property
    def url(self) -> str:
        """The URL at which this machine reaches it."""
        host = _EVERY_INTERFACE.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    async def ask(self, path: str, *, method: str = "GET") -> Answer:
        """Return the head server's answer.

        Raises `HeadServerUnreachableError` when none comes and `RemoteError` for an answer that is no success.
        """
        token = os.environ.get(SERVER_TOKEN_ENV)
        headers = ((SERVER_TOKEN_HEADER, token),) if token else ()
        host = _EVERY_INTERFACE.get(self.host, self.host)
        answer = await ask(host, self.port, path, method=method, timeout_s=_TIMEOUT_S, headers=headers)
        if answer is None:
            raise HeadServerUnreachableError(
                f"no head server answers at `{self.url}`. `gym env start` starts one; if it runs elsewhere, give "
                f"`+{HEAD_SERVER}.port=N` or `+{HEAD_SERVER}.host=HOST`.",
                server=self.url,
            )
        if answer.status == 401:
            raise RemoteError(
                f"`{self.url}` wants the token that its servers were started with: give `+server_token=...` here too.",
                server=self.url,
                status=answer.status,
            )
        if answer.status >= 400:
            raise RemoteError(
                f"`{self.url}{path}` answered {answer.status}; is another program using that port?",
                server=self.url,
                status=answer.status,
            )
        return answer

    async def instances(self) -> list[dict[str, Any]]:
        """Return the entries of the running servers."""
        answer = await self.ask("/server_instances")
        try:
            entries = json.loads(answer.body)
        except ValueError:
            entries = None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise RemoteError(
                f"`{self.url}/server_instances` did not answer with a list of servers; is another program using that "
                "port?",
                server=self.url,
                status=answer.status,
            )
        return entries


def whose(address: HeadAddress, entries: Sequence[Mapping[str, Any]]) -> str:
    """Return where the head server of these servers is and, as far as they say, from which folder they were started."""
    folders = dict.fromkeys(str(entry[STARTED_IN]) for entry in entries if entry.get(STARTED_IN))
    started = f", started from {', '.join(f'`{folder}`' for folder in folders)}" if folders else ""
    return f"Head server: {address.url}{started}"

"""The head server: where it is, and the configuration of the running servers that it hands out."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_gym.errors import HeadServerUnreachableError, RemoteError
from nemo_gym.records.codec import JsonObject, decode
from nemo_gym.servers.access import server_token_headers

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 11000
TIMEOUT_S = 30.0
_PATH = "/global_config_dict_yaml"


@dataclass(frozen=True, slots=True)
class HeadAddress:
    """Where the head server listens."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT

    @property
    def url(self) -> str:
        """`http://host:port`."""
        return f"http://{self.host}:{self.port}"


def head_address(config: Mapping[str, Any] | None) -> HeadAddress:
    """Return the address under `head_server` in a configuration, or the default one."""
    block = (config or {}).get("head_server")
    if not isinstance(block, Mapping):
        return HeadAddress()
    host = str(block.get("host") or DEFAULT_HOST)
    reachable = DEFAULT_HOST if host in {"0.0.0.0", "::"} else host
    return HeadAddress(reachable, int(block.get("port") or DEFAULT_PORT))


def fetch_config(head: HeadAddress, *, timeout_s: float = TIMEOUT_S) -> JsonObject:
    """Return the merged configuration of the running servers; blocks for at most about `timeout_s`.

    Raises HeadServerUnreachableError (a ValueError) when nothing answers, RemoteError when the answer is unusable.
    """
    connection = http.client.HTTPConnection(head.host, head.port, timeout=timeout_s)
    try:
        connection.request("GET", _PATH, headers=server_token_headers())
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise HeadServerUnreachableError(
            f"no head server answers at {head.url} ({error}). Start the servers with `gym env start`, "
            "or name a running one with `+head_server.port=<port>`.",
            server=head.url,
        ) from error
    finally:
        connection.close()
    if response.status != 200:
        raise RemoteError(
            f"`GET {head.url}{_PATH}` answered {response.status}: is something else listening on that port?",
            server=head.url,
            status=response.status,
        )
    return parse_config(body, head)


async def fetch_config_async(head: HeadAddress, *, timeout_s: float = TIMEOUT_S) -> JsonObject:
    """Return the same without blocking the loop, so that the head server may live in this very loop.

    A silent head server keeps neither a cancelled caller nor the end of the process waiting.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[JsonObject] = loop.create_future()

    def settle(config: JsonObject, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(config)
        else:
            answer.set_exception(error)

    def fetch() -> None:
        config: JsonObject = {}
        failed: BaseException | None = None
        try:
            config = fetch_config(head, timeout_s=timeout_s)
        except BaseException as error:  # noqa: BLE001 - it is raised again, where the answer is awaited
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, config, failed)

    # No thread of the loop's own pool: at the end of a process those are waited for.
    threading.Thread(target=fetch, name="gym-head", daemon=True).start()
    return await answer


def parse_config(body: bytes, head: HeadAddress) -> JsonObject:
    """Return the mapping in the head's answer: a JSON string that holds YAML."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = decode(body)
        value = yaml.load(text, Loader=loader) if isinstance(text, str) else text  # noqa: S506 - a safe loader
    except (ValueError, yaml.YAMLError) as error:
        raise RemoteError(f"`{head.url}{_PATH}` answered no configuration: {error}", server=head.url) from error
    if isinstance(text, str) and "${" in text:
        value = _interpolated(text, head)
    if not isinstance(value, dict):
        raise RemoteError(f"`{head.url}{_PATH}` answered a configuration that is no mapping", server=head.url)
    return value


def _interpolated(text: str, head: HeadAddress) -> Any:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    except OmegaConfBaseException as error:
        raise RemoteError(f"the configuration of {head.url} does not resolve: {error}", server=head.url) from error

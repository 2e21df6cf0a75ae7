"""The client that servers of one run call each other with, by instance name."""

from __future__ import annotations

import json as json_module
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Annotated, Any, Literal

from aiohttp import ClientResponse
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError
from pydantic import BaseModel, BeforeValidator, ConfigDict, PrivateAttr

from nemo_gym.capture import observability_enabled_from_config
from nemo_gym.capture.correlation import (
    PREFIX,
    current_invocation_id,
    current_rollout_id,
    maybe_rollout_id_from_run_body,
    rollout_path_prefix,
)
from nemo_gym.config import get_first_server_config_dict, get_global_config_dict
from nemo_gym.dialects.names import MODEL_CALL_PATHS
from nemo_gym.errors import ConfigError, HeadServerUnreachableError, nearest_name
from nemo_gym.records import keys
from nemo_gym.servers.access import server_token_headers
from nemo_gym.servers.http import encode_body, request
from nemo_gym.servers.http_session import GlobalAIOHTTPAsyncClientConfig, configure_global_aiohttp_client
from nemo_gym.servers.server_config import DEFAULT_HOST, BaseServerConfig

HEAD_SERVER = "head_server"
DEFAULT_HEAD_PORT = 11000
HEAD_TIMEOUT_S = 30.0
MODEL_SERVER_NAME_ENV = "NEMO_GYM_MODEL_SERVER_NAME"
MODEL_SERVER_BASE_URL_ENV = "NEMO_GYM_MODEL_SERVER_BASE_URL"

ServerStatus = Literal["success", "connection_error", "timeout", "unknown_error"]


def _config_node(value: object) -> object:
    return value if isinstance(value, DictConfig) or not isinstance(value, Mapping) else OmegaConf.create(dict(value))


class UnknownServerError(ConfigError, ConfigKeyError):
    """A server is called by a name that the configuration does not have; also a KeyError."""

    def __str__(self) -> str:
        return str(self.args[0])


class ServerClient(BaseModel):
    """Calls the servers of a run by the names that the configuration gives them."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    head_server_config: BaseServerConfig
    global_config_dict: Annotated[DictConfig, BeforeValidator(_config_node)]

    _base_urls: dict[str, str] = PrivateAttr(default_factory=dict)
    _kinds: dict[str, str | None] = PrivateAttr(default_factory=dict)
    _correlates: bool | None = PrivateAttr(default=None)

    @classmethod
    def load_head_server_config(cls) -> BaseServerConfig:
        """Return where the head server listens, from the configuration of this process."""
        return head_server_config_of(get_global_config_dict())

    @classmethod
    def load_from_global_config(cls, head_server_config: BaseServerConfig | None = None) -> ServerClient:
        """Return a client for the running servers.

        A server process uses the configuration it was started with. Any other process asks the head server; when
        nothing answers there, raises `HeadServerUnreachableError` (a ValueError) naming the URL.
        """
        if os.environ.get(keys.CONFIG_DICT_ENV):
            config = get_global_config_dict()
            head = head_server_config or head_server_config_of(config)
            return cls(head_server_config=head, global_config_dict=config)
        head = head_server_config or cls.load_head_server_config()
        merged = OmegaConf.create(fetch_global_config_yaml(head))
        if not isinstance(merged, DictConfig):
            raise HeadServerUnreachableError(f"`{base_url_of(head)}` is not a head server", server=base_url_of(head))
        return cls(head_server_config=head, global_config_dict=merged)

    async def get(self, server_name: str, url_path: str, **kwargs: Any) -> ClientResponse:
        """GET from a named server; see `request`."""
        return await self.request(server_name, url_path, "GET", **kwargs)

    async def post(self, server_name: str, url_path: str, **kwargs: Any) -> ClientResponse:
        """POST to a named server; see `request`."""
        return await self.request(server_name, url_path, "POST", **kwargs)

    async def request(self, server_name: str, url_path: str, method: str, **kwargs: Any) -> ClientResponse:
        """Send a request to a named server and return aiohttp's response; HTTP errors do not raise.

        `kwargs` are aiohttp's; `json` may be a model, sent without its unset fields. With `observability_enabled`,
        model calls and calls to resources servers carry the current rollout id in their path. An unknown name raises
        KeyError.
        """
        base_url = self._resolve_base_url(server_name)
        body = kwargs.pop("json", None)
        if self._correlation_is_on():
            url_path = self._correlated(server_name, url_path, body)
        if body is not None:
            kwargs["data"] = encode_body(body)
        headers = server_token_headers()
        if body is not None:
            headers["Content-Type"] = "application/json"
        if headers:
            kwargs["headers"] = {**headers, **(kwargs.get("headers") or {})}
        return await request(method, base_url + url_path, _internal=True, _server_name=server_name, **kwargs)

    def poll_for_status(self, server_name: str, *, timeout_seconds: float = 5) -> ServerStatus:
        """Ask a server (or `head_server`) whether it answers HTTP at all; blocks up to `timeout_seconds`."""
        url = self._resolve_base_url(server_name)
        try:
            with urllib.request.urlopen(f"{url}/", timeout=timeout_seconds):  # noqa: S310 - our own servers
                return "success"
        except urllib.error.HTTPError:
            return "success"
        except TimeoutError:
            return "timeout"
        except urllib.error.URLError as error:
            return "timeout" if isinstance(error.reason, TimeoutError) else "connection_error"
        except ConnectionError:
            return "connection_error"
        except (OSError, HTTPException, ValueError):
            return "unknown_error"

    def _resolve_base_url(self, server_name: str) -> str:
        known = self._base_urls.get(server_name)
        if known is None:
            if server_name == os.environ.get(MODEL_SERVER_NAME_ENV) and os.environ.get(MODEL_SERVER_BASE_URL_ENV):
                known = os.environ[MODEL_SERVER_BASE_URL_ENV].rstrip("/")
            elif server_name == HEAD_SERVER:
                known = self._build_server_base_url(self.head_server_config)
            elif server_name not in self.global_config_dict:
                close = nearest_name(server_name, map(str, self.global_config_dict))
                raise UnknownServerError(f"the configuration has no server `{server_name}`.{close}")
            else:
                known = self._build_server_base_url(get_first_server_config_dict(self.global_config_dict, server_name))
            self._base_urls[server_name] = known
        return known

    def _build_server_base_url(self, server_config_dict: Any) -> str:
        return base_url_of(server_config_dict)

    def _correlation_is_on(self) -> bool:
        if self._correlates is None:
            self._correlates = observability_enabled_from_config(self.global_config_dict)
        return self._correlates

    def _correlated(self, server_name: str, url_path: str, body: object) -> str:
        """Return the path with the rollout id in front where the target records calls or keeps state by it."""
        if url_path.startswith(PREFIX) or PREFIX in self._resolve_base_url(server_name):
            return url_path
        kind = self._kind_of(server_name)
        path = url_path.partition("?")[0]
        rollout_id = current_rollout_id()
        if kind == "responses_api_models" and path in MODEL_CALL_PATHS:
            return rollout_path_prefix(rollout_id, invocation_id=current_invocation_id()) + url_path
        if kind == "resources_servers":
            if rollout_id is None and path == "/verify":
                rollout_id = maybe_rollout_id_from_run_body(body)
            return rollout_path_prefix(rollout_id) + url_path
        return url_path

    def _kind_of(self, server_name: str) -> str | None:
        if server_name not in self._kinds:
            block = self.global_config_dict.get(server_name)
            found = [kind for kind in keys.SERVER_KINDS if isinstance(block, Mapping) and kind in block]
            self._kinds[server_name] = found[0] if found else None
        return self._kinds[server_name]


def base_url_of(block: Any) -> str:
    """Return `http://host:port` of a server's block or configuration object."""
    if isinstance(block, Mapping):
        host, port = block["host"], block["port"]
    else:
        host, port = block.host, block.port
    return f"http://[{host}]:{port}" if ":" in str(host) else f"http://{host}:{port}"


def get_server_url(server_name: str) -> str:
    """Return `http://host:port` of a named server of this process's configuration."""
    return base_url_of(get_first_server_config_dict(get_global_config_dict(), server_name))


def head_server_config_of(config: Mapping[str, Any]) -> BaseServerConfig:
    """Return where the head server of a configuration listens; by default the loopback interface, port 11000."""
    block = config.get(HEAD_SERVER) or {}
    return BaseServerConfig(host=block.get("host") or DEFAULT_HOST, port=block.get("port") or DEFAULT_HEAD_PORT)


def fetch_global_config_yaml(head: BaseServerConfig) -> str:
    """Return the merged configuration of the running servers as YAML; blocks."""
    url = f"{base_url_of(head)}/global_config_dict_yaml"
    try:
        with urllib.request.urlopen(  # noqa: S310 - our own server
            urllib.request.Request(url, headers=server_token_headers()),  # noqa: S310
            timeout=HEAD_TIMEOUT_S,
        ) as answer:
            text = json_module.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise HeadServerUnreachableError(
            f"the head server at `{url}` answered {error.code}", server=url, status=error.code
        ) from error
    except (OSError, HTTPException, ValueError) as error:
        raise HeadServerUnreachableError(
            f"no head server answers at `{url}` ({error}). Start one with `gym env start`, or name another with "
            "`+head_server.host=` and `+head_server.port=`.",
            server=url,
        ) from error
    if not isinstance(text, str):
        raise HeadServerUnreachableError(f"`{url}` is not a head server: it answered no YAML text", server=url)
    return text


def setup_server_client(head_server_config: BaseServerConfig | None = None) -> ServerClient:
    """Return a client for the running servers, and size the shared session by their configuration."""
    client = ServerClient.load_from_global_config(head_server_config)
    configure_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig.from_global_config(client.global_config_dict))
    return client

"""Door: what servers are run and called with."""

from __future__ import annotations

from aiohttp import ClientResponse

from nemo_gym.capture.correlation import apply_rollout_prefix, rollout_path_prefix
from nemo_gym.config import get_first_server_config_dict, get_global_config_dict
from nemo_gym.servers.base import BaseServer, SimpleServer
from nemo_gym.servers.head import HeadState, build_head_app
from nemo_gym.servers.http import (
    MAX_NUM_TRIES,
    ServerUnreachableError,
    get_response_json,
    raise_for_status,
    request,
)
from nemo_gym.servers.http_session import (
    GlobalAIOHTTPAsyncClientConfig,
    get_global_aiohttp_client,
    global_aiohttp_client_exit,
    is_global_aiohttp_client_setup,
    set_global_aiohttp_client,
)
from nemo_gym.servers.process import is_nemo_gym_fastapi_entrypoint, is_nemo_gym_fastapi_worker
from nemo_gym.servers.server_client import ServerClient, get_server_url, setup_server_client
from nemo_gym.servers.server_config import BaseRunServerInstanceConfig, BaseServerConfig
from nemo_gym.servers.sessions import SESSION_ID_KEY

__all__ = [
    "MAX_NUM_TRIES",
    "SESSION_ID_KEY",
    "BaseRunServerInstanceConfig",
    "BaseServer",
    "BaseServerConfig",
    "ClientResponse",
    "GlobalAIOHTTPAsyncClientConfig",
    "HeadState",
    "ServerClient",
    "ServerUnreachableError",
    "SimpleServer",
    "apply_rollout_prefix",
    "build_head_app",
    "get_first_server_config_dict",
    "get_global_aiohttp_client",
    "get_global_config_dict",
    "get_response_json",
    "get_server_url",
    "global_aiohttp_client_exit",
    "is_global_aiohttp_client_setup",
    "is_nemo_gym_fastapi_entrypoint",
    "is_nemo_gym_fastapi_worker",
    "raise_for_status",
    "request",
    "rollout_path_prefix",
    "set_global_aiohttp_client",
    "setup_server_client",
]

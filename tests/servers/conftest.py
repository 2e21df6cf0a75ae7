from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import uvicorn
from omegaconf import OmegaConf

PUBLIC_API = Path(__file__).parent / "public_api"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "NEMO_GYM_CONFIG_DICT",
        "NEMO_GYM_CONFIG_PATH",
        "NEMO_GYM_MODEL_SERVER_NAME",
        "NEMO_GYM_MODEL_SERVER_BASE_URL",
        "NEMO_GYM_SERVER_TOKEN",
        "IS_NEMO_GYM_FASTAPI_WORKER",
        "IS_NEMO_GYM_FASTAPI_ENTRYPOINT",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def close_session() -> Any:
    """Close the outgoing session of this test's loop."""
    yield
    from nemo_gym.servers.http_session import close_global_aiohttp_client

    await close_global_aiohttp_client()


class Served:
    """An app behind a real uvicorn in a thread, on a free port."""

    def __init__(self, app: Any) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            app, loop="uvloop", http="httptools", log_level="warning", timeout_graceful_shutdown=1, lifespan="auto"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started:
            assert self._thread.is_alive(), "the server ended before it started"
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.005)

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)


@pytest.fixture
def serve() -> Iterator[Callable[[Any], Served]]:
    running: list[Served] = []

    def start(app: Any) -> Served:
        running.append(Served(app))
        return running[-1]

    yield start
    for served in running:
        served.stop()


@pytest.fixture
def closed_port() -> int:
    """A port where nothing listens."""
    with contextlib.closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def public_server() -> Iterator[Callable[[str], ModuleType]]:
    """Load the `app.py` of a server that is written against the public names only."""
    loaded: list[str] = []

    def load(name: str) -> ModuleType:
        key = f"public_api_{name}"
        spec = importlib.util.spec_from_file_location(key, PUBLIC_API / "resources_servers" / name / "app.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        loaded.append(key)
        spec.loader.exec_module(module)
        return module

    yield load
    for key in loaded:
        sys.modules.pop(key, None)


@pytest.fixture
def make_client() -> Callable[..., Any]:
    """A `ServerClient` for servers at given ports: `make_client(model=("responses_api_models", 1234), **top_level)`."""
    from nemo_gym.servers.server_client import ServerClient
    from nemo_gym.servers.server_config import BaseServerConfig

    def make(settings: dict[str, Any] | None = None, **servers: tuple[str, int]) -> Any:
        config: dict[str, Any] = dict(settings or {})
        for name, (kind, port) in servers.items():
            config[name] = {kind: {"impl": {"entrypoint": "app.py", "host": "127.0.0.1", "port": port}}}
        return ServerClient(
            head_server_config=BaseServerConfig(host="127.0.0.1", port=1), global_config_dict=OmegaConf.create(config)
        )

    return make


async def wait_until(condition: Callable[[], bool], *, deadline_s: float = 60.0) -> None:
    """Wait for a condition, with a deadline."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        await asyncio.sleep(0.005)


@pytest.fixture
def until() -> Callable[..., Any]:
    return wait_until


RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "created_at": 1.0,
    "model": "m",
    "object": "response",
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "42", "annotations": []}],
        }
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


@pytest.fixture
def response_body() -> dict[str, Any]:
    """A finished Response that says 42."""
    return {**RESPONSE, "output": [dict(item) for item in RESPONSE["output"]]}

"""A backend that answers as told and remembers what it was asked, on a port of its own."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from aiohttp import web
from starlette.testclient import TestClient

from nemo_gym.server_utils import ServerClient

sys.path.insert(0, str(Path(__file__).parent))  # for what the test modules share


@dataclass
class Backend:
    """`answers` maps a path to a list of (status, body, headers), or of coroutines; the last one stays.

    `probes` does so for requests that are empty, which are answered 400 by default. `missed` counts the calls of
    routes that are not there.
    """

    url: str = ""
    answers: dict[str, list[tuple[int, Any, dict[str, str]]]] = field(default_factory=dict)
    probes: dict[str, list[tuple[int, Any, dict[str, str]]]] = field(default_factory=dict)
    probed: int = 0
    missed: Counter[str] = field(default_factory=Counter)
    asked: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)

    def answer(self, path: str, *answers: Any) -> None:
        self.answers[path] = [item if isinstance(item, tuple) else (200, item, {}) for item in answers]

    def answer_probes(self, path: str, *answers: Any) -> None:
        self.probes[path] = [item if isinstance(item, tuple) else (200, item, {}) for item in answers]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not body:  # somebody wants to know whether there is such a route
            self.probed += 1
            if request.path in self.probes:
                return await self._from(self.probes[request.path], request)
        if request.path not in self.answers:
            self.missed[request.path] += bool(body)
            return web.json_response({"detail": "Not Found"}, status=404)
        if not body:
            return web.json_response({"error": {"message": "a field is missing"}}, status=400)
        self.asked.append((request.path, body, dict(request.headers)))
        return await self._from(self.answers[request.path], request)

    async def _from(self, queue: list[tuple[int, Any, dict[str, str]]], request: web.Request) -> web.StreamResponse:
        status, answer, headers = queue.pop(0) if len(queue) > 1 else queue[0]
        if callable(answer):
            return await answer(request)
        if isinstance(answer, bytes):
            return web.Response(status=status, body=answer, headers=headers)
        return web.json_response(answer, status=status, headers=headers)


@pytest.fixture
def backend() -> Iterator[Backend]:
    served = Backend()
    loop = asyncio.new_event_loop()
    started = threading.Event()

    async def serve() -> web.AppRunner:
        app = web.Application()
        app.router.add_route("POST", "/{tail:.*}", served.handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    runners: list[web.AppRunner] = []

    def run() -> None:
        asyncio.set_event_loop(loop)
        runners.append(loop.run_until_complete(serve()))
        started.set()  # a test that ends at once finds it there
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    yield served
    asyncio.run_coroutine_threadsafe(runners[0].cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


@pytest.fixture
def served() -> Iterator[Callable[..., TestClient]]:
    """Make a server from its class and settings, and return a client of the app as it is served."""
    clients: list[TestClient] = []

    def make(server_class: type, **settings: Any) -> TestClient:
        config_class = server_class.model_fields["config"].annotation
        config = config_class(host="127.0.0.1", port=1, entrypoint="app.py", name="policy_model", **settings)
        server = server_class(config=config, server_client=MagicMock(spec=ServerClient))
        client = TestClient(server.served_app(), raise_server_exceptions=False)
        client.__enter__()
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.__exit__(None, None, None)


def sse(*events: dict[str, Any] | str) -> bytes:
    return b"".join(
        b"data: " + (event if isinstance(event, str) else json.dumps(event)).encode() + b"\n\n" for event in events
    )

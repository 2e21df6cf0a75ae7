"""The head server of a run: the merged configuration, what is running where, and a way to stop it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nemo_gym.records import codec
from nemo_gym.servers.access import TokenMiddleware, server_token
from nemo_gym.servers.answers import json_answer


@dataclass(slots=True, kw_only=True)
class HeadState:
    """What the head server answers from; the launcher changes it while servers start.

    `instances` are objects with process_name, server_type, name, dir_path, entrypoint, host, port, url, pid,
    config_path and start_time. `ready` says that all of them answer. `on_shutdown` is called after `POST /shutdown` was
    answered.
    """

    config_yaml: str
    instances: list[dict[str, Any]] = field(default_factory=list)
    ready: bool = False
    on_shutdown: Callable[[], None] | None = None


def build_head_app(state: HeadState) -> Starlette:
    """Return the head server's app.

    `GET /`, `/livez`: ok; `/readyz`, `/healthz`, `/health`: 503 until ready; `GET /global_config_dict_yaml`: the
    configuration as a JSON string holding YAML; `GET /server_instances`; `POST /shutdown`: 202, or 404 when nobody
    listens for it.
    """

    async def alive(_request: Request) -> Response:
        return json_answer(b'{"status":"ok"}')

    async def readiness(_request: Request) -> Response:
        return json_answer(b'{"status":"ok"}') if state.ready else json_answer(b'{"status":"starting"}', 503)

    async def config_yaml(_request: Request) -> Response:
        return json_answer(codec.encode(state.config_yaml))

    async def instances(_request: Request) -> Response:
        return json_answer(codec.encode(state.instances))

    async def shutdown(_request: Request) -> Response:
        if state.on_shutdown is None:
            return json_answer(b'{"detail":"this head server cannot be stopped from outside"}', 404)
        answer = json_answer(b'{"status":"stopping"}', 202)
        answer.background = BackgroundTask(state.on_shutdown)
        return answer

    app = Starlette(
        routes=[
            *(Route(path, alive) for path in ("/", "/livez")),
            *(Route(path, readiness) for path in ("/readyz", "/healthz", "/health")),
            Route("/global_config_dict_yaml", config_yaml),
            Route("/server_instances", instances),
            Route("/shutdown", shutdown, methods=["POST"]),
        ]
    )
    if token := server_token():
        app.add_middleware(TokenMiddleware, token=token)
    return app

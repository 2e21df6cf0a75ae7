"""A head server and agents of our own, over real HTTP, in a thread of their own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import yaml
from aiohttp import web

Behaviour = Callable[[dict[str, Any]], Awaitable[Any] | Any]


def verified(row: dict[str, Any], reward: float = 1.0) -> dict[str, Any]:
    """What an agent answers: the row with a response and a reward."""
    response = {"id": "resp_1", "output": [], "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}}
    return {**row, "response": response, "reward": reward}


class StubServers:
    """One head server and some agents; `behaviours[agent]` answers `/run` with an object, (status, text[, headers])
    or bytes.
    """

    def __init__(self, *, agents: tuple[str, ...] = ("agent_a",), config: dict[str, Any] | None = None) -> None:
        self.behaviours: dict[str, Behaviour] = dict.fromkeys(agents, verified)
        self.received: list[dict[str, Any]] = []
        self.received_by: list[str] = []
        self.metric_requests: list[tuple[str, list[dict[str, Any]]]] = []
        self.metrics_status = 200
        self.cancelled: list[str] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.agents = agents
        self.extra_config = config or {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runners: list[web.AppRunner] = []
        self.ports: dict[str, int] = {}
        self.head_port = 0

    def __enter__(self) -> StubServers:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def config(self) -> dict[str, Any]:
        blocks: dict[str, Any] = {
            "env_a": {"resources_servers": {"env_impl": {"host": "127.0.0.1", "port": 1, "domain": "other"}}}
        }
        for agent in self.agents:
            settings = {
                "host": "127.0.0.1",
                "port": self.ports[agent],
                "entrypoint": "app.py",
                "resources_server": {"type": "resources_servers", "name": "env_a"},
                "temperature": 0.5,
            }
            blocks[agent] = {"responses_api_agents": {"simple_agent": settings}}
        return {"head_server": {"host": "127.0.0.1", "port": self.head_port}, **blocks, **self.extra_config}

    @property
    def own_config(self) -> dict[str, Any]:
        return {"head_server": {"host": "127.0.0.1", "port": self.head_port}}

    async def _start(self) -> None:
        for agent in self.agents:
            app = web.Application(client_max_size=1 << 30, handler_args={"handler_cancellation": True})
            app.add_routes(
                [
                    web.post("/run", self._run_handler(agent)),
                    web.post("/aggregate_metrics", self._metrics_handler(agent)),
                ]
            )
            self.ports[agent] = await self._serve(app)
        head = web.Application()
        head.add_routes([web.get("/global_config_dict_yaml", self._config_handler)])
        self.head_port = await self._serve(head)

    async def _serve(self, app: web.Application) -> int:
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._runners.append(runner)
        return int(runner.addresses[0][1])

    async def _stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    async def _config_handler(self, _: web.Request) -> web.Response:
        return web.json_response(yaml.safe_dump(self.config))

    def _run_handler(self, agent: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            row = json.loads(await request.read())
            self.received.append(row)
            self.received_by.append(agent)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            try:
                answer = self.behaviours[agent](row)
                if isinstance(answer, Awaitable):
                    answer = await answer
            except asyncio.CancelledError:
                self.cancelled.append(f"{row.get('_ng_task_index')}-{row.get('_ng_rollout_index')}")
                raise
            finally:
                self.in_flight -= 1
            if isinstance(answer, tuple):
                return web.Response(status=answer[0], text=answer[1], headers=answer[2] if answer[2:] else None)
            if isinstance(answer, bytes):
                return web.Response(body=answer, content_type="application/json")
            if answer is None:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            return web.json_response(answer)

        return handle

    def _metrics_handler(self, agent: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            rows = json.loads(await request.read())["verify_responses"]
            self.metric_requests.append((agent, rows))
            if self.metrics_status != 200:
                return web.Response(status=self.metrics_status, text="no metrics here")
            rewards = [row["reward"] for row in rows if row.get("reward") is not None]
            mean = {"mean/reward": sum(rewards) / len(rewards)} if rewards else {}
            tasks = sorted({row["_ng_task_index"] for row in rows})
            groups = [{"_ng_task_index": task, "sample": {"agent_ref": {"name": "agent"}}} for task in tasks]
            return web.json_response({"agent_metrics": mean, "key_metrics": mean, "group_level_metrics": groups})

        return handle

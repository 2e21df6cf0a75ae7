"""A stateful server in the style that users write: tools that change a session's counter, and metric hooks."""

import asyncio
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics
from nemo_gym.server_utils import SESSION_ID_KEY, is_nemo_gym_fastapi_entrypoint


class CounterGameConfig(BaseResourcesServerConfig):
    step: int = 1


class CounterGameRunRequest(BaseRunRequest):
    target: int
    start: int | None = 0


class CounterGameSeedRequest(CounterGameRunRequest, BaseSeedSessionRequest):
    pass


class CounterGameVerifyRequest(CounterGameRunRequest, BaseVerifyRequest):
    pass


class CounterGameVerifyResponse(BaseVerifyResponse):
    target: int
    final_count: int


class IncrementRequest(BaseModel):
    times: int = 1


class IncrementResponse(BaseModel):
    count: int


class CounterGame(SimpleResourcesServer):
    config: CounterGameConfig
    counts: dict[str, Any] = Field(default_factory=dict)
    _lock: asyncio.Lock = PrivateAttr()

    def model_post_init(self, context):
        self._lock = asyncio.Lock()

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/increment")(self.increment)
        app.post("/describe")(self.describe)
        app.post("/break_down")(self.break_down)
        return app

    async def seed_session(self, request: Request, body: CounterGameSeedRequest) -> BaseSeedSessionResponse:
        self.counts[request.session[SESSION_ID_KEY]] = body.start
        return BaseSeedSessionResponse()

    async def increment(self, body: IncrementRequest, request: Request) -> IncrementResponse:
        async with self._lock:
            session_id = request.session[SESSION_ID_KEY]
            self.counts[session_id] = self.counts.get(session_id, 0) + body.times * self.config.step
            return IncrementResponse(count=self.counts[session_id])

    async def describe(self, request: Request):
        return PlainTextResponse(f"the counter shows {self.counts.get(request.session[SESSION_ID_KEY])}")

    async def break_down(self):
        raise RuntimeError("the counter is stuck")

    async def verify(self, request: Request, body: CounterGameVerifyRequest) -> CounterGameVerifyResponse:
        final = self.counts.get(request.session.get(SESSION_ID_KEY), 0)
        return CounterGameVerifyResponse(
            **body.model_dump(), reward=float(final == body.target), final_count=final, dropped_extra=1
        )

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        metrics, _, _, _ = compute_pass_majority_metrics(tasks)
        return metrics

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return highest_k_metrics(agent_metrics, "pass@{k}")


if __name__ == "__main__":
    CounterGame.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = CounterGame.run_webserver()

"""Any endpoint of the three dialects: calls are passed on as they come where it speaks the client's, else converted."""

from __future__ import annotations

import functools
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel, UpstreamError
from nemo_gym.builtin.responses_api_models.openai_model.extra_body import merge_extra_body
from nemo_gym.builtin.responses_api_models.openai_model.wires import (
    NO_SUCH_ROUTE,
    WIRE_PATHS,
    Routes,
    WireSetting,
)
from nemo_gym.dialects import Dialect
from nemo_gym.server_utils import is_nemo_gym_fastapi_entrypoint
from nemo_gym.servers.forwarding import Wire, answer_through
from nemo_gym.servers.upstream_client import UpstreamClient, UpstreamSettings
from nemo_gym.servers.upstream_pool import UpstreamPool


class OpenAIModelConfig(BaseResponsesAPIModelConfig):
    """Where the endpoint is. `openai_base_url` ends in `/v1` as a rule; times are seconds."""

    openai_base_url: str
    openai_api_key: str
    openai_model: str
    wire: WireSetting = Field(default="auto", description="What the endpoint speaks; `auto` finds out.")
    openai_default_headers: dict[str, str] = {}
    extra_body: dict[str, Any] = Field(default={}, description="Sent with every request; the request's own keys win.")
    drop_input_reasoning_items: bool = Field(False, description="For endpoints that refuse reasoning items.")
    max_concurrent_requests: int | None = Field(default=None, ge=1, description="Of this process; none by default.")
    max_http_attempts: int = Field(default=3, ge=1)
    request_timeout_s: float | None = Field(default=None, gt=0)
    stream_idle_timeout_s: float | None = Field(default=600.0, gt=0)


class OpenAIModel(SimpleResponsesAPIModel):
    """Forwards to one endpoint; the configured model replaces the request's."""

    config: OpenAIModelConfig

    async def responses(self, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Responses call."""
        return await self._answer("responses", request, body)

    async def chat_completions(self, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Chat Completions call."""
        return await self._answer("chat", request, body)

    async def messages(self, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Messages call."""
        return await self._answer("messages", request, body)

    async def _answer(self, dialect: Dialect, request: Request, body: dict[str, Any]) -> Response:
        """Ask in the client's dialect where nothing speaks against it; a missing route has the routes looked for."""
        if self.config.wire != "auto":
            return await self._through(self.config.wire, dialect, request, body)
        spoken = self._routes.first(dialect)
        try:
            return await self._through(spoken, dialect, request, body)
        except UpstreamError as error:
            if error.status not in NO_SUCH_ROUTE:
                raise
            others = await self._routes.instead_of(spoken, dialect)
            if not others:
                raise
        return await self._through_one_of(others, dialect, request, body)

    async def _through_one_of(
        self, wires: list[Dialect], dialect: Dialect, request: Request, body: dict[str, Any]
    ) -> Response:
        """Answer on the first wire that has a route; all but the last may turn out to have none."""
        for wire in wires[:-1]:
            try:
                return await self._confirmed(wire, dialect, request, body)
            except UpstreamError as error:
                if error.status not in NO_SUCH_ROUTE:
                    raise
        return await self._confirmed(wires[-1], dialect, request, body)

    async def _confirmed(self, wire: Dialect, dialect: Dialect, request: Request, body: dict[str, Any]) -> Response:
        answer = await self._through(wire, dialect, request, body)
        self._routes.confirm(wire)
        return answer

    async def _through(self, spoken: Dialect, dialect: Dialect, request: Request, body: dict[str, Any]) -> Response:
        shape = functools.partial(self._shaped, spoken)
        wire = Wire(pool=self._pool, dialect=spoken, path=WIRE_PATHS[spoken], shape=shape)
        return await answer_through(wire, body, dialect=dialect, request=request)

    def _shaped(self, spoken: Dialect, body: dict[str, Any]) -> dict[str, Any]:
        shaped = {**merge_extra_body(body, self.config.extra_body), "model": self.config.openai_model}
        given = shaped.get("input")
        if spoken == "responses" and self.config.drop_input_reasoning_items and isinstance(given, list):
            shaped["input"] = [
                item for item in given if not (isinstance(item, dict) and item.get("type") == "reasoning")
            ]
        return shaped

    @functools.cached_property
    def _routes(self) -> Routes:
        return Routes(self._pool.clients[0])

    @functools.cached_property
    def _pool(self) -> UpstreamPool:
        config = self.config
        settings = UpstreamSettings(
            base_url=config.openai_base_url.rstrip("/"),
            headers={"Authorization": f"Bearer {config.openai_api_key}", **config.openai_default_headers},
            max_attempts=config.max_http_attempts,
            max_concurrent=config.max_concurrent_requests,
            idle_timeout_s=config.stream_idle_timeout_s,
            total_timeout_s=config.request_timeout_s,
        )
        return UpstreamPool([UpstreamClient(settings)])


if __name__ == "__main__":
    OpenAIModel.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = OpenAIModel.run_webserver()

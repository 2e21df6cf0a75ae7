"""Anthropic's Messages API, or anything that speaks it: Messages pass untouched, the other dialects are converted."""

from __future__ import annotations

import functools
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.builtin.responses_api_models.openai_model.extra_body import merge_extra_body
from nemo_gym.dialects import Dialect
from nemo_gym.records import codec
from nemo_gym.server_utils import is_nemo_gym_fastapi_entrypoint
from nemo_gym.servers.forwarding import Wire, answer_through
from nemo_gym.servers.upstream_client import UpstreamClient, UpstreamSettings
from nemo_gym.servers.upstream_pool import UpstreamPool

MESSAGES_PATH = "/v1/messages"


class AnthropicModelConfig(BaseResponsesAPIModelConfig):
    """Where the endpoint is, with or without a final `/v1`; times are seconds."""

    anthropic_base_url: str = "https://api.anthropic.com"
    anthropic_api_key: str
    anthropic_model: str
    anthropic_version: str = "2023-06-01"
    default_headers: dict[str, str] = {}
    extra_body: dict[str, Any] = Field(default={}, description="Sent with every request; the request's own keys win.")
    max_output_tokens: int = Field(default=8192, ge=1, description="Sent when a Messages request has no `max_tokens`.")
    max_concurrent_requests: int | None = Field(default=None, ge=1, description="Of this process; none by default.")
    max_http_attempts: int = Field(default=3, ge=1)
    request_timeout_s: float | None = Field(default=None, gt=0)
    stream_idle_timeout_s: float | None = Field(default=600.0, gt=0)


class AnthropicModel(SimpleResponsesAPIModel):
    """Forwards to one endpoint; the configured model replaces the request's."""

    config: AnthropicModelConfig

    async def responses(self, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Responses call through Messages."""
        return await answer_through(self._wire, body, dialect="responses", request=request)

    async def chat_completions(self, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Chat Completions call through Messages."""
        return await answer_through(self._wire, body, dialect="chat", request=request)

    async def messages(self, request: Request, body: dict[str, Any]) -> Response:
        """Pass a Messages call on."""
        return await answer_through(self._wire, body, dialect="messages", request=request)

    async def count_tokens(self, body: dict[str, Any]) -> int:
        """Return the endpoint's own count of a Messages request."""
        sent = {**body, "model": self.config.anthropic_model}
        dialect: Dialect = "messages"
        reply = await self._pool.post(f"{MESSAGES_PATH}/count_tokens", codec.encode(sent), dialect=dialect, attempts=[])
        return int(codec.decode_object(await reply.read())["input_tokens"])

    def served_model_name(self) -> str:
        """Return the configured model."""
        return self.config.anthropic_model

    def _shaped(self, body: dict[str, Any]) -> dict[str, Any]:
        shaped = merge_extra_body(body, self.config.extra_body)
        return {"max_tokens": self.config.max_output_tokens, **shaped, "model": self.config.anthropic_model}

    @functools.cached_property
    def _wire(self) -> Wire:
        return Wire(pool=self._pool, dialect="messages", path=MESSAGES_PATH, shape=self._shaped)

    @functools.cached_property
    def _pool(self) -> UpstreamPool:
        config = self.config
        settings = UpstreamSettings(
            base_url=config.anthropic_base_url.rstrip("/").removesuffix("/v1"),
            headers={
                "x-api-key": config.anthropic_api_key,
                "anthropic-version": config.anthropic_version,
                **config.default_headers,
            },
            max_attempts=config.max_http_attempts,
            max_concurrent=config.max_concurrent_requests,
            idle_timeout_s=config.stream_idle_timeout_s,
            total_timeout_s=config.request_timeout_s,
        )
        return UpstreamPool([UpstreamClient(settings)])


if __name__ == "__main__":
    AnthropicModel.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = AnthropicModel.run_webserver()

"""Any OpenAI-compatible endpoint: Responses and Chat Completions are passed on as they come, streams included."""

from __future__ import annotations

import functools
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.builtin.responses_api_models.openai_model.extra_body import merge_extra_body
from nemo_gym.servers.forwarding import forward
from nemo_gym.servers.upstream_client import UpstreamClient, UpstreamSettings


class OpenAIModelConfig(BaseResponsesAPIModelConfig):
    """Where the endpoint is. `openai_base_url` ends in `/v1` as a rule; times are seconds."""

    openai_base_url: str
    openai_api_key: str
    openai_model: str
    openai_default_headers: dict[str, str] = {}
    extra_body: dict[str, Any] = Field(default={}, description="Sent with every request; the request's own keys win.")
    drop_input_reasoning_items: bool = Field(False, description="For endpoints that refuse reasoning items.")
    max_http_attempts: int = Field(default=3, ge=1)
    stream_idle_timeout_s: float | None = Field(default=600.0, gt=0)


class OpenAIModel(SimpleResponsesAPIModel):
    """Forwards to one endpoint; the configured model replaces the request's."""

    config: OpenAIModelConfig

    async def responses(self, request: Request, body: dict[str, Any]) -> Response:
        """Pass a Responses call on."""
        if self.config.drop_input_reasoning_items and isinstance(body.get("input"), list):
            kept = [item for item in body["input"] if not (isinstance(item, dict) and item.get("type") == "reasoning")]
            body = {**body, "input": kept}
        return await forward(self._upstream, "/responses", self._shaped(body), dialect="responses", request=request)

    async def chat_completions(self, request: Request, body: dict[str, Any]) -> Response:
        """Pass a Chat Completions call on."""
        return await forward(self._upstream, "/chat/completions", self._shaped(body), dialect="chat", request=request)

    def _shaped(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**merge_extra_body(body, self.config.extra_body), "model": self.config.openai_model}

    @functools.cached_property
    def _upstream(self) -> UpstreamClient:
        config = self.config
        return UpstreamClient(
            UpstreamSettings(
                base_url=config.openai_base_url.rstrip("/"),
                headers={"Authorization": f"Bearer {config.openai_api_key}", **config.openai_default_headers},
                max_attempts=config.max_http_attempts,
                idle_timeout_s=config.stream_idle_timeout_s,
            )
        )


if __name__ == "__main__":
    OpenAIModel.run_webserver()

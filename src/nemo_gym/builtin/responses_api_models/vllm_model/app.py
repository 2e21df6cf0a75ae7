"""vLLM, or any endpoint with Chat Completions: Responses and Messages are served through conversion."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from pydantic import Field, field_validator
from starlette.requests import Request

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.builtin.responses_api_models.openai_model.extra_body import merge_extra_body
from nemo_gym.builtin.responses_api_models.vllm_model.overflow import empty_completion, is_context_overflow
from nemo_gym.capture.correlation import current_rollout_id
from nemo_gym.capture.execution import report_execution
from nemo_gym.dialects import conversion
from nemo_gym.servers.forwarding import forward, forward_for_object
from nemo_gym.servers.upstream import UpstreamError
from nemo_gym.servers.upstream_client import UpstreamClient, UpstreamSettings

CHAT_PATH = "/chat/completions"


class VLLMModelConfig(BaseResponsesAPIModelConfig):
    """Where the endpoints are and how a request is shaped for them; `base_url` may be a list."""

    base_url: list[str] = Field(min_length=1)
    api_key: str = "unused"
    model: str
    default_headers: dict[str, str] = {}
    extra_body: dict[str, Any] = {}
    chat_template_kwargs: dict[str, Any] = {}
    sampling_overrides: dict[str, Any] = Field(default={}, description="Set on every request, whatever it asks for.")
    is_responses_native: bool = Field(default=False, description="Pass Responses calls on to `/responses`.")
    replace_developer_role_with_system: bool = False
    propagate_context_overflow_errors: bool = False
    max_http_attempts: int = Field(default=3, ge=1)
    stream_idle_timeout_s: float | None = Field(default=600.0, gt=0)

    @field_validator("base_url", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class VLLMModel(SimpleResponsesAPIModel):
    """Forwards to one endpoint, the same for all calls of a rollout, so that they meet the same prefix cache."""

    config: VLLMModelConfig

    async def responses(self, request: Request, body: dict[str, Any]) -> Any:
        """Answer a Responses call, through Chat Completions unless the endpoint speaks Responses itself."""
        if self.config.is_responses_native:
            return await forward(
                self._upstream(), "/responses", self._shaped(body), dialect="responses", request=request
            )
        tidied, notes = conversion.tidy_responses_request({**body, "stream": False})
        chat, more = conversion.responses_request_to_chat(tidied)
        completion = await self._completion(chat, request)
        response, last = conversion.chat_response_to_responses(completion, request=tidied)
        if noted := [*notes, *more, *last]:
            report_execution(request, conversion_notes=noted)
        return response

    async def chat_completions(self, request: Request, body: dict[str, Any]) -> Any:
        """Pass a Chat Completions call on."""
        try:
            return await forward(self._upstream(), CHAT_PATH, self._shaped(body), dialect="chat", request=request)
        except UpstreamError as error:
            return self._overflowed(error, request)

    async def _completion(self, chat: dict[str, Any], request: Request) -> dict[str, Any]:
        try:
            return await forward_for_object(
                self._upstream(), CHAT_PATH, self._shaped(chat), dialect="chat", request=request
            )
        except UpstreamError as error:
            return self._overflowed(error, request)

    def _overflowed(self, error: UpstreamError, request: Request) -> dict[str, Any]:
        """Return an empty, length-stopped answer for a prompt that is too long; raise any other error again."""
        if self.config.propagate_context_overflow_errors or not is_context_overflow(error):
            raise error
        report_execution(
            request,
            upstream_status_code=error.status,
            response_source="local",
            local_response_reason="context_length_exceeded",
        )
        return empty_completion(self.config.model)

    def _shaped(self, body: dict[str, Any]) -> dict[str, Any]:
        config = self.config
        shaped = {**merge_extra_body(body, config.extra_body), **config.sampling_overrides, "model": config.model}
        if config.chat_template_kwargs:
            shaped["chat_template_kwargs"] = {**config.chat_template_kwargs, **shaped.get("chat_template_kwargs", {})}
        if config.replace_developer_role_with_system and isinstance(shaped.get("messages"), list):
            shaped["messages"] = [
                {**message, "role": "system"} if message.get("role") == "developer" else message
                for message in shaped["messages"]
            ]
        return shaped

    def _upstream(self) -> UpstreamClient:
        """Return the endpoint of the current rollout, by rendezvous hashing: no table, and no cookies needed."""
        clients = self._upstreams
        if len(clients) == 1:
            return clients[0]
        key = current_rollout_id() or ""
        return max(clients, key=lambda client: hashlib.sha256(f"{key}\n{client.settings.base_url}".encode()).digest())

    @functools.cached_property
    def _upstreams(self) -> list[UpstreamClient]:
        config = self.config
        return [
            UpstreamClient(
                UpstreamSettings(
                    base_url=url.rstrip("/"),
                    headers={"Authorization": f"Bearer {config.api_key}", **config.default_headers},
                    max_attempts=config.max_http_attempts,
                    idle_timeout_s=config.stream_idle_timeout_s,
                )
            )
            for url in config.base_url
        ]


if __name__ == "__main__":
    VLLMModel.run_webserver()

"""vLLM, or any endpoint with Chat Completions: Responses and Messages are served through conversion."""

from __future__ import annotations

import functools
import logging
from typing import Any

from pydantic import Field, PrivateAttr, field_validator
from starlette.requests import Request
from starlette.responses import Response

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.builtin.responses_api_models.openai_model.extra_body import merge_extra_body
from nemo_gym.builtin.responses_api_models.vllm_model import shaping, token_ids
from nemo_gym.builtin.responses_api_models.vllm_model.overflow import empty_completion, is_context_overflow
from nemo_gym.capture.execution import report_execution
from nemo_gym.dialects import Dialect
from nemo_gym.server_utils import is_nemo_gym_fastapi_entrypoint
from nemo_gym.servers.forwarding import Wire, answer_through
from nemo_gym.servers.upstream import UpstreamError
from nemo_gym.servers.upstream_client import UpstreamClient, UpstreamSettings
from nemo_gym.servers.upstream_pool import UpstreamPool

CHAT_PATH = "/chat/completions"
logger = logging.getLogger(__name__)


class VLLMModelConfig(BaseResponsesAPIModelConfig):
    """Where the endpoints are and how a request is shaped for them; `base_url` may be a list."""

    base_url: list[str] = Field(min_length=1)
    api_key: str = "unused"
    model: str
    default_headers: dict[str, str] = {}
    extra_body: dict[str, Any] = {}
    chat_template_kwargs: dict[str, Any] = {}
    forward_request_chat_template_kwargs: bool = Field(default=False, description="Let a request bring its own.")
    sampling_overrides: dict[str, Any] = Field(default={}, description="Set on every request, whatever it asks for.")
    is_responses_native: bool = Field(default=False, description="Pass Responses calls on to `/responses`.")
    uses_reasoning_parser: bool | None = Field(
        default=None, description="True: reasoning is in a field of its own; false: in `<think>` tags; none: look."
    )
    uses_interleaved_reasoning: bool = Field(default=True, description="Send earlier reasoning back in its own field.")
    reasoning_field: shaping.ReasoningField = "both"
    preserve_reasoning_in_assistant_content: bool = False
    continue_final_assistant_message: bool = False
    return_token_id_information: bool = Field(default=False, description="Put token ids on each answer, for training.")
    replace_developer_role_with_system: bool = False
    propagate_context_overflow_errors: bool = False
    num_concurrent_requests: int | None = Field(default=None, ge=1, description="Per endpoint, of this process.")
    max_http_attempts: int = Field(default=3, ge=1)
    request_timeout_s: float | None = Field(default=None, gt=0)
    stream_idle_timeout_s: float | None = Field(default=600.0, gt=0)

    @field_validator("base_url", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class VLLMModel(SimpleResponsesAPIModel):
    """Forwards to one endpoint, the same for all calls of a rollout, so that they meet the same prefix cache."""

    config: VLLMModelConfig
    _has_warned: bool = PrivateAttr(False)

    async def responses(self, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Responses call, through Chat Completions unless the endpoint speaks Responses itself."""
        if self.config.is_responses_native:
            wire = Wire(pool=self._pool, dialect="responses", path="/responses", shape=self._shaped_responses)
            return await answer_through(wire, body, dialect="responses", request=request)
        return await self._answer("responses", request, body)

    async def chat_completions(self, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Chat Completions call."""
        return await self._answer("chat", request, body)

    async def messages(self, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Messages call through Chat Completions."""
        return await self._answer("messages", request, body)

    async def _answer(self, dialect: Dialect, request: Request, body: dict[str, Any]) -> Response:
        config = self.config
        wire = Wire(
            pool=self._pool,
            dialect="chat",
            path=CHAT_PATH,
            functions_only=True,
            shape=self._shaped_chat,
            instead_of=functools.partial(self._overflowed, request),
            finish=self._with_ids if config.return_token_id_information else None,
            streams=not config.return_token_id_information,  # ids are told per answer
            think_tags=None if config.uses_reasoning_parser is None else not config.uses_reasoning_parser,
        )
        return await answer_through(wire, body, dialect=dialect, request=request)

    def _overflowed(self, request: Request, error: UpstreamError) -> dict[str, Any] | None:
        """Return an empty, length-stopped answer for a prompt that is too long; None for any other error."""
        if self.config.propagate_context_overflow_errors or not is_context_overflow(error):
            return None
        report_execution(
            request,
            upstream_status_code=error.status,
            response_source="local",
            local_response_reason="context_length_exceeded",
        )
        return empty_completion(self.config.model)

    def _with_ids(self, completion: dict[str, Any]) -> dict[str, Any]:
        return token_ids.with_ids(completion, server=self._pool.base_url)

    def _shaped_responses(self, body: dict[str, Any]) -> dict[str, Any]:
        config = self.config
        return {**merge_extra_body(body, config.extra_body), **config.sampling_overrides, "model": config.model}

    def _shaped_chat(self, body: dict[str, Any]) -> dict[str, Any]:
        config = self.config
        shaped, dropped = shaping.with_template_kwargs(
            merge_extra_body(body, config.extra_body),
            config.chat_template_kwargs,
            forward_requests=config.forward_request_chat_template_kwargs,
        )
        if dropped and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "a request's `chat_template_kwargs` were dropped; `forward_request_chat_template_kwargs: true` on `%s` "
                "lets them through",
                config.name,
            )
        shaped = {**shaping.without_strict(shaped), **config.sampling_overrides, "model": config.model}
        if config.uses_reasoning_parser and config.uses_interleaved_reasoning:
            keep = config.preserve_reasoning_in_assistant_content
            shaped = shaping.with_reasoning_fields(shaped, config.reasoning_field, keep_in_text=keep)
        if config.continue_final_assistant_message:
            shaped = shaping.continued(shaped)
        if config.return_token_id_information:
            shaped = token_ids.asking_for_ids(shaped)
        if config.replace_developer_role_with_system and isinstance(shaped.get("messages"), list):
            shaped["messages"] = [
                {**message, "role": "system"} if message.get("role") == "developer" else message
                for message in shaped["messages"]
            ]
        return shaped

    @functools.cached_property
    def _pool(self) -> UpstreamPool:
        config = self.config
        return UpstreamPool(
            [
                UpstreamClient(
                    UpstreamSettings(
                        base_url=url.rstrip("/"),
                        headers={"Authorization": f"Bearer {config.api_key}", **config.default_headers},
                        max_attempts=config.max_http_attempts,
                        max_concurrent=config.num_concurrent_requests,
                        idle_timeout_s=config.stream_idle_timeout_s,
                        total_timeout_s=config.request_timeout_s,
                    )
                )
                for url in config.base_url
            ]
        )


if __name__ == "__main__":
    VLLMModel.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = VLLMModel.run_webserver()

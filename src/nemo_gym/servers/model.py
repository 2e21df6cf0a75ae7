"""The base of model servers: two coroutines in, three dialects out, every prefixed call captured."""

from __future__ import annotations

import functools
from abc import abstractmethod
from typing import Any, ClassVar

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from nemo_gym.capture.correlation import split_rollout_path
from nemo_gym.capture.middleware import capture_health, install_model_call_capture, model_call_id_of
from nemo_gym.capture.settings import ModelCallCaptureConfig
from nemo_gym.dialects.errors import error_category_for_exception
from nemo_gym.dialects.names import MODEL_CALL_PATHS, Dialect
from nemo_gym.records import codec, keys
from nemo_gym.servers.base import BaseServer, SimpleServer
from nemo_gym.servers.boundary import ErrorAnswer, plain_error
from nemo_gym.servers.handler_plan import HandlerPlan
from nemo_gym.servers.model_calls import ModelCalls
from nemo_gym.servers.server_config import BaseRunServerInstanceConfig
from nemo_gym.servers.upstream import BAD_GATEWAY, GATEWAY_TIMEOUT, error_answer, failure_answer
from nemo_gym.servers.web import json_answer, new_app

CAPTURE_HEALTH_PATH = "/ng-capture/health"

_STATUS_OF_CATEGORY = {"timeout": GATEWAY_TIMEOUT, "connection": BAD_GATEWAY}
_CHARACTERS_PER_TOKEN = 4


class BaseResponsesAPIModelConfig(BaseRunServerInstanceConfig):
    """A model server's own configuration; `name` is what captured calls are attributed to."""

    token_id_capture_non_generating_requests: list[Any] = []


class BaseResponsesAPIModel(BaseServer):
    """A server that owns a model."""

    config: BaseResponsesAPIModelConfig


class SimpleResponsesAPIModel(BaseResponsesAPIModel, SimpleServer):
    """Write `responses` and `chat_completions`; the base serves them, and Messages through conversion.

    Each coroutine takes `body`, and `request` if it names it. The annotation of `body` decides what it gets: a model
    (by default the non-streaming params of its dialect, after lenient clean-up), or, annotated as a `dict`, the
    request's JSON object exactly as it came, `stream` included. It returns a model or a dict, which the base also
    replays as events where the client asked for a stream; or a ready Starlette response, which is passed on untouched:
    that is how a proxying backend streams truly. Backends raise `UpstreamError` for what their provider said.
    """

    config: BaseResponsesAPIModelConfig

    ray_enabled: ClassVar[bool | None] = False
    non_generating_model_routes: ClassVar[frozenset[tuple[str, str]]] = frozenset()

    @abstractmethod
    async def responses(self, *args: Any, **kwargs: Any) -> Any:
        """Answer a Responses request, `body`, with a finished Response."""

    @abstractmethod
    async def chat_completions(self, *args: Any, **kwargs: Any) -> Any:
        """Answer a Chat Completions request, `body`, with a finished completion."""

    async def messages(self, request: Request, body: dict[str, Any]) -> Any:
        """Answer a Messages request; by default through `responses`. An override gets the JSON object as it came."""
        return await self._model_calls.converted_messages(request, body)

    async def responses_dispatch(self, request: Request, body: dict[str, Any]) -> Any:
        """Call `responses` with what it asks for; an override sees every Responses call."""
        return await self._plan("responses").call(request, body)

    async def chat_completions_dispatch(self, request: Request, body: dict[str, Any]) -> Any:
        """Call `chat_completions` with what it asks for; an override sees every Chat call."""
        return await self._plan("chat").call(request, body)

    def _finalize_served_response(self, response: Any) -> Any:
        """Change the exact object that is about to be sent."""
        return response

    def served_model_name(self) -> str:
        """Return the one name that `/v1/models` lists: the configured model, else this server."""
        for field in ("model", "openai_model", "model_name"):
            value = getattr(self.config, field, None)
            if isinstance(value, str) and value:
                return value
        return self.config.name

    async def count_tokens(self, body: dict[str, Any]) -> int:
        """Return how many input tokens a Messages request has; by default estimated from its length."""
        counted = {key: body[key] for key in ("system", "messages", "tools") if body.get(key)}
        return len(codec.encode(counted)) // _CHARACTERS_PER_TOKEN

    def setup_webserver(self) -> FastAPI:
        """Return the app; an override calls this one and adds routes. Unusable capture settings raise ConfigError."""
        app = new_app()
        self.setup_session_middleware(app, only_used=True)
        install_model_call_capture(app, self._capture_config(), model_server_name=self.config.name)
        calls = self._model_calls
        endpoints = {"responses": calls.serve_responses, "chat": calls.serve_chat, "messages": calls.serve_messages}
        routes = [
            Route(path + slash, endpoints[dialect], methods=["POST"])
            for slash in ("", "/")
            for path, dialect in MODEL_CALL_PATHS.items()
        ]
        routes.append(Route("/v1/messages/count_tokens", self._serve_count_tokens, methods=["POST"]))
        routes.append(Route("/v1/models", self._serve_models, methods=["GET"]))
        routes.append(Route(CAPTURE_HEALTH_PATH, self._serve_capture_health, methods=["GET"]))
        app.router.routes[:0] = routes  # in front, since every request is matched in order
        return app

    @functools.cached_property
    def _model_calls(self) -> ModelCalls:
        return ModelCalls(self)

    @functools.cached_property
    def _plans(self) -> dict[str, HandlerPlan]:
        return {
            "responses": HandlerPlan.of(self.responses, _responses_params),
            "chat": HandlerPlan.of(self.chat_completions, _chat_params),
        }

    def _plan(self, dialect: str) -> HandlerPlan:
        return self._plans[dialect]

    def takes_raw_body(self, dialect: Dialect) -> bool:
        """Return whether the coroutine of a dialect gets the request's JSON object as it came."""
        return self._plan(dialect).body_model is None

    def owns_stream(self, dialect: Dialect) -> bool:
        """Return whether the backend itself answers a streaming request of this dialect."""
        if dialect == "messages":
            return type(self).messages is not SimpleResponsesAPIModel.messages
        return self.takes_raw_body(dialect)

    def _capture_config(self) -> ModelCallCaptureConfig:
        return ModelCallCaptureConfig.from_global_config(self.global_config())

    def startup_notice(self) -> str | None:
        """Return a line that says where model calls are recorded."""
        config = self._capture_config()
        if not config.observability_enabled:
            return "model calls are not captured (`observability_enabled` is false)"
        return f"model calls of rollouts are captured in `{config.model_call_capture_dir}`, one JSONL file per rollout"

    def _error_answer(self) -> ErrorAnswer:
        return _model_error

    async def _serve_models(self, _request: Request) -> Response:
        name = self.served_model_name()
        entry = {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "nemo_gym",
            "type": "model",
            "display_name": name,
            "created_at": "1970-01-01T00:00:00Z",
        }
        listing = {"object": "list", "data": [entry], "has_more": False, "first_id": name, "last_id": name}
        return json_answer(codec.encode(listing))

    async def _serve_count_tokens(self, request: Request) -> Response:
        try:
            body = codec.decode_object(await request.body())
        except ValueError as error:
            return error_answer("messages", status=400, message=f"the body is no JSON object: {error}")
        return json_answer(codec.encode({"input_tokens": await self.count_tokens(body)}))

    async def _serve_capture_health(self, request: Request) -> Response:
        return json_answer(codec.encode(capture_health(request.app)))


def _responses_params() -> type[BaseModel]:
    # Imported here because a model server that only proxies needs none of the wire types, which cost a second.
    from nemo_gym.servers.openai_types import NeMoGymResponseCreateParamsNonStreaming

    return NeMoGymResponseCreateParamsNonStreaming


def _chat_params() -> type[BaseModel]:
    from nemo_gym.servers.openai_types import NeMoGymChatCompletionCreateParamsNonStreaming

    return NeMoGymChatCompletionCreateParamsNonStreaming


def _model_error(scope: Scope, error: BaseException, description: str) -> Response:
    """Answer an exception that nobody meant to answer: on a model route in its dialect's shape, with the call's id."""
    route = split_rollout_path(scope["path"], scope.get("raw_path"))
    path = (route.rest if route is not None else scope["path"]).rstrip("/")
    dialect = MODEL_CALL_PATHS.get(path)
    if dialect is None:
        return plain_error(scope, error, description)
    answer = failure_answer(dialect, error) if isinstance(error, Exception) else None
    if answer is None:
        status = _STATUS_OF_CATEGORY.get(error_category_for_exception(error), 500)
        answer = error_answer(dialect, status=status, message=description)
    if call_id := model_call_id_of(scope):
        answer.headers[keys.MODEL_CALL_ID_HEADER] = call_id
    return answer

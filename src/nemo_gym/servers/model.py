"""The base of model servers: two coroutines in, three dialects out, every prefixed call captured."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from fastapi import FastAPI
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from nemo_gym.capture.correlation import split_rollout_path
from nemo_gym.capture.middleware import capture_health, install_model_call_capture, model_call_id_of
from nemo_gym.capture.settings import ModelCallCaptureConfig
from nemo_gym.dialects.errors import error_category_for_exception
from nemo_gym.dialects.names import MODEL_CALL_PATHS, Dialect
from nemo_gym.records import codec, keys
from nemo_gym.servers.answers import json_answer
from nemo_gym.servers.base import BaseServer, SimpleServer
from nemo_gym.servers.boundary import ErrorAnswer, plain_error
from nemo_gym.servers.handler_plan import HandlerPlan
from nemo_gym.servers.model_calls import ModelCalls
from nemo_gym.servers.model_routes import ModelRoutes, no_such_route
from nemo_gym.servers.request_size import DEFAULT_MAX_REQUEST_BYTES, body_within
from nemo_gym.servers.server_config import BaseRunServerInstanceConfig
from nemo_gym.servers.upgrade import upgrade_refusals
from nemo_gym.servers.upstream import BAD_GATEWAY, GATEWAY_TIMEOUT, UpstreamError, error_answer, failure_answer
from nemo_gym.servers.web import new_app

CAPTURE_HEALTH_PATH = "/ng-capture/health"

_STATUS_OF_CATEGORY = {"timeout": GATEWAY_TIMEOUT, "connection": BAD_GATEWAY}
_CHARACTERS_PER_TOKEN = 4


class BaseResponsesAPIModelConfig(BaseRunServerInstanceConfig):
    """A model server's own configuration; `name` is what captured calls are attributed to."""

    token_id_capture_non_generating_requests: list[Any] = []
    max_request_bytes: int = Field(
        default=DEFAULT_MAX_REQUEST_BYTES, ge=1, description="Larger requests are answered 413."
    )


class BaseResponsesAPIModel(BaseServer):
    """A server that owns a model."""

    config: BaseResponsesAPIModelConfig


class SimpleResponsesAPIModel(BaseResponsesAPIModel, SimpleServer):
    """Write `responses` and `chat_completions`; the base serves them, and Messages through conversion.

    Each coroutine takes `body`, and `request` if it names it. The annotation of `body` decides what it gets: a model
    (by default the non-streaming params of its dialect, after lenient clean-up), or, annotated as a `dict`, the
    request's JSON object exactly as it came, `stream` included. It returns a model or a dict, which the base also
    replays as events where the client asked for a stream; or a ready Starlette response, which is passed on untouched:
    that is how a proxying backend streams truly. A backend that makes its tokens itself implements `stream_responses`
    or `stream_chat` beside them. Backends raise `UpstreamError` for what their provider said.
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

    def stream_responses(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Yield the events of a Response as they are made, models or dicts; an override makes streams live.

        Events are numbered, and converted for clients of the other dialects. `body` and `request` are as for
        `responses`. Without an override the finished answer is replayed.
        """
        raise NotImplementedError

    def stream_chat(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Yield chunks of a chat completion as they are made, as `stream_responses` does; `[DONE]` is added."""
        raise NotImplementedError

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
        paths = {path + slash: endpoints[dialect] for slash in ("", "/") for path, dialect in MODEL_CALL_PATHS.items()}
        routes: list[BaseRoute] = [ModelRoutes(paths)]
        routes.extend(Route(path, endpoint, methods=["POST"]) for path, endpoint in paths.items())
        routes.append(Route("/v1/messages/count_tokens", self._serve_count_tokens, methods=["POST"]))
        routes.append(Route("/v1/models", self._serve_models, methods=["GET"]))
        routes.append(Route(CAPTURE_HEALTH_PATH, self._serve_capture_health, methods=["GET"]))
        routes.extend(upgrade_refusals())
        app.router.routes[:0] = routes  # in front, since every request is matched in order
        app.router.default = no_such_route(app.router.default)
        return app

    @functools.cached_property
    def _model_calls(self) -> ModelCalls:
        return ModelCalls(self)

    @functools.cached_property
    def _plans(self) -> dict[str, HandlerPlan]:
        return {
            "responses": HandlerPlan.of(self.responses, _responses_params),
            "chat": HandlerPlan.of(self.chat_completions, _chat_params),
            **{f"stream_{source}": self._generator_plan(source) for source in self._own_generators()},
        }

    def _own_generators(self) -> list[Dialect]:
        return [source for source, name in _GENERATORS.items() if getattr(type(self), name) is not _BASE[source]]

    def _generator_plan(self, source: Dialect) -> HandlerPlan:
        default = _chat_params if source == "chat" else _responses_params
        return HandlerPlan.of(getattr(self, _GENERATORS[source]), default)

    def _plan(self, dialect: str) -> HandlerPlan:
        return self._plans[dialect]

    def takes_raw_body(self, handler: str) -> bool:
        """Return whether a handler (`responses`, `chat`, `stream_...`) gets the request's JSON object as it came."""
        return self._plan(handler).body_model is None

    def stream_source(self, dialect: Dialect) -> Dialect | None:
        """Return which `stream_...` generator streams an answer of this dialect: its own if there is one."""
        if dialect == "messages" and type(self).messages is not SimpleResponsesAPIModel.messages:
            return None
        own = self._own_generators()
        if not own:
            return None
        return dialect if dialect in own else own[0]

    async def open_stream(self, source: Dialect, request: Request, body: dict[str, Any]) -> AsyncIterator[Any]:
        """Call the `stream_...` generator of a dialect."""
        return await self._plan(f"stream_{source}").open(request, body)

    def max_request_bytes(self) -> int:
        """Return how large a request may be."""
        return self.config.max_request_bytes

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
        raw = await body_within(request, self.max_request_bytes())
        if raw is None:
            return error_answer("messages", status=413, message="the request is too large")
        try:
            body = codec.decode_object(raw)
        except ValueError as error:
            return error_answer("messages", status=400, message=f"the body is no JSON object: {error}")
        try:
            counted = await self.count_tokens(body)
        except UpstreamError as error:
            answer = failure_answer("messages", error)
            assert answer is not None
            return answer
        return json_answer(codec.encode({"input_tokens": counted}))

    async def _serve_capture_health(self, request: Request) -> Response:
        return json_answer(codec.encode(capture_health(request.app)))


_GENERATORS: dict[Dialect, str] = {"responses": "stream_responses", "chat": "stream_chat"}
_BASE = {source: getattr(SimpleResponsesAPIModel, name) for source, name in _GENERATORS.items()}


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

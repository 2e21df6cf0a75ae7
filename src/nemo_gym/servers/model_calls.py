"""The three model routes: plain handlers from bytes to bytes, around the coroutines of a model server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any, Protocol

import aiohttp
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from nemo_gym.capture.execution import report_execution
from nemo_gym.dialects import conversion
from nemo_gym.dialects.names import Dialect
from nemo_gym.records import codec
from nemo_gym.servers.answers import json_answer
from nemo_gym.servers.event_stream import KEEP_ALIVE_S, EventStream, answer_or_stream, pieces
from nemo_gym.servers.handler_plan import InvalidBodyError
from nemo_gym.servers.model_streams import begun, encoded
from nemo_gym.servers.request_size import body_within
from nemo_gym.servers.stream_conversion import converted, report_conversion, untouched, without_usage_chunk
from nemo_gym.servers.upstream import UpstreamError, error_answer, error_said, failure_answer
from nemo_gym.servers.web import encode_answer

_ANSWERED = (UpstreamError, aiohttp.ClientResponseError, HTTPException)
"""Exceptions that hold the answer of a backend, or the one that a handler chose."""


class ModelBackend(Protocol):
    """What the routes need from a model server."""

    async def responses_dispatch(self, request: Request, body: dict[str, Any]) -> Any:
        """Answer a Responses request."""

    async def chat_completions_dispatch(self, request: Request, body: dict[str, Any]) -> Any:
        """Answer a Chat Completions request."""

    async def messages(self, request: Request, body: dict[str, Any]) -> Any:
        """Answer a Messages request."""

    def takes_raw_body(self, handler: str) -> bool:
        """Return whether a handler wants the request as it came."""

    def stream_source(self, dialect: Dialect) -> Dialect | None:
        """Return the dialect of the generator that streams an answer of `dialect`; None when there is none."""

    async def open_stream(self, source: Dialect, request: Request, body: dict[str, Any]) -> AsyncIterator[Any]:
        """Call that generator."""

    def max_request_bytes(self) -> int:
        """Return how large a request may be."""

    def _finalize_served_response(self, response: Any) -> Any: ...


class ModelCalls:
    """The endpoints of one model server."""

    def __init__(self, backend: ModelBackend, *, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self._backend = backend
        self._keep_alive_s = keep_alive_s

    async def serve_responses(self, request: Request) -> Response:
        """Answer POST `/v1/responses`."""
        return await self._serve("responses", request)

    async def serve_chat(self, request: Request) -> Response:
        """Answer POST `/v1/chat/completions`."""
        return await self._serve("chat", request)

    async def serve_messages(self, request: Request) -> Response:
        """Answer POST `/v1/messages`."""
        return await self._serve("messages", request)

    async def _serve(self, dialect: Dialect, request: Request) -> Response:
        raw = await body_within(request, self._backend.max_request_bytes())
        if raw is None:
            limit = self._backend.max_request_bytes()
            message = f"the request is larger than {limit} bytes; `max_request_bytes` of this server bounds it"
            return error_answer(dialect, status=413, message=message)
        try:
            body = codec.decode_object(raw)
        except ValueError as error:
            return _refusal(dialect, f"the body is no JSON object: {error}", "json_invalid", ["body"])
        stream = body.get("stream")
        if stream is not None and not isinstance(stream, bool):
            return _refusal(dialect, "`stream` must be true or false", "bool_type", ["body", "stream"])
        if not stream:
            return await self._finished(dialect, request, body)
        work = self._streamed(dialect, request, body, include_usage=conversion.wants_usage(body))
        return await answer_or_stream(dialect, work, keep_alive_s=self._keep_alive_s)

    async def _finished(self, dialect: Dialect, request: Request, body: dict[str, Any]) -> Response:
        """Answer with the finished object, or with what the coroutine made ready."""
        result = await self._answered(dialect, request, self._result(dialect, request, body))
        return result if isinstance(result, Response) else json_answer(encode_answer(result))

    async def _streamed(
        self, dialect: Dialect, request: Request, body: dict[str, Any], *, include_usage: bool
    ) -> Response:
        """Answer with the backend's own stream, with what the coroutine made ready, or with the object as events."""
        source = self._backend.stream_source(dialect)
        answering = (
            self._result(dialect, request, body)
            if source is None
            else self._live(dialect, source, request, body, include_usage=include_usage)
        )
        result = await self._answered(dialect, request, answering)
        if isinstance(result, Response):
            return result
        plain = result if isinstance(result, dict) else codec.decode_object(encode_answer(result))
        return EventStream(pieces(conversion.replay_events(dialect, plain, include_usage=include_usage)))

    async def _answered(self, dialect: Dialect, request: Request, answering: Awaitable[Any]) -> Any:
        """Return what a handler answers; refusals are answered in the dialect's shape."""
        try:
            result = await answering
        except InvalidBodyError as error:
            return _invalid(dialect, error.problems)
        except conversion.ConversionError as error:
            return error_answer(dialect, status=400, message=str(error))
        except _ANSWERED as error:
            if isinstance(error, UpstreamError):
                if error.status is None:  # No answer at all: the record of this call keeps the exception's category.
                    raise
                report_execution(request, upstream_status_code=error.upstream_status)
            answer = failure_answer(dialect, error)
            assert answer is not None
            return answer
        return result if isinstance(result, Response) else self._backend._finalize_served_response(result)

    async def _result(self, dialect: Dialect, request: Request, body: dict[str, Any]) -> Any:
        if dialect == "messages":
            return await self._backend.messages(request, body)
        if dialect == "chat":
            return await self._backend.chat_completions_dispatch(request, self._tidy(dialect, request, body))
        result = await self._backend.responses_dispatch(request, self._tidy(dialect, request, body))
        return _with_namespaces(result, body)

    async def _live(
        self, dialect: Dialect, source: Dialect, request: Request, body: dict[str, Any], *, include_usage: bool
    ) -> Response:
        """Answer with the events of the backend's `stream_...` generator; what it raises first is a plain error."""
        asked, canonical = body, body
        if source != dialect:
            given = conversion.convert_request(body, dialect, source)
            asked, canonical = given.body, given.canonical
            if given.notes:
                report_execution(request, conversion_notes=given.notes)
        events = await self._backend.open_stream(
            source, request, self._tidy(source, request, asked, handler=f"stream_{source}")
        )
        chunks = await begun(encoded(events, source))
        if source == dialect == "chat":
            finished = chunks if include_usage else without_usage_chunk(chunks, request)
            return EventStream(untouched(finished, dialect, request))
        converter = conversion.StreamConverter(
            source,
            dialect,
            request=canonical,
            client_request=body,
            requested_model=body.get("model"),
            include_usage=include_usage,
        )
        return EventStream(converted(chunks, converter, request))

    def _tidy(
        self, dialect: Dialect, request: Request, body: dict[str, Any], *, handler: str | None = None
    ) -> dict[str, Any]:
        """Clean a request up for a typed coroutine, streaming or not, and note what was dropped for the record."""
        if self._backend.takes_raw_body(handler or dialect):
            return body
        tidy = conversion.tidy_chat_request if dialect == "chat" else conversion.tidy_responses_request
        tidied, notes = tidy(body)
        if notes:
            report_execution(request, conversion_notes=notes)
        return tidied

    async def converted_messages(self, request: Request, body: dict[str, Any]) -> Any:
        """Answer a Messages request through the Responses coroutine; `stream` is this side's matter."""
        converted, notes = conversion.messages_request_to_responses(body)
        converted.pop("stream", None)
        result = await self._backend.responses_dispatch(request, self._tidy("responses", request, converted))
        message, more = conversion.responses_to_messages_response(
            _plain_response(result), requested_model=body.get("model")
        )
        report_conversion(request, [*notes, *more])
        return error_said("messages", message) if conversion.is_error("messages", message) else message


def _with_namespaces(result: Any, request: dict[str, Any]) -> Any:
    """Undo the flattening of namespace tools in the calls of a finished answer."""
    tools = request.get("tools")
    if isinstance(result, Response) or not isinstance(tools, list):
        return result
    if not any(isinstance(tool, dict) and tool.get("type") == "namespace" for tool in tools):
        return result
    return conversion.restore_namespaces(_plain_response(result), request=request)


def _plain_response(result: Any) -> dict[str, Any]:
    """Return a Responses result as a dict; an error that a backend made ready is said again in this dialect."""
    if isinstance(result, dict):
        return result
    if isinstance(result, BaseModel):
        return codec.decode_object(encode_answer(result))
    if isinstance(result, Response) and isinstance(content := getattr(result, "body", None), bytes) and content:
        if result.status_code < 400:
            return codec.decode_object(content)
        raise UpstreamError(
            "the model backend failed",
            server="model",
            status=result.status_code,
            body=content,
            headers=dict(result.headers),
        )
    raise TypeError(f"`responses` returned a `{type(result).__name__}`, which cannot be said in the Messages dialect")


def _refusal(dialect: Dialect, message: str, kind: str, where: list[str]) -> Response:
    status = 400 if dialect == "messages" else 422
    detail = [{"type": kind, "loc": where, "msg": message, "input": {}}]
    return error_answer(dialect, status=status, message=message, detail=detail)


def _invalid(dialect: Dialect, error: ValidationError) -> Response:
    """Answer a body that does not fit its model, with FastAPI's document beside the dialect's shape."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    detail = [{**problem, "loc": ["body", *problem["loc"]]} for problem in problems]
    shown = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems[:5])
    status = 400 if dialect == "messages" else 422
    return error_answer(dialect, status=status, message=f"the request is invalid: {shown}", detail=detail)

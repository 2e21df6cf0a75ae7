"""The FastAPI app that servers add their routes to, and the JSON of its fast routes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request
from fastapi.datastructures import Default, DefaultPlaceholder
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from nemo_gym.records import codec

_PARAMETERS = inspect.signature(FastAPI.__init__).parameters
_NO_TELEMETRY = {"tracing": False, "metrics": False, "logs": False}

_REFUSALS = (PydanticSerializationError, UnicodeEncodeError)
"""What fast encoders raise for text with a lone surrogate, which models do write."""


def new_app() -> FastAPI:
    """Return an app that reads JSON bodies whatever content type a harness sends, and can send whatever a model wrote.

    An answer that the framework's encoder refuses (a lone surrogate, NaN) is encoded by the codec; any other answer is
    what the framework makes of it.
    """
    options: dict[str, Any] = {"strict_content_type": False} if "strict_content_type" in _PARAMETERS else {}
    if "telemetry" in _PARAMETERS and "opentelemetry.sdk" not in sys.modules:
        options["telemetry"] = _NO_TELEMETRY  # asking for each request whether anybody listens is not free
    app = FastAPI(**options)
    app.router.route_class = _LenientRoute
    app.add_exception_handler(HTTPException, _http_error)
    return app


class LenientJSONResponse(JSONResponse):
    """JSON that lone surrogates and NaN cannot break."""

    def render(self, content: Any) -> bytes:
        """Return the bytes that JSONResponse makes, or the codec's where it makes none."""
        try:
            return super().render(content)
        except ValueError:
            return codec.encode(content)


class _LenientRoute(APIRoute):
    """A route whose typed answers are encoded by the codec where pydantic refuses them."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if isinstance(self.response_class, DefaultPlaceholder):  # one that the route names itself is the route's
            self.response_class = Default(LenientJSONResponse)
        field: Any = self.response_field
        to_json = getattr(field, "serialize_json", None)
        if to_json is not None:

            def encode(value: Any, **options: Any) -> bytes:
                try:
                    encoded: bytes = to_json(value, **options)
                except _REFUSALS:
                    return codec.encode(field.serialize(value, **options))
                return encoded

            field.serialize_json = encode
        return super().get_route_handler()


async def _http_error(_request: Request, error: Exception) -> Response:
    """Answer an HTTPException as FastAPI does, whatever text it quotes."""
    assert isinstance(error, HTTPException)
    if error.status_code < 200 or error.status_code in (204, 304):  # these have no body
        return Response(status_code=error.status_code, headers=error.headers)
    return LenientJSONResponse({"detail": error.detail}, status_code=error.status_code, headers=error.headers)


async def json_object_of(request: Request) -> dict[str, Any]:
    """Return the JSON object that a request's body is; anything else is FastAPI's 422."""
    raw = await request.body()
    try:
        return codec.decode_object(raw)
    except ValueError as error:
        raise unfit_body(f"a JSON object is needed: {error}", given=raw[:200].decode("utf-8", "replace")) from error


def unfit_body(message: str, *, at: tuple[str, ...] = (), given: object = None) -> RequestValidationError:
    """Return the exception that is answered 422, naming the place `at` in the body."""
    return RequestValidationError([{"type": "value_error", "loc": ("body", *at), "msg": message, "input": given}])


def encode_answer(value: object) -> bytes:
    """Return a handler's answer, a model or plain data, as JSON."""
    if isinstance(value, BaseModel):
        try:
            return value.__pydantic_serializer__.to_json(value, by_alias=True, warnings=False)
        except (*_REFUSALS, ValidationError):
            return codec.encode(value.model_dump(by_alias=True, warnings=False))
    return codec.encode(value)

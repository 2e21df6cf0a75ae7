"""The FastAPI app that servers add their routes to, and the JSON of its fast routes."""

from __future__ import annotations

import inspect
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError
from starlette.responses import Response

from nemo_gym.records import codec

_HAS_STRICT_CONTENT_TYPE = "strict_content_type" in inspect.signature(FastAPI.__init__).parameters


def new_app() -> FastAPI:
    """Return an app that reads JSON bodies whatever content type a harness sends."""
    options: dict[str, Any] = {"strict_content_type": False} if _HAS_STRICT_CONTENT_TYPE else {}
    return FastAPI(**options)


def encode_answer(value: object) -> bytes:
    """Return a handler's answer, a model or plain data, as JSON."""
    if isinstance(value, BaseModel):
        try:
            return value.__pydantic_serializer__.to_json(value, by_alias=True, warnings=False)
        except (PydanticSerializationError, ValidationError, UnicodeEncodeError):  # a lone surrogate, most likely
            return codec.encode(value.model_dump(by_alias=True, warnings=False))
    return codec.encode(value)


def json_answer(content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return encoded JSON as a response."""
    return Response(content, status_code=status, headers=headers, media_type="application/json")

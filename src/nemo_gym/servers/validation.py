"""What a caller and the log are told about a request body that does not fit."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from nemo_gym.servers.web import LenientJSONResponse

logger = logging.getLogger(__name__)

_MAX_ERRORS = 20
_EXCERPT = 500


def add_validation_handler(app: FastAPI, *, name: str) -> None:
    """Answer FastAPI's 422 document, and log one bounded line about it."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        errors = error.errors()
        shown = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in errors[:_MAX_ERRORS])
        more = f" and {len(errors) - _MAX_ERRORS} more" if len(errors) > _MAX_ERRORS else ""
        logger.warning(
            "%s: `%s %s` refused a body: %s%s; it began with %s",
            name,
            request.method,
            request.url.path,
            ascii(shown)[1:-1][: _EXCERPT * 4],
            more,
            ascii(str(error.body)[:_EXCERPT]),
        )
        return LenientJSONResponse({"detail": jsonable_encoder(errors)}, status_code=422)

    app.add_exception_handler(RequestValidationError, handle)

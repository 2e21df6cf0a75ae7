"""How a model server's coroutine is called: looked up once at start, not per request."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from nemo_gym.servers.judging import resolved_hints


class InvalidBodyError(ValueError):
    """A request body does not fit the model of its coroutine; `problems` says where."""

    def __init__(self, problems: ValidationError) -> None:
        self.problems = problems
        super().__init__(str(problems))


@dataclass(frozen=True, slots=True)
class HandlerPlan:
    """A coroutine, whether it takes the HTTP request, and the model its body is parsed into (None: a plain dict)."""

    function: Callable[..., Any]
    wants_request: bool
    body_model: type[BaseModel] | None

    @classmethod
    def of(cls, function: Callable[..., Any], default: Callable[[], type[BaseModel]]) -> HandlerPlan:
        """Inspect a bound coroutine; a body without a usable annotation is parsed into `default()`."""
        parameters = inspect.signature(function).parameters
        return cls(function, "request" in parameters, _body_model(resolved_hints(function).get("body"), default))

    async def call(self, request: Request, body: dict[str, Any]) -> Any:
        """Call the coroutine; raises `InvalidBodyError` before, when the body does not fit its model."""
        return await self._called(request, body)

    async def open(self, request: Request, body: dict[str, Any]) -> AsyncIterator[Any]:
        """Call an async generator function, or a coroutine that returns an async iterator; raises as `call` does."""
        result: Any = self._called(request, body)
        events: AsyncIterator[Any] = await result if inspect.isawaitable(result) else result
        return events

    def _called(self, request: Request, body: dict[str, Any]) -> Any:
        parsed: Any = body
        if self.body_model is not None:
            try:
                parsed = self.body_model.model_validate(body)
            except ValidationError as error:
                raise InvalidBodyError(error) from error
        if self.wants_request:
            return self.function(request=request, body=parsed)
        return self.function(body=parsed)


def _body_model(annotation: Any, default: Callable[[], type[BaseModel]]) -> type[BaseModel] | None:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    origin = getattr(annotation, "__origin__", annotation)
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return None
    return default()

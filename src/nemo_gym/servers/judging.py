"""Calls to a model that judges, and what a verifier answers when the judge itself failed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, get_type_hints

from fastapi.responses import JSONResponse
from pydantic import BaseModel

from nemo_gym.records import keys
from nemo_gym.records.failure_kinds import JUDGE_FAILED
from nemo_gym.servers.http import get_response_json, raise_for_status
from nemo_gym.servers.web import LenientJSONResponse

MAX_REASON = 2000
"""Characters of a failure reason that are kept."""

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)


class JudgeError(Exception):
    """The judge could not be asked. What it answered, however odd, is for the verifier to score."""


async def reraise_judge_errors(awaitable: Awaitable[T]) -> T:
    """Await a judge call; whatever it raises becomes a `JudgeError` with the cause attached."""
    try:
        return await awaitable
    except JudgeError:
        raise
    except Exception as error:
        raise JudgeError(f"{type(error).__name__}: {error}") from error


async def call_judge(
    server_client: Any, *, server_name: str, url_path: str, json: Any, response_model: type[ModelT]
) -> ModelT:
    """POST to a judge's model server and return its parsed answer; every failure is a `JudgeError`."""

    async def ask() -> ModelT:
        response = await server_client.post(server_name=server_name, url_path=url_path, json=json)
        await raise_for_status(response)
        return response_model.model_validate(await get_response_json(response))

    return await reraise_judge_errors(ask())


def judge_failsafe(verify: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap a `verify` handler so that a failed judge masks the sample instead of losing the rollout.

    On `JudgeError` the answer is 200 with the request's fields, reward 0.0, `mask_sample`, and the failure class
    `judge_failed`, which collection routes to the failures sidecar. The wrapper keeps the signature with its
    annotations resolved, since FastAPI reads both.
    """

    @functools.wraps(verify)
    async def verify_or_mask(*args: Any, **kwargs: Any) -> Any:
        try:
            return await verify(*args, **kwargs)
        except JudgeError as error:
            return _masked(_body_of(args, kwargs), error)

    verify_or_mask.__signature__ = resolved_signature(verify)  # type: ignore[attr-defined]
    return verify_or_mask


def resolved_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature with annotations as objects, as far as their names resolve where they were written."""
    signature = inspect.signature(function)
    hints = resolved_hints(function)
    parameters = [
        parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in signature.parameters.items()
    ]
    return signature.replace(parameters=parameters, return_annotation=hints.get("return", signature.return_annotation))


def resolved_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function as objects; {} when a name in them exists only for type checkers."""
    try:
        return get_type_hints(inspect.unwrap(function), include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _body_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if "body" in kwargs:
        return kwargs["body"]
    for value in (*args, *kwargs.values()):
        if hasattr(value, "model_dump") and hasattr(value, "response"):
            return value
    raise RuntimeError("the verify handler failed at its judge, and none of its arguments is a verify request")


def _masked(body: Any, error: JudgeError) -> JSONResponse:
    reason = str(error)[:MAX_REASON]
    row: dict[str, Any] = body.model_dump(mode="json")
    existing = row.get("instance_config")
    row.update(
        {
            keys.REWARD: 0.0,
            keys.MASK_SAMPLE: True,
            keys.FAILURE_KIND: JUDGE_FAILED,
            keys.FAILURE_REASON: reason,
            "instance_config": {**(existing if isinstance(existing, dict) else {}), keys.MASK_SAMPLE: True},
            keys.FAILURE_CLASS: JUDGE_FAILED,
            keys.FAILURE_JUDGE_ERROR: reason,
        }
    )
    return LenientJSONResponse(row)

"""When a conversation that failed is no measurement of the model, and the row that says so. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp

from nemo_gym.builtin.responses_api_agents.simple_agent.loop import LoopResult, ModelReply
from nemo_gym.dialects.conversion import is_failed
from nemo_gym.dialects.errors import status_for_error
from nemo_gym.errors import RemoteError
from nemo_gym.records import keys
from nemo_gym.records.failure_kinds import TRANSPORT_PEER_DROP, TRANSPORT_TIMEOUT, TRANSPORT_UNREACHABLE

_ABOUT_THE_CONVERSATION = frozenset({400, 413, 422})
_REASON_LENGTH = 2000


def failed_reply(response: dict[str, Any], call_id: str | None) -> ModelReply | None:
    """Return the reply of a call that was answered 200 with a Response that failed; None when it did not fail.

    An object with an error is one, whatever its status says. The reply has the HTTP status that the error means, so
    that it is treated as the same failure under that status is.
    """
    if not is_failed(response):
        return None
    status = "cancelled" if response.get("status") == "cancelled" else "failed"
    error, usage, response_id = response.get("error"), response.get("usage"), response.get("id")
    said = error if isinstance(error, Mapping) else {"message": error}
    words = [str(word) for word in (said.get("message"), said.get("code")) if word]
    return ModelReply(
        response=None,
        call_id=call_id,
        status=status_for_error(error),
        error=f"the model's response is {status}" + (f": {' '.join(words)}" if words else ""),
        response_id=response_id if isinstance(response_id, str) else None,
        error_type=f"response_{status}",
        usage=usage if isinstance(usage, Mapping) and usage else None,
    )


def unanswered(error: Exception, server: str) -> tuple[str, str]:
    """Return what happened to a call without an answer, in words that name the server, and its kind."""
    kind = TRANSPORT_PEER_DROP
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        kind = TRANSPORT_UNREACHABLE
    elif isinstance(error, TimeoutError):
        kind = TRANSPORT_TIMEOUT
    if isinstance(error, RemoteError):
        return str(error), kind
    return f"`{server}` did not answer: {type(error).__name__}: {error}", kind


def is_judged(result: LoopResult) -> bool:
    """Return whether the verifier judges a failed conversation: the refusal was about the conversation itself.

    Anything else (no answer, a bad key, a wrong URL, rate limits, provider errors) says nothing about the model.
    """
    return result.error_status in _ABOUT_THE_CONVERSATION


def failed_row(row: dict[str, Any], result: LoopResult) -> dict[str, Any]:
    """Return the row of a rollout that failed: no reward, its kind and reason, and the partial response."""
    return {
        **row,
        keys.FAILURE_CLASS: "agent_run_error",
        keys.FAILURE_KIND: _kind(result),
        keys.FAILURE_REASON: (result.error_message or "a model call failed")[:_REASON_LENGTH],
        keys.FAILURE_MESSAGE: (result.error_message or "a model call failed")[:_REASON_LENGTH],
    }


def _kind(result: LoopResult) -> str:
    message = result.error_message or ""
    if result.error_status is None:
        return result.failure_kind or TRANSPORT_UNREACHABLE
    if "insufficient_quota" in message or "budget_exceeded" in message:
        return "provider_quota_exhausted"
    return "provider_unavailable"

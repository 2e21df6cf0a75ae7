"""When to try a call to a model's provider again, after how long, and when never again."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from nemo_gym.errors import RemoteError
from nemo_gym.records.codec import decode

RATE_LIMIT_ERROR_CODES = [429, 502, 503, 504, 520]
"""Statuses that say "not now"."""

RETRY_ERROR_CODES = [*RATE_LIMIT_ERROR_CODES, 404, 408, 500]
"""Statuses after which the same call may succeed."""

BACKOFF_BASE_S = 0.5
BACKOFF_CAP_S = 30.0
RETRY_AFTER_CAP_S = 60.0
"""A longer `Retry-After` is not waited for: the answer goes to the caller, who can decide."""

_SPENT = ("insufficient_quota", "budget_exceeded")
_BAD_KEY = ("invalid_api_key", "invalid_key", "api_key_invalid", "authentication_error", "token_not_found_in_db")
_BAD_KEY_PHRASES = ("invalid api key", "incorrect api key", "invalid x-api-key", "api key not valid")


class PermanentEndpointError(RemoteError):
    """The provider refuses this key or account; trying again cannot help until someone acts."""


class UnreachableEndpointError(RemoteError, ConnectionError):
    """Nothing answers at the endpoint's address, or it hung up before it answered."""


def is_retried(status: int) -> bool:
    """Return whether `status` is worth another try; 529 is how one provider says that it is overloaded."""
    return status in RETRY_ERROR_CODES or status == 529


def backoff_s(attempt: int, *, retry_after: float | None = None, jitter: random.Random | None = None) -> float:
    """Return the pause in seconds after failed attempt `attempt` (1-based).

    Exponential with full jitter, so that many callers do not come back at once; never less than the provider's
    `Retry-After`.
    """
    ceiling = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2 ** min(attempt - 1, 16))
    pause = (jitter or random).uniform(0, ceiling)
    return pause if retry_after is None else retry_after + pause


def retry_after_s(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Return the seconds that the provider asks to wait, from either form of `Retry-After`; None when it does not."""
    value = headers.get("Retry-After", "").strip()
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
        except ValueError:
            return None
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        seconds = (at - (now or datetime.now(UTC))).total_seconds()
    return None if math.isnan(seconds) else max(0.0, seconds)


def permanent_reason(status: int, body: bytes) -> str | None:
    """Return why the endpoint will go on refusing, or None when a later call may succeed."""
    if status not in (401, 403, 429):
        return None
    error = _error_of(body)
    named = {str(error[key]).lower() for key in ("code", "type") if error.get(key)}
    if status == 429:
        spent = named.intersection(_SPENT)
        return f"the account is out of budget (`{sorted(spent)[0]}`)" if spent else None
    text = str(error.get("message") or body[:2000].decode("utf-8", "replace")).lower()
    if named.intersection(_BAD_KEY) or any(phrase in text for phrase in _BAD_KEY_PHRASES):
        return "the API key is refused"
    return None


def _error_of(body: bytes) -> dict[str, Any]:
    try:
        value = decode(body)
    except ValueError:
        return {}
    if not isinstance(value, dict):
        return {}
    error = value.get("error", value)
    return error if isinstance(error, dict) else {"message": error}

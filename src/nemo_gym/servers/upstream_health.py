"""What a process knows about an endpoint: whether to ask it now, and whether to insist.

Pure but for the clock, which is an argument. A breaker opens after a run of failures and lets one call try again after
a pause; a key that is refused, or a quota that is used up, opens it for minutes, since a second try costs the same and
brings the same. A budget bounds how many tries are repeated while everything fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

FAILURES_TO_OPEN = 8
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
RETEST_S = 180.0
"""How long a refused key or a used-up quota is believed."""

_SHARE_OF_RETRIES, _MOST_RETRIES_SAVED = 0.2, 10.0

_PERMANENT_CODES = (b"insufficient_quota", b"budget_exceeded", b"invalid_api_key", b"billing_error")
_KEY_PHRASES = (b"api key", b"api-key", b"authentication_error", b"account_deactivated")
_QUOTA_PHRASES = (b"credit balance is too low", b"exceeded your current quota")


def is_permanent(status: int | None, content: bytes | None) -> bool:
    """Return whether a refusal says that the key or the quota is the problem, which seconds do not cure."""
    said = (content or b"").lower()
    if status in (401, 402, 403) and any(phrase in said for phrase in (*_PERMANENT_CODES, *_KEY_PHRASES)):
        return True
    return status in (400, 402, 403, 429) and any(code in said for code in (*_PERMANENT_CODES, *_QUOTA_PHRASES))


@dataclass(slots=True)
class Breaker:
    """One endpoint's breaker. `refusal` is the permanent refusal that opened it, None when failures did."""

    clock: Callable[[], float] = time.monotonic
    retest_s: float = RETEST_S
    refusal: Exception | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)
    _open_until: float = field(default=0.0, init=False)
    _pause_s: float = field(default=FIRST_PAUSE_S, init=False)
    _is_testing: bool = field(default=False, init=False)

    @property
    def closed_in_s(self) -> float:
        """Seconds until a call may try again; 0 when one may now."""
        if self._is_testing:
            return 1.0
        return max(0.0, self._open_until - self.clock())

    def admit(self) -> bool:
        """Return whether a call may go out; after a pause the first that asks is the test."""
        if not self._open_until:
            return True
        if self.closed_in_s:
            return False
        self._is_testing = True
        return True

    def succeeded(self) -> None:
        """Close: the endpoint has answered."""
        self.refusal, self._failures, self._open_until, self._pause_s = None, 0, 0.0, FIRST_PAUSE_S
        self._is_testing = False

    def failed(self) -> None:
        """Count a failure of the endpoint; a run of them opens the breaker, a failed test opens it for longer."""
        self._failures += 1
        if self._is_testing or self._failures >= FAILURES_TO_OPEN:
            self._is_testing = False
            self._open_until = self.clock() + self._pause_s
            self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)

    def refused(self, refusal: Exception) -> None:
        """Open for minutes: the key or the quota is the problem."""
        self.refusal, self._is_testing = refusal, False
        self._open_until = self.clock() + self.retest_s

    def abandoned(self) -> None:
        """A call ended without telling anything about the endpoint, because its client left."""
        self._is_testing = False


@dataclass(slots=True)
class RetryBudget:
    """Every call earns a part of a retry, every retry costs a whole one."""

    _saved: float = field(default=_MOST_RETRIES_SAVED, init=False)

    def earn(self) -> None:
        """Note a call."""
        self._saved = min(self._saved + _SHARE_OF_RETRIES, _MOST_RETRIES_SAVED)

    def spend(self) -> bool:
        """Return whether one more try may be made."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True

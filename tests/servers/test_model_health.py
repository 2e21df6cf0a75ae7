"""The breaker of an endpoint and the budget of retries, by the clock of the test."""

from __future__ import annotations

from nemo_gym.servers.upstream_health import (
    FAILURES_TO_OPEN,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    RETEST_S,
    Breaker,
    RetryBudget,
    is_permanent,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(clock=clock)
    for _ in range(FAILURES_TO_OPEN):
        assert breaker.admit()
        breaker.failed()
    return breaker


def test_a_run_of_failures_opens_and_one_call_tests_after_a_pause() -> None:
    clock = Clock()
    breaker = opened(clock)
    assert not breaker.admit()
    clock.now += FIRST_PAUSE_S
    assert breaker.admit()
    assert not breaker.admit(), "one call is the test, the others wait for it"
    breaker.succeeded()
    assert breaker.admit()


def test_a_failed_test_doubles_the_pause_up_to_a_limit() -> None:
    clock = Clock()
    breaker = opened(clock)
    pauses = []
    for _ in range(6):
        pauses.append(breaker.closed_in_s)
        clock.now += breaker.closed_in_s
        assert breaker.admit()
        breaker.failed()
    assert pauses[:3] == [FIRST_PAUSE_S, FIRST_PAUSE_S * 2, FIRST_PAUSE_S * 4]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_a_success_between_failures_keeps_it_closed() -> None:
    breaker = Breaker(clock=Clock())
    for _ in range(FAILURES_TO_OPEN * 2):
        breaker.failed()
        breaker.succeeded()
    assert breaker.admit()


def test_a_refused_key_is_tested_again_after_minutes() -> None:
    clock = Clock()
    breaker = Breaker(clock=clock)
    breaker.refused(ValueError("key"))
    clock.now += RETEST_S - 1
    assert not breaker.admit()
    clock.now += 1
    assert breaker.admit()
    breaker.abandoned()
    assert breaker.admit(), "a test whose client left is made by the next call"
    breaker.succeeded()
    assert breaker.refusal is None


def test_the_budget_allows_a_few_retries_and_then_one_in_five() -> None:
    budget = RetryBudget()
    assert sum(budget.spend() for _ in range(50)) == 10
    allowed = 0
    for _ in range(100):
        budget.earn()
        allowed += budget.spend()
    assert 18 <= allowed <= 20


def test_only_words_about_the_key_or_the_quota_are_permanent() -> None:
    assert is_permanent(401, b'{"error": {"message": "Incorrect API key provided"}}')
    assert is_permanent(401, b'{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}')
    assert is_permanent(429, b'{"error": {"code": "insufficient_quota"}}')
    assert is_permanent(400, b'{"error": {"message": "Your credit balance is too low to access the API"}}')
    assert not is_permanent(429, b'{"error": {"message": "slow down"}}')
    assert not is_permanent(403, b"<html>blocked</html>")
    assert not is_permanent(500, b"api key")
    assert not is_permanent(400, None)

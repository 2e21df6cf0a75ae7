"""`NeMoGymAsyncOpenAI`: bounded retries, refused connections named at once, a refused key believed for a while."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from nemo_gym.openai_utils import NeMoGymAsyncOpenAI, PermanentEndpointError, UnreachableEndpointError
from nemo_gym.servers.http_session import close_global_aiohttp_client
from nemo_gym.servers.openai_types import client as client_module
from nemo_gym.servers.openai_types.retrying import backoff_s, permanent_reason, retry_after_s

Answer = Callable[[web.Request], web.Response]


class Upstream:
    """A real HTTP server that answers from a script and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[tuple[str, Any, str]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.path, body, request.headers.get("Authorization", "")))
        answer = self.answers.pop(0) if self.answers else (lambda _: web.json_response({"ok": True}))
        return answer(request)

    def say(self, status: int, body: Any, **headers: str) -> None:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers.append(lambda _: web.json_response(body, status=status, headers=names))

    def hang_up(self) -> None:
        def cut(request: web.Request) -> web.Response:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        self.answers.append(cut)


@pytest_asyncio.fixture
async def upstream() -> AsyncIterator[Upstream]:
    served = Upstream()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", served.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    served.url = f"http://127.0.0.1:{port}/v1"
    yield served
    await close_global_aiohttp_client()
    await runner.cleanup()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Collect the pauses instead of waiting for them."""
    seen: list[float] = []

    async def pause(seconds: float) -> None:
        seen.append(seconds)

    monkeypatch.setattr(client_module, "_pause", pause)
    return seen


def client(upstream: Upstream, **settings: Any) -> NeMoGymAsyncOpenAI:
    return NeMoGymAsyncOpenAI(base_url=upstream.url, api_key="k", **settings)


async def test_each_call_reaches_its_path_with_the_bearer_key(upstream: Upstream) -> None:
    caller = client(upstream)
    assert await caller.create_response(input="x") == {"ok": True}
    await caller.create_chat_completion(messages=[])
    await caller.create_completion(prompt="x")
    await caller.create_models()
    await caller.create_tokenize(prompt="x")
    assert [path for path, _, _ in upstream.requests] == [
        "/v1/responses",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/tokenize",
    ]
    assert upstream.requests[0][1:] == ({"input": "x"}, "Bearer k")


@pytest.mark.parametrize("status", [404, 408, 429, 500, 502, 503, 504, 520, 529])
async def test_a_passing_status_is_tried_again(upstream: Upstream, pauses: list[float], status: int) -> None:
    upstream.say(status, {"error": {"message": "later"}})
    assert await client(upstream).create_response(input="x") == {"ok": True}
    assert len(pauses) == 1


async def test_the_last_answer_is_raised_with_its_body(upstream: Upstream, pauses: list[float]) -> None:
    for _ in range(3):
        upstream.say(503, {"error": "busy"})
    with pytest.raises(aiohttp.ClientResponseError) as caught:
        await client(upstream, internal=True).create_response(input="x")
    assert caught.value.status == 503
    assert caught.value.response_content == b'{"error": "busy"}'  # type: ignore[attr-defined]
    assert len(upstream.requests) == 3


async def test_a_bad_request_is_tried_once(upstream: Upstream, pauses: list[float]) -> None:
    upstream.say(400, {"error": {"message": "bad"}})
    with pytest.raises(aiohttp.ClientResponseError):
        await client(upstream).create_response(input="x")
    assert (len(upstream.requests), pauses) == (1, [])


async def test_retry_after_is_waited_for(upstream: Upstream, pauses: list[float]) -> None:
    upstream.say(429, {}, Retry_After="7")
    await client(upstream).create_response(input="x")
    assert pauses[0] >= 7


async def test_a_retry_after_beyond_the_cap_goes_to_the_caller(upstream: Upstream, pauses: list[float]) -> None:
    upstream.say(429, {}, Retry_After="3600")
    with pytest.raises(aiohttp.ClientResponseError):
        await client(upstream).create_response(input="x")
    assert pauses == []


async def test_a_refused_connection_is_reported_at_once_with_the_url(pauses: list[float]) -> None:
    caller = NeMoGymAsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k")
    with pytest.raises(UnreachableEndpointError, match=r"http://127\.0\.0\.1:9/v1/responses"):
        await caller.create_response(input="x")
    assert pauses == []
    await close_global_aiohttp_client()


async def test_a_lost_connection_is_tried_a_bounded_number_of_times(upstream: Upstream, pauses: list[float]) -> None:
    upstream.hang_up()
    assert await client(upstream).create_response(input="x") == {"ok": True}
    for _ in range(10):
        upstream.hang_up()
    with pytest.raises(UnreachableEndpointError, match="broke off 2 times"):
        await client(upstream, max_connection_retries=1).create_response(input="x")


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "invalid_api_key"), (403, "invalid_api_key"), (429, "insufficient_quota"), (429, "budget_exceeded")],
)
async def test_a_permanent_refusal_trips_the_client(
    upstream: Upstream, pauses: list[float], monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    caller = client(upstream)
    upstream.say(status, {"error": {"code": code, "message": "no"}})
    for _ in range(2):
        with pytest.raises(PermanentEndpointError):
            await caller.create_response(input="x")
    assert len(upstream.requests) == 1
    monkeypatch.setattr(client_module, "REPROBE_AFTER_S", 0.0)
    assert await caller.create_response(input="x") == {"ok": True}


async def test_an_answer_that_is_not_json_is_an_error_with_the_url(upstream: Upstream) -> None:
    upstream.answers.append(lambda _: web.Response(text="<html>"))
    with pytest.raises(Exception, match="not JSON"):
        await client(upstream).create_response(input="x")


def test_the_key_is_not_in_the_repr() -> None:
    assert "secret" not in repr(NeMoGymAsyncOpenAI(base_url="http://x", api_key="secret"))


def test_backoff_grows_is_capped_and_never_undercuts_retry_after() -> None:
    jitter = random.Random(0)
    for attempt in range(1, 100):
        assert 0 <= backoff_s(attempt, jitter=jitter) <= min(30.0, 0.5 * 2 ** (attempt - 1))
        assert backoff_s(attempt, retry_after=3.0, jitter=jitter) >= 3.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        ("0.25", 0.25),
        ("-4", 0.0),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("Thu, 01 Jan 2026 00:00:10 GMT", 10.0),
        ("Thu, 01 Jan 2025 00:00:10 GMT", 0.0),
    ],
)
def test_both_forms_of_retry_after_are_read(value: str, seconds: float | None) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert retry_after_s({"Retry-After": value}, now=now) == seconds


@pytest.mark.parametrize("body", [b"", b"[]", b"no", b'{"error": "no"}', b'{"error": {"code": "slow_down"}}'])
def test_an_ordinary_refusal_is_not_permanent(body: bytes) -> None:
    assert permanent_reason(429, body) is None
    assert permanent_reason(403, body) is None
    assert permanent_reason(500, b'{"error": {"code": "insufficient_quota"}}') is None

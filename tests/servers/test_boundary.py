from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.testclient import TestClient

from nemo_gym.errors import ConfigError, RemoteError
from nemo_gym.servers import boundary
from nemo_gym.servers.access import SERVER_TOKEN_ENV, TokenMiddleware, check_binding, server_token_headers
from nemo_gym.servers.boundary import DisconnectMiddleware, ExceptionMiddleware
from nemo_gym.servers.fault import place_of
from nemo_gym.servers.http import raise_for_status, request


class TwoFields(BaseModel):
    balance: int
    names: list[str]


class Watched:
    def __init__(self) -> None:
        self.started, self.stopped, self.finished = threading.Event(), threading.Event(), threading.Event()
        self.watching = threading.Event()

    async def work(self) -> None:
        self.started.set()
        try:
            await asyncio.sleep(30)
            self.finished.set()
        except asyncio.CancelledError:
            self.stopped.set()
            raise


def make_app(watched: Watched | None = None) -> FastAPI:
    app = FastAPI()
    watched = watched or Watched()

    @app.post("/fail")
    async def fail() -> None:
        raise RuntimeError("no such luck")

    @app.post("/cancelled")
    async def cancelled() -> None:
        raise asyncio.CancelledError

    @app.post("/slow")
    async def slow(body: dict[str, Any]) -> None:
        await watched.work()

    @app.post("/slow-without-reading")
    async def slow_without_reading() -> None:
        await watched.work()

    @app.post("/stream")
    async def stream() -> StreamingResponse:
        async def chunks() -> Any:
            yield b"first"
            await watched.work()

        return StreamingResponse(chunks())

    @app.post("/echo")
    async def echo(request: Request) -> int:
        watched.started.set()
        return len(await request.body())

    @app.post("/echo-once-watched")
    async def echo_once_watched(request: Request) -> int:
        watched.started.set()
        while not watched.watching.is_set():
            await asyncio.sleep(0.005)
        return len(await request.body())

    app.add_middleware(ExceptionMiddleware, name="tester")
    app.add_middleware(DisconnectMiddleware)
    return app


def test_an_unhandled_exception_is_500_with_its_repr_as_a_json_string() -> None:
    answer = TestClient(make_app()).post("/fail")
    assert answer.status_code == 500
    assert answer.json() == "RuntimeError('no such luck')"


@pytest.mark.parametrize("error", [ConfigError("no such key"), RemoteError("no such reply", server="s")])
def test_an_exception_of_this_package_is_told_as_every_other(error: Exception) -> None:
    assert boundary.describe(error) == repr(error)


class Verdict(BaseModel):
    reward: float
    notes: dict[str, int] = {}


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ({}, "`reward`: Field required"),
        ({"reward": "good"}, "`reward`: Input should be a valid number"),
        ({"reward": 1.0, "notes": {"a": "x"}}, "`notes.a`: Input should be a valid integer"),
        (None, "Input should be a valid dictionary"),
        ([1.0], "Input should be a valid dictionary"),
        ({"reward": 1.0, "notes": dict.fromkeys("abcdefg", "x")}, "; and 2 more"),
    ],
)
def test_a_handler_that_returns_something_else_than_it_says_is_told_what(returned: Any, said: str) -> None:
    """A `verify` or a tool with a return annotation; FastAPI's exception alone is `ResponseValidationError()`."""
    app = FastAPI()

    @app.post("/verify")
    async def verify() -> Verdict:
        return returned  # type: ignore[no-any-return]

    app.add_middleware(ExceptionMiddleware, name="tester")
    answer = TestClient(app).post("/verify")
    assert answer.status_code == 500
    assert answer.json().startswith(f"`verify` (in `{__file__}`) returned something else than its annotation says: ")
    assert said in answer.json()
    assert "\n" not in answer.json()


def test_a_handler_that_was_cancelled_from_inside_is_500_and_says_so() -> None:
    answer = TestClient(make_app()).post("/cancelled")
    assert (answer.status_code, answer.json()) == (500, "Request was cancelled")


async def _asked_of_a_server_that_is_stopped(
    serve: Any, app: FastAPI, watched: Watched, path: str
) -> tuple[int, bytes]:
    served = serve(app)
    async with aiohttp.ClientSession() as session:
        asked = asyncio.create_task(session.post(served.url + path, json={}))
        await asyncio.to_thread(watched.started.wait, 10)
        stopping = asyncio.create_task(asyncio.to_thread(served.stop))
        try:
            async with await asked as answer:
                assert answer.headers["x-ng-failed-server"] == "tester"
                return answer.status, await answer.read()
        finally:
            await stopping
            assert watched.stopped.is_set()


async def test_a_request_that_ends_with_its_server_is_503_and_says_so(serve: Any) -> None:
    """What becomes of a rollout is then open, as after a lost connection; 500 would say that its agent is broken."""
    watched = Watched()
    status, said = await _asked_of_a_server_that_is_stopped(serve, make_app(watched), watched, "/slow")
    assert status == 503
    assert json.loads(said) == "`tester` was stopped while it worked on this request"


async def test_a_stopped_server_answers_in_the_shape_of_its_routes(serve: Any) -> None:
    def shaped(_scope: Any, error: BaseException, description: str) -> JSONResponse:
        return JSONResponse({"error": {"message": description, "kind": type(error).__name__}}, 500)

    watched, app = Watched(), FastAPI()

    @app.post("/slow")
    async def slow() -> None:
        await watched.work()

    app.add_middleware(ExceptionMiddleware, name="tester", answer=shaped)
    app.add_middleware(DisconnectMiddleware)
    status, said = await _asked_of_a_server_that_is_stopped(serve, app, watched, "/slow")
    assert status == 503
    assert json.loads(said)["error"]["message"] == "`tester` was stopped while it worked on this request"


async def test_an_answer_that_has_begun_is_cut_when_its_server_is_stopped(serve: Any) -> None:
    watched = Watched()
    served = serve(make_app(watched))
    async with aiohttp.ClientSession() as session, session.post(f"{served.url}/stream") as answer:
        assert await answer.content.readexactly(5) == b"first"
        stopping = asyncio.create_task(asyncio.to_thread(served.stop))
        with pytest.raises(aiohttp.ClientError):
            await answer.read()
        await stopping


async def test_an_inner_servers_error_names_the_call_and_keeps_its_words(serve: Any, close_session: None) -> None:
    inner = serve(make_app())
    outer = FastAPI()

    @outer.post("/outer")
    async def call() -> None:
        await raise_for_status(await request("POST", f"{inner.url}/fail"))

    outer.add_middleware(ExceptionMiddleware, name="outer")
    served = serve(outer)
    answer = await request("POST", f"{served.url}/outer")
    said = json.loads(await answer.read())
    assert answer.status == 500
    assert f"server `tester` failed: `{inner.url}/fail` answered 500" in said
    assert "\n" not in said
    assert "no such luck" in said
    assert f"(at `{__file__}:{_line_of('no such luck')}`" in said
    assert answer.headers["x-ng-failed-server"] == "tester"


async def test_servers_in_a_row_name_the_one_that_failed_once(serve: Any, close_session: None) -> None:
    url = f"{serve(make_app()).url}/fail"
    for name in ("second", "third"):
        passing = FastAPI()

        @passing.post("/call")
        async def call(url: str = url) -> None:
            await raise_for_status(await request("POST", url))

        passing.add_middleware(ExceptionMiddleware, name=name)
        last, url = url, f"{serve(passing).url}/call"
    answer = await request("POST", url)
    said = json.loads(await answer.read())
    assert said.startswith("server `tester` failed: `http")
    assert said.count("failed:") == said.count("answered 500") == said.count("(at `") == 1
    assert last not in said
    assert answer.headers["x-ng-failed-server"] == "tester"
    assert "x-ng-failed-at" not in answer.headers, "the words that are passed on say it"


def _line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_the_place_of_a_fault_is_the_innermost_line_of_own_code() -> None:
    def raised(work: Any) -> BaseException:
        try:
            work()
        except Exception as error:
            return error
        raise AssertionError("nothing was raised")

    line = _line_of("json.loads(" + '"{")')
    place = place_of(raised(lambda: json.loads("{")))
    assert place is not None
    assert place.startswith(f"at `{__file__}:{line}`"), "and not a line of the library that raised"
    assert not (place_of(ValueError("never raised")) or "").startswith("at ")


@pytest.mark.parametrize(
    ("route", "hint"),
    [
        ("/seed_session", " (the row may be one of another environment)"),
        ("/ng-rollout/0-0/verify", " (the row may be one of another environment)"),
        ("/other", ""),
    ],
)
async def test_a_refused_body_is_told_by_its_fields_and_not_quoted(
    route: str, hint: str, serve: Any, close_session: None
) -> None:
    inner_app, outer = FastAPI(), FastAPI()

    @inner_app.post(route)
    async def take(body: TwoFields) -> None: ...

    inner = serve(inner_app)

    @outer.post("/outer")
    async def call() -> None:
        await raise_for_status(await request("POST", f"{inner.url}{route}", json={"names": [1], "text": "x" * 5000}))

    outer.add_middleware(ExceptionMiddleware, name="outer")
    answer = await request("POST", f"{serve(outer).url}/outer")
    problems = "`balance`: Field required; `names.0`: Input should be a valid string"
    assert json.loads(await answer.read()) == f"`{inner.url}{route}` answered 422: {problems}{hint}"


@pytest.mark.parametrize("path", ["/slow", "/slow-without-reading", "/stream"])
async def test_a_client_that_leaves_stops_its_handler(path: str, serve: Any, until: Any) -> None:
    watched = Watched()
    served = serve(make_app(watched))
    async with aiohttp.ClientSession() as session:
        call = asyncio.create_task(session.post(f"{served.url}{path}", json={"a": 1}))
        await until(watched.started.is_set)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    await until(watched.stopped.is_set)
    assert not watched.finished.is_set()


@pytest.mark.parametrize("path", ["/echo", "/echo-once-watched"])
async def test_a_body_that_arrives_slowly_is_read_whole(
    path: str, serve: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch for a client that left becomes due in the middle of the body: while the handler reads it, or before."""
    watched = Watched()
    begin = boundary._Watch.expire

    def noting(watch: Any) -> None:
        begin(watch)
        watched.watching.set()

    monkeypatch.setattr(boundary._Watch, "expire", noting)
    served = serve(make_app(watched))

    async def slowly() -> Any:
        yield b"x" * 1000
        await until(watched.watching.is_set)
        for _ in range(5):
            yield b"x" * 1000

    async with aiohttp.ClientSession() as session, session.post(f"{served.url}{path}", data=slowly()) as answer:
        assert await answer.json() == 6000


def test_the_liveness_routes_are_open_and_everything_else_needs_the_token() -> None:
    app = FastAPI()

    @app.get("/{rest:path}")
    async def anything(rest: str) -> str:
        return "in"

    client = TestClient(TokenMiddleware(app, token="secret"))
    assert client.get("/healthz").status_code == 200
    assert client.get("/v1/models").status_code == 401
    assert client.get("/v1/models", headers={"Authorization": "Bearer wrong"}).status_code == 401
    for headers in ({"Authorization": "Bearer secret"}, {"x-api-key": "secret"}, {"x-ng-server-token": "secret"}):
        assert client.get("/v1/models", headers=headers).status_code == 200


def test_listening_beyond_this_machine_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    check_binding("127.0.0.1")
    check_binding("localhost")
    check_binding("::1")
    with pytest.raises(ValueError, match=SERVER_TOKEN_ENV):
        check_binding("0.0.0.0")
    monkeypatch.setenv(SERVER_TOKEN_ENV, "secret")
    check_binding("0.0.0.0")
    assert server_token_headers() == {"x-ng-server-token": "secret"}

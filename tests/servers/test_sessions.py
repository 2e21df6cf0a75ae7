from __future__ import annotations

import pytest
from fastapi import FastAPI, Request
from starlette.testclient import TestClient

from nemo_gym.servers.sessions import SESSION_ID_KEY, SIGNING_KEY_ENV, SessionMiddleware, server_signing_key


def make_app(*, only_used: bool = False, key: str | None = None) -> FastAPI:
    app = FastAPI()

    @app.get("/id")
    async def session_id(request: Request) -> str | None:
        return request.session.get(SESSION_ID_KEY)

    @app.get("/keep/{value}")
    async def keep(request: Request, value: str) -> None:
        request.session["kept"] = value

    @app.get("/kept")
    async def kept(request: Request) -> str | None:
        return request.session.get("kept")

    @app.get("/lose")
    async def lose(request: Request) -> None:
        request.session.pop(SESSION_ID_KEY)

    @app.get("/plain")
    async def plain() -> None:
        return None

    app.add_middleware(
        SessionMiddleware, cookie="S___one", key=key or server_signing_key("S___one"), only_used=only_used
    )
    return app


def test_the_first_answer_sets_a_cookie_and_later_calls_share_its_session() -> None:
    with TestClient(make_app()) as client:
        first = client.get("/id")
        cookie = first.headers["set-cookie"]
        assert cookie.startswith("S___one=")
        for attribute in ("path=/", "httponly", "samesite=lax", "Max-Age=1209600"):
            assert attribute in cookie
        assert client.get("/id").json() == first.json()


def test_two_clients_have_different_sessions() -> None:
    app = make_app()
    assert TestClient(app).get("/id").json() != TestClient(app).get("/id").json()


def test_what_a_handler_writes_is_there_on_the_next_call() -> None:
    with TestClient(make_app()) as client:
        client.get("/keep/treasure")
        assert client.get("/kept").json() == "treasure"


def test_a_session_that_lost_its_id_gets_a_new_one() -> None:
    with TestClient(make_app()) as client:
        before = client.get("/id").json()
        client.get("/lose")
        assert client.get("/id").json() not in (None, before)


def test_the_cookie_is_sent_with_every_answer() -> None:
    with TestClient(make_app()) as client:
        client.get("/id")
        assert "set-cookie" in client.get("/plain").headers


def test_a_forged_cookie_opens_a_new_session() -> None:
    theirs = TestClient(make_app(key="guessed")).get("/id")
    with TestClient(make_app()) as client:
        client.cookies.set("S___one", theirs.cookies["S___one"])
        assert client.get("/id").json() != theirs.json()


def test_a_server_that_rarely_uses_sessions_sends_no_cookie_unless_one_matters() -> None:
    with TestClient(make_app(only_used=True)) as client:
        assert "set-cookie" not in client.get("/plain").headers
        assert "set-cookie" in client.get("/id").headers
        assert "set-cookie" in client.get("/plain").headers, "this client has a session by now"


def test_signing_keys_differ_by_server_and_by_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIGNING_KEY_ENV, "first launch")
    one, other = server_signing_key("A___a"), server_signing_key("B___b")
    monkeypatch.setenv(SIGNING_KEY_ENV, "second launch")
    assert len({one, other, server_signing_key("A___a")}) == 3


def test_a_process_without_a_launcher_makes_its_own_key_and_leaves_it_to_its_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SIGNING_KEY_ENV, raising=False)
    assert server_signing_key("A___a") == server_signing_key("A___a")

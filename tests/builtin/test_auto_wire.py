"""`wire: auto` of `openai_model`: which route is asked while it is being found out, and what is remembered of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from backends import BODIES, KEY, PATHS, client_of, front, said_in, text_in
from served_models import last_line, serving

from nemo_gym.builtin.responses_api_models.openai_model import wires
from nemo_gym.servers import upstream_client

CHAT, RESPONSES = PATHS["chat"], PATHS["responses"]
HTML = (200, b"<html>garbage</html>", {"Content-Type": "text/html"})
BUSY = (429, {"error": {"message": "slow down"}}, {})
BROKEN = (500, {"error": {"message": "boom"}}, {})
WARMING = (503, b"not yet", {})
CALLS = 6


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(upstream_client, "_FIRST_PAUSE_S", 0.002)
    caplog.set_level(logging.INFO)


async def hang(_request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(30)
    raise AssertionError("nobody waits so long")


async def cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def at_once(url: str, calls: int = CALLS) -> list[tuple[int, dict[str, Any]]]:
    """Ask in Responses, `calls` times at once, each in a rollout of its own."""
    async with aiohttp.ClientSession() as session:

        async def ask(number: int) -> tuple[int, dict[str, Any]]:
            path = f"/ng-rollout/r{number}-0{RESPONSES}"
            async with session.post(url + path, json=BODIES["responses"]) as answer:
                return answer.status, await answer.json()

        return list(await asyncio.gather(*(ask(number) for number in range(calls))))


def findings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == wires.__name__]


@pytest.mark.parametrize(
    "probe", [HTML, BUSY, BROKEN, WARMING, hang, cut, None], ids=["html", "429", "500", "503", "hang", "cut", "fine"]
)
async def test_calls_at_once_are_answered_on_the_route_that_is_there_whatever_the_probe_met(
    backend, caplog, monkeypatch, probe
) -> None:
    monkeypatch.setattr(wires.probe, "__kwdefaults__", {"timeout_s": 0.3})
    backend.answer(CHAT, said_in("chat"))
    if probe is not None:
        backend.answer_probes(CHAT, probe if isinstance(probe, tuple) else (200, probe, {}))
    with serving(front("responses", backend.url, wire="auto").served_app()) as url:
        answers = await at_once(url)
        assert [text_in("responses", answer) for _, answer in answers] == ["forty-two"] * CALLS
        probed = backend.probed
        assert text_in("responses", (await at_once(url, 1))[0][1]) == "forty-two"
    assert backend.probed == probed, "a call that was answered there tells where the next one goes"
    assert sum("serves chat" in finding for finding in findings(caplog)) == 1


@pytest.mark.parametrize(("first", "status"), [(HTML, 502), (BROKEN, 500), (BUSY, 429)], ids=["html", "500", "429"])
async def test_bad_first_answers_fail_calls_with_their_own_reason_and_no_others(
    backend, tmp_path, first, status
) -> None:
    """Each call tries the route that is there; none ends with the 404 of the one that is not."""
    backend.answer(CHAT, *[first] * 3, said_in("chat"))
    server = front("responses", backend.url, captures=tmp_path, wire="auto", max_http_attempts=1)
    with serving(server.served_app()) as url:
        answers = await at_once(url)
        assert sorted(code for code, _ in answers) == sorted([status] * 3 + [200] * (CALLS - 3))
        assert (await at_once(url, 1))[0][0] == 200
    for number in range(CALLS):
        tried = last_line(tmp_path, f"r{number}-0")["upstream"]
        assert tried[-1]["url"].endswith("/chat/completions")


async def test_a_refusal_that_comes_after_the_routes_were_found_goes_to_the_route_that_is_there(backend) -> None:
    """The race: a call that began before the finding, and whose 404 arrives behind it."""
    release = asyncio.Event()
    loop = asyncio.get_running_loop()
    late: list[Callable[[], None]] = []

    async def missing(_request: web.Request) -> web.StreamResponse:
        if not late:  # the first to come is the last to be told
            held = asyncio.Event()
            late.append(held.set)
            late_loop.append(asyncio.get_running_loop())
            loop.call_soon_threadsafe(release.set)
            await held.wait()
        return web.json_response({"detail": "Not Found"}, status=404)

    late_loop: list[asyncio.AbstractEventLoop] = []
    backend.answer(RESPONSES, (404, missing, {}))
    backend.answer_probes(RESPONSES, (404, {"detail": "Not Found"}, {}))
    backend.answer(CHAT, said_in("chat"))
    with serving(front("responses", backend.url, wire="auto").served_app()) as url:
        slow = asyncio.create_task(at_once(url, 1))
        await release.wait()
        assert (await at_once(url, 1))[0][0] == 200
        late_loop[0].call_soon_threadsafe(late[0])
        assert (await slow)[0][0] == 200
    assert backend.probed == 3


async def test_a_call_that_leaves_while_it_probes_stops_nobody(backend) -> None:
    asked, go_on = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    async def slowly(_request: web.Request) -> web.StreamResponse:
        held = asyncio.Event()
        own = asyncio.get_running_loop()
        go_on.append(lambda: own.call_soon_threadsafe(held.set))
        loop.call_soon_threadsafe(asked.set)
        await held.wait()
        return web.json_response({"error": {"message": "a field is missing"}}, status=400)

    backend.answer(CHAT, said_in("chat"))
    backend.answer_probes(CHAT, (200, slowly, {}))
    with serving(front("responses", backend.url, wire="auto").served_app()) as url:
        leaver = asyncio.create_task(at_once(url, 1))
        await asked.wait()
        others = asyncio.create_task(at_once(url, 3))
        async with asyncio.timeout(20):
            while backend.missed[RESPONSES] < 4:
                await asyncio.sleep(0.01)
        leaver.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leaver
        go_on[0]()
        assert [code for code, _ in await others] == [200] * 3
    assert len(go_on) == 1, "the routes were looked for once"


async def test_an_endpoint_that_is_not_up_yet_is_looked_at_again(backend, caplog) -> None:
    for path in PATHS.values():
        backend.answer_probes(path, (404, b"", {}), WARMING, WARMING, (400, {"error": {"message": "empty"}}, {}))
    with serving(front("responses", backend.url, wire="auto").served_app()) as url:
        assert (await at_once(url, 1))[0][0] == 404
        assert "serves no known route" in findings(caplog)[-1]
        for _ in range(2):
            assert (await at_once(url, 1))[0][0] == 404
            assert "could not be found out" in findings(caplog)[-1]
        assert len(findings(caplog)) == 2, "each finding is said once"
        backend.answer(CHAT, said_in("chat"))
        backend.answer_probes(RESPONSES, (404, b"", {}))
        assert (await at_once(url, 1))[0][0] == 200


async def test_an_endpoint_with_several_routes_keeps_each_client_on_its_own(backend, caplog) -> None:
    for dialect in ("chat", "messages"):
        backend.answer(PATHS[dialect], said_in(dialect))
    with serving(front("responses", backend.url, wire="auto").served_app()) as url:
        assert {code for code, _ in await at_once(url)} == {200}
        async with aiohttp.ClientSession() as session:
            for dialect in ("chat", "messages"):
                async with session.post(url + PATHS[dialect], json=BODIES[dialect]) as answer:
                    assert text_in(dialect, await answer.json()) == "forty-two"
    assert [path for path, _, _ in backend.asked] == [CHAT] * (CALLS + 1) + [PATHS["messages"]]
    assert len(findings(caplog)) == 1
    assert "serves chat, messages" in findings(caplog)[0]


def test_an_unknown_model_on_the_route_that_is_there_is_told_as_that(backend) -> None:
    refusal = {"error": {"message": "no such model", "code": "model_not_found"}}
    backend.answer(CHAT, (404, refusal, {}))
    with client_of(front("responses", backend.url, wire="auto")) as http:
        for _ in range(2):
            answer = http.post(RESPONSES, json=BODIES["responses"])
            assert (answer.status_code, answer.json()["error"]["message"]) == (404, "no such model")
    assert [path for path, _, _ in backend.asked] == [CHAT] * 2


@pytest.mark.parametrize(
    ("refusal", "served"),
    [
        ({"error": {"message": "model '' not found, try pulling it first"}}, True),
        ({"error": {"message": "not deployed", "code": "model_not_found"}}, True),
        ({"type": "error", "error": {"type": "not_found_error", "message": "model: is missing"}}, True),
        ({"error": "Model not found"}, True),
        ({"error": {"message": f"Invalid URL (POST {CHAT})", "code": "unknown_url"}}, False),
        ({"detail": "Not Found"}, False),
        (b"404 page not found, no model here", False),
        (["model"], False),
    ],
)
async def test_a_route_that_misses_the_model_before_all_else_is_there(backend, refusal: Any, served: bool) -> None:
    backend.answer(CHAT, said_in("chat"))
    backend.answer_probes(CHAT, (404, refusal, {}))
    with serving(front("responses", backend.url, wire="auto").served_app()) as url:
        [(status, _)] = await at_once(url, 1)
    assert status == (200 if served else 404)


async def test_a_path_with_the_word_in_it_is_no_word_about_the_model(backend) -> None:
    path = f"/models/m{CHAT}"
    backend.answer(path, said_in("chat"))
    backend.answer_probes(path, (404, {"error": {"message": f"Cannot POST {path}"}}, {}))
    base_url = f"{backend.url}/models/m/v1"
    with serving(front("responses", "", wire="auto", openai_base_url=base_url).served_app()) as url:
        assert (await at_once(url, 1))[0][0] == 404


def test_a_user_in_the_url_is_sent_with_the_probe_and_shown_nowhere(backend, caplog) -> None:
    backend.answer(CHAT, said_in("chat"), HTML)
    url = backend.url.replace("http://", "http://user:pass-word@")
    with client_of(front("responses", url, wire="auto")) as http:
        assert http.post(RESPONSES, json=BODIES["responses"]).status_code == 200
        refused = http.post(RESPONSES, json=BODIES["responses"])
    assert refused.status_code == 502
    assert "pass-word" not in refused.text + caplog.text
    assert KEY not in caplog.text

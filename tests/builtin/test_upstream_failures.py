"""What goes wrong behind a model server: what the client sees, what the record says, and how soon."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from backends import BODIES, DIALECTS, KEY, PATHS, accumulated, client_of, error_of, front, stream_of
from served_models import last_line, serving

from nemo_gym.servers import upstream_client

PAIRS = list(itertools.product(DIALECTS, DIALECTS))
STREAMED = {"Content-Type": "text/event-stream"}


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_client, "_FIRST_PAUSE_S", 0.002)


def refusal(wire: str, message: str) -> dict[str, Any]:
    if wire == "messages":
        return {"type": "error", "error": {"type": "its_own_type", "message": message}}
    return {"error": {"message": message, "type": "its_own_type", "param": None, "code": "its_own_code"}}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("client", "wire"), PAIRS)
def test_a_refusal_keeps_its_status_words_and_retry_after(backend, tmp_path, client, wire, stream) -> None:
    cases = {400: ("client_error", 1), 401: ("auth", 1), 404: ("not_found", 1), 429: ("rate_limit", 2)}
    cases |= {500: ("upstream_error", 2), 529: ("overloaded", 2)}
    with client_of(front(wire, backend.url, captures=tmp_path, max_http_attempts=2)) as http:
        for status, (category, tries) in cases.items():
            backend.answer(PATHS[wire], (status, refusal(wire, f"it is {status}"), {"Retry-After": "0"}))
            begun = time.monotonic()
            body = {**BODIES[client], "stream": stream}
            answer = http.post(f"/ng-rollout/r{status}-0{PATHS[client]}", json=body)
            assert time.monotonic() - begun < 5
            assert (answer.status_code, answer.headers["x-upstream-status"]) == (status, str(status))
            assert answer.headers["retry-after"] == "0"
            error = error_of(client, answer.json())
            assert error["message"] == f"it is {status}"
            if client == wire:
                assert error["type"] == "its_own_type"
            line = last_line(tmp_path, f"r{status}-0")
            assert (line["client_status_code"], line["upstream_status_code"]) == (status, status)
            assert line["error_category"] == category
            assert [attempt["status"] for attempt in line["upstream"]] == [status] * tries


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("client", "wire"), PAIRS)
def test_nobody_at_the_url_is_said_at_once_with_the_url(tmp_path, client, wire, stream) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://user:{KEY}@127.0.0.1:{probe.getsockname()[1]}"
        with client_of(front(wire, url, captures=tmp_path)) as http:
            begun = time.monotonic()
            answer = http.post(f"/ng-rollout/r-0{PATHS[client]}", json={**BODIES[client], "stream": stream})
            assert time.monotonic() - begun < 3
    assert answer.status_code == 502
    message = error_of(client, answer.json())["message"]
    assert f"127.0.0.1:{probe_port(url)}" in message
    assert KEY not in message
    line = last_line(tmp_path, "r-0")
    assert (line["error_category"], line["client_status_code"], len(line["upstream"])) == ("connection", None, 1)
    assert line["upstream"][0]["error"] == "ClientConnectorError"


def probe_port(url: str) -> str:
    return url.rpartition(":")[2]


@pytest.mark.parametrize(("client", "wire"), PAIRS)
def test_a_backend_that_hangs_ends_with_the_idle_limit(backend, tmp_path, client, wire) -> None:
    async def hang(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(20)
        raise AssertionError("nobody waits so long")

    backend.answer(PATHS[wire], hang)
    with client_of(front(wire, backend.url, captures=tmp_path, stream_idle_timeout_s=0.2)) as http:
        begun = time.monotonic()
        answer = http.post(f"/ng-rollout/r-0{PATHS[client]}", json=BODIES[client])
        assert time.monotonic() - begun < 3
    assert answer.status_code == 504
    assert "silent for too long" in error_of(client, answer.json())["message"]
    line = last_line(tmp_path, "r-0")
    assert (line["error_category"], line["upstream"][0]["status"]) == ("timeout", None)


@pytest.mark.parametrize("how", ["reset", "silence"])
@pytest.mark.parametrize(("client", "wire"), PAIRS)
def test_a_stream_that_breaks_off_ends_with_the_dialects_error_event(backend, tmp_path, client, wire, how) -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers=STREAMED)
        await answer.prepare(request)
        for event in stream_of(wire)[:-3]:
            await answer.write(event)
        await asyncio.sleep(20 if how == "silence" else 0.05)  # a reset may overtake bytes that nobody has read yet
        request.transport.abort()
        return answer

    backend.answer(PATHS[wire], break_off)
    patience = 1.0 if how == "silence" else 30.0  # on a busy machine what came before takes its time
    with client_of(front(wire, backend.url, captures=tmp_path, stream_idle_timeout_s=patience)) as http:
        begun = time.monotonic()
        answer = http.post(f"/ng-rollout/r-0{PATHS[client]}", json={**BODIES[client], "stream": True})
        assert time.monotonic() - begun < 5
    ended = accumulated(client, answer.content)
    assert ended.terminal == "error"
    shown = str(ended.stream_error or ended.response["error"])
    assert ("broke the connection" if how == "reset" else "silent for too long") in shown
    line = last_line(tmp_path, "r-0")
    assert line["terminal"] == "error"
    assert line["error_category"] in ("connection", "timeout", "upstream_error")
    assert line["response"], "what came before is kept"
    assert line["upstream"][-1]["while"] == "streaming"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("client", "wire"), [pair for pair in PAIRS if pair[0] != pair[1]])
def test_garbage_is_a_bad_gateway_or_an_error_event(backend, tmp_path, client, wire, stream) -> None:
    content_type = "text/event-stream" if stream else "text/html"
    backend.answer(PATHS[wire], (200, b"<html>\xff{\n\n", {"Content-Type": content_type}))
    with client_of(front(wire, backend.url, captures=tmp_path)) as http:
        answer = http.post(f"/ng-rollout/r-0{PATHS[client]}", json={**BODIES[client], "stream": stream})
    line = last_line(tmp_path, "r-0")
    if stream:
        assert accumulated(client, answer.content).terminal == "error"
        assert line["terminal"] == "error"
    else:
        assert answer.status_code == 502
        assert "no JSON object" in error_of(client, answer.json())["message"]
    assert line["error_category"] is not None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_garbage_of_the_clients_own_dialect_passes_untouched(backend, tmp_path, dialect) -> None:
    backend.answer(PATHS[dialect], (200, b"<html>\xff{", {"Content-Type": "text/html"}))
    with client_of(front(dialect, backend.url, captures=tmp_path)) as http:
        answer = http.post(f"/ng-rollout/r-0{PATHS[dialect]}", json=BODIES[dialect])
    assert (answer.status_code, answer.content) == (200, b"<html>\xff{")
    assert last_line(tmp_path, "r-0")["error_category"] == "capture_parse_error"


@pytest.mark.parametrize(("client", "wire"), PAIRS)
async def test_a_client_that_leaves_stops_the_backend(backend, tmp_path, client, wire) -> None:
    import threading

    stopped = threading.Event()

    async def talk(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers=STREAMED)
        await answer.prepare(request)
        events = stream_of(wire)
        try:
            for event in events[:4]:
                await answer.write(event)
            while True:
                await answer.write(b": still here\n\n")
                await asyncio.sleep(0.02)
        except (ConnectionResetError, asyncio.CancelledError):
            stopped.set()
            raise

    backend.answer(PATHS[wire], talk)
    with serving(front(wire, backend.url, captures=tmp_path).served_app()) as url:
        async with aiohttp.ClientSession() as session:
            body = {**BODIES[client], "stream": True}
            async with session.post(f"{url}/ng-rollout/r-0{PATHS[client]}", json=body) as answer:
                await answer.content.readany()
        assert await asyncio.to_thread(stopped.wait, 5), "the backend was told to stop"
    assert last_line(tmp_path, "r-0")["error_category"] == "cancelled"


def test_the_key_is_nowhere_but_in_the_call(backend, tmp_path: Path, caplog) -> None:
    said = {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}}
    backend.answer(PATHS["responses"], (401, said, {}))
    with client_of(front("responses", backend.url, captures=tmp_path)) as http:
        answer = http.post(f"/ng-rollout/r-0{PATHS['responses']}", json=BODIES["responses"])
    assert answer.status_code == 401
    assert backend.asked[0][2]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in answer.text
    assert KEY not in caplog.text
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("status", "code"), [(401, "invalid_api_key"), (429, "insufficient_quota"), (429, "budget_exceeded")]
)
def test_a_refused_key_or_a_used_up_quota_is_not_asked_again_for_minutes(backend, tmp_path, status, code) -> None:
    backend.answer(PATHS["chat"], (status, {"error": {"message": "no more", "code": code}}, {}))
    with client_of(front("chat", backend.url, captures=tmp_path)) as http:
        for _ in range(3):
            answer = http.post(f"/ng-rollout/r-0{PATHS['chat']}", json=BODIES["chat"])
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert len(backend.asked) == 1
    line = last_line(tmp_path, "r-0")
    assert (line["upstream"], line["upstream_attempted"]) == ([], False), "the record says that nobody was asked"


def test_an_endpoint_that_keeps_failing_is_left_alone_for_a_while(backend, tmp_path) -> None:
    backend.answer(PATHS["chat"], (500, {"error": {"message": "boom"}}, {}))
    with client_of(front("chat", backend.url, max_http_attempts=2)) as http:
        statuses = [http.post(PATHS["chat"], json=BODIES["chat"]) for _ in range(8)]
    assert [answer.status_code for answer in statuses[:4]] == [500] * 4
    assert statuses[-1].status_code == 503
    assert int(statuses[-1].headers["retry-after"]) >= 1
    assert "x-upstream-status" not in statuses[-1].headers
    assert len(backend.asked) < 10

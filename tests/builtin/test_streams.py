"""Streams through a model server: untouched or converted as they come, usage asked for, kept alive."""

from __future__ import annotations

import asyncio
import itertools
import socket
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from backends import BODIES, DIALECTS, KEY, PATHS, accumulated, client_of, encode, front, stream_of, text_in
from served_models import last_line, model_server, records, serving

from nemo_gym.base_responses_api_model import SimpleResponsesAPIModel, UpstreamError
from nemo_gym.builtin.responses_api_models.openai_model.app import OpenAIModel
from nemo_gym.servers.model_calls import ModelCalls

STREAMED = {"Content-Type": "text/event-stream"}
PAIRS = list(itertools.product(DIALECTS, DIALECTS))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_bytes_of_the_same_dialect_pass_untouched(backend, dialect) -> None:
    strange = b": a comment\r\n\r\n" + b"".join(stream_of(dialect)).replace(b"\n", b"\r\n") + b"trailing"
    backend.answer(PATHS[dialect], (200, strange, STREAMED))
    body = {**BODIES[dialect], "stream": True, "stream_options": {"include_usage": True}}
    with client_of(front(dialect, backend.url)) as http:
        assert http.post(PATHS[dialect], json=body).content == strange


@pytest.mark.parametrize("client", DIALECTS)
@pytest.mark.parametrize("asks", [False, True])
def test_usage_is_asked_for_and_only_shown_to_who_asked(backend, tmp_path, client, asks) -> None:
    backend.answer(PATHS["chat"], (200, b"".join(stream_of("chat")), STREAMED))
    body = {**BODIES[client], "stream": True}
    if asks:
        body["stream_options"] = {"include_usage": True}
    with client_of(front("chat", backend.url, captures=tmp_path)) as http:
        content = http.post(f"/ng-rollout/r-0{PATHS[client]}", json=body).content
    assert backend.asked[0][1]["stream_options"] == {"include_usage": True}
    if client == "chat":
        assert (b'"prompt_tokens":5' in content) == asks
        assert content == b"".join(stream_of("chat", include_usage=asks))
    record = records(tmp_path, "r-0")[0]
    assert (record.tokens_in, record.tokens_out) == (5, 2), "the record has the counts in any case"


@pytest.mark.parametrize(("client", "wire"), PAIRS)
async def test_a_text_is_on_its_way_before_the_next_one_is_made(backend, client, wire) -> None:
    seen = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def talk(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers=STREAMED)
        await answer.prepare(request)
        events = stream_of(wire)
        told = next(number for number, event in enumerate(events) if b"forty-two" in event) + 1
        for event in events[:told]:
            await answer.write(event)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.wait_for(seen.wait(), 10), loop))
        for event in events[told:]:
            await answer.write(event)
        return answer

    backend.answer(PATHS[wire], talk)
    with serving(front(wire, backend.url).served_app()) as url:
        body = {**BODIES[client], "stream": True}
        async with aiohttp.ClientSession() as session, session.post(url + PATHS[client], json=body) as answer:
            content = b""
            async for chunk in answer.content.iter_any():
                content += chunk
                if b"forty-two" in content:
                    seen.set()
    assert accumulated(client, content).terminal == "complete"


@pytest.mark.parametrize("headers_first", [True, False])
@pytest.mark.parametrize(("client", "wire"), [("responses", "responses"), ("chat", "responses"), ("messages", "chat")])
def test_a_silent_stream_is_kept_alive(backend, client, wire, headers_first) -> None:
    async def think(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers=STREAMED)
        if headers_first:
            await answer.prepare(request)
        await asyncio.sleep(0.3)
        if not headers_first:
            await answer.prepare(request)
        await answer.write(b"".join(stream_of(wire)))
        return answer

    backend.answer(PATHS[wire], think)
    server = front(wire, backend.url)
    server.__dict__["_model_calls"] = ModelCalls(server, keep_alive_s=0.05)
    with client_of(server) as http:
        content = http.post(PATHS[client], json={**BODIES[client], "stream": True}).content
    assert content.startswith(b"event: ping\n" if client == "messages" else b": keep-alive\n\n")
    assert accumulated(client, content).terminal == "complete"


def test_a_refusal_after_a_long_wait_is_an_event_of_the_stream(backend) -> None:
    async def refuse(_request: web.Request) -> web.Response:
        await asyncio.sleep(0.2)
        return web.json_response({"error": {"message": "too late", "type": "t", "code": None}}, status=400)

    backend.answer(PATHS["chat"], refuse)
    server = front("chat", backend.url)
    server.__dict__["_model_calls"] = ModelCalls(server, keep_alive_s=0.05)
    with client_of(server) as http:
        answer = http.post(PATHS["messages"], json={**BODIES["messages"], "stream": True})
    assert answer.status_code == 200
    assert accumulated("messages", answer.content).stream_error["message"] == "too late"


# A server's own generators


def parts(dialect: str) -> list[dict[str, Any]]:
    import json

    payloads = [event.rpartition(b"data: ")[2].strip() for event in stream_of(dialect)]
    return [json.loads(payload) for payload in payloads if payload != b"[DONE]"]


class Generating(SimpleResponsesAPIModel):
    failure: Any = None

    async def responses(self, body: dict[str, Any]) -> Any:
        raise NotImplementedError

    async def chat_completions(self, body: dict[str, Any]) -> Any:
        raise NotImplementedError


class ResponsesGenerator(Generating):
    async def stream_responses(self, body: dict[str, Any]) -> Any:
        if self.failure is not None:
            raise self.failure
        for event in parts("responses"):
            yield event


class ChatGenerator(Generating):
    async def stream_chat(self, body: dict[str, Any]) -> Any:
        assert body["messages"]
        for number, event in enumerate(parts("chat")):
            if number == 2 and self.failure is not None:
                raise self.failure
            yield event


@pytest.mark.parametrize("client", DIALECTS)
@pytest.mark.parametrize("server_class", [ResponsesGenerator, ChatGenerator])
def test_a_servers_own_generator_streams_to_every_dialect(server_class, client) -> None:
    with client_of(model_server(server_class)) as http:
        content = http.post(PATHS[client], json={**BODIES[client], "stream": True}).content
    ended = accumulated(client, content)
    assert ended.terminal == "complete"
    assert text_in(client, ended.response) == "forty-two"


def test_what_a_generator_raises_first_is_a_plain_error_and_later_an_event() -> None:
    failure = UpstreamError("no", server="s", status=429, headers={"Retry-After": "7"})
    with client_of(
        model_server(
            ResponsesGenerator,
        )
    ) as http:
        http.app.state  # noqa: B018
    server = model_server(ResponsesGenerator)
    server.failure = failure
    with client_of(server) as http:
        answer = http.post(PATHS["chat"], json={**BODIES["chat"], "stream": True})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    server = model_server(ChatGenerator)
    server.failure = UpstreamError("broke", server="s", code="upstream_connection")
    with client_of(server) as http:
        content = http.post(PATHS["messages"], json={**BODIES["messages"], "stream": True}).content
    assert accumulated("messages", content).stream_error["message"] == "broke"


# The doors of a server


async def test_a_websocket_upgrade_is_answered_426_at_once() -> None:
    key = "dGhlIHNhbXBsZSBub25jZQ=="
    with serving(model_server(ResponsesGenerator).served_app()) as url:
        port = int(url.rpartition(":")[2])
        for path in ("/v1/responses", "/ng-rollout/r-0/v1/responses"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
            )
            status = await asyncio.wait_for(reader.readline(), 2)
            assert b" 426 " in status, path
            writer.close()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_request_that_is_too_large_is_answered_413(backend, dialect) -> None:
    with client_of(front(dialect, backend.url, max_request_bytes=100)) as http:
        for content in (b"{" + b" " * 200 + b"}", (piece for piece in [b"{" + b" " * 150, b"}"])):
            answer = http.post(PATHS[dialect], content=content)
            assert answer.status_code == 413
            assert (answer.json().get("type") == "error") == (dialect == "messages")
    assert not backend.asked


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_the_runs_token_is_asked_for_and_never_forwarded(backend, monkeypatch, header) -> None:
    monkeypatch.setenv("NEMO_GYM_SERVER_TOKEN", "run-token")
    backend.answer(PATHS["chat"], (200, stream_of("chat")[0], {}))
    with client_of(front("chat", backend.url)) as http:
        shown = {header: "Bearer run-token" if header == "authorization" else "run-token"}
        assert http.post(PATHS["chat"], json=BODIES["chat"]).status_code == 401
        assert http.post(PATHS["chat"], json=BODIES["chat"], headers={header: "Bearer wrong"}).status_code == 401
        assert http.post(PATHS["chat"], json=BODIES["chat"], headers=shown).status_code == 200
    sent = backend.asked[0][2]
    assert sent["Authorization"] == f"Bearer {KEY}"
    assert "run-token" not in str(sent)


# What an endpoint speaks


@pytest.mark.parametrize("only", DIALECTS)
@pytest.mark.parametrize("client", DIALECTS)
def test_auto_finds_the_route_that_is_there_once(backend, caplog, client, only) -> None:
    caplog.set_level("INFO")
    from backends import said_in

    backend.answer(PATHS[only], said_in(only))
    with client_of(front("responses", backend.url, wire="auto")) as http:
        for _ in range(2):
            assert text_in(client, http.post(PATHS[client], json=BODIES[client]).json()) == "forty-two"
    assert [path for path, _, _ in backend.asked] == [PATHS[only]] * 2
    assert (f"serves {only}" in caplog.text) == (client != only), "what a probe finds is said"


def test_an_unknown_model_is_no_missing_route(backend) -> None:
    refusal = {"error": {"message": "no such model", "code": "model_not_found"}}
    backend.answer(PATHS["responses"], (404, refusal, {}))
    with client_of(front("responses", backend.url, wire="auto")) as http:
        answer = http.post(PATHS["responses"], json=BODIES["responses"])
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "no such model")


# Several endpoints


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_an_endpoint_that_is_down_hands_its_rollouts_to_the_others(backend, tmp_path) -> None:
    from backends import said_in

    backend.answer("/v1/chat/completions", said_in("chat"))
    dead = f"http://127.0.0.1:{free_port()}/v1"
    server = front("chat", backend.url, captures=tmp_path)
    server.config.base_url = [dead, f"{backend.url}/v1"]
    with client_of(server) as http:
        for rollout in range(12):
            assert http.post(f"/ng-rollout/{rollout}-0{PATHS['chat']}", json=BODIES["chat"]).status_code == 200
    tried = [len(last_line(tmp_path, f"{rollout}-0")["upstream"]) for rollout in range(12)]
    assert 2 in tried, "some rollouts belong to the endpoint that is down"
    assert 1 in tried


def test_calls_without_a_rollout_stay_by_how_their_conversation_begins(backend) -> None:
    from backends import said_in

    for path in ("/a/chat/completions", "/b/chat/completions"):
        backend.answer(path, said_in("chat"))
    server = front("chat", backend.url)
    server.config.base_url = [f"{backend.url}/a", f"{backend.url}/b"]
    with client_of(server) as http:
        for start in range(8):
            conversation: list[dict[str, Any]] = [
                {"role": "system", "content": f"s{start}"},
                {"role": "user", "content": "u"},
            ]
            met = set()
            for _ in range(3):
                http.post(PATHS["chat"], content=encode({"messages": conversation}))
                met.add(backend.asked[-1][0])
                conversation = [*conversation, {"role": "assistant", "content": "a"}, {"role": "user", "content": "u"}]
            assert len(met) == 1
    assert len({path for path, _, _ in backend.asked}) == 2


def test_openai_model_is_asked_with_the_same_stream_flag(backend) -> None:
    from backends import said_in

    backend.answer(PATHS["responses"], said_in("responses"))
    server = model_server(OpenAIModel, openai_base_url=f"{backend.url}/v1", openai_api_key="k", openai_model="m")
    with client_of(server) as http:
        answer = http.post(PATHS["responses"], json={**BODIES["responses"], "stream": True})
    assert accumulated("responses", answer.content).terminal == "complete", "an endpoint that never streams is replayed"

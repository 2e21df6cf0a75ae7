from __future__ import annotations

import asyncio
import json
import pickle
import socket
import struct
from typing import Any

import aiohttp
import orjson
import pytest
from fastapi import FastAPI, Request, Response
from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError
from pydantic import BaseModel

from nemo_gym.capture.correlation import rollout_context
from nemo_gym.errors import HeadServerUnreachableError, RemoteError
from nemo_gym.servers import http, http_session
from nemo_gym.servers.head import HeadState, build_head_app
from nemo_gym.servers.http import ServerDroppedError, encode_body, get_response_json, raise_for_status, request
from nemo_gym.servers.server_client import ServerClient
from nemo_gym.servers.server_config import BaseServerConfig

pytestmark = pytest.mark.usefixtures("close_session")


def echo_app() -> FastAPI:
    app = FastAPI()

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def echo(path: str, request: Request, response: Response) -> Any:
        if path == "fails":
            response.status_code = 418
            return {"error": "teapot"}
        return {
            "path": "/" + path,
            "query": request.url.query,
            "body": (await request.body()).decode(),
            "type": request.headers.get("content-type"),
        }

    return app


class Part(BaseModel):
    text: str
    note: str | None = None


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_FIRST_PAUSE_S", 0.0)


@pytest.mark.parametrize(("idle_s", "pause_s", "connections"), [(60.0, 0.0, 1), (0.05, 0.1, 2)])
async def test_a_connection_is_used_again_only_while_no_server_would_be_closing_it(
    monkeypatch: pytest.MonkeyPatch, idle_s: float, pause_s: float, connections: int
) -> None:
    """Servers close what was idle for 5 s; what is written into a connection at that moment is lost."""
    assert http_session.IDLE_CONNECTION_S < 5
    monkeypatch.setattr(http_session, "IDLE_CONNECTION_S", idle_s)
    accepted = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for _ in range(2):
            assert await get_response_json(await request("GET", f"http://127.0.0.1:{port}/")) == {}
            await asyncio.sleep(pause_s)
    assert accepted == connections


@pytest.mark.parametrize("reset", [False, True])
async def test_a_server_that_closes_the_connection_is_named_and_asked_once(reset: bool) -> None:
    asked = 0

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"{}")
        if reset:  # with data unread, and lingering off, closing is a reset
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/seed_session"
    async with server:
        with pytest.raises(ServerDroppedError) as caught:
            await request("POST", f"{url}?key=secret", json={}, _internal=True, _server_name="bank")
        assert asked == 1, "what may have been done is not asked for again"
        assert str(caught.value).startswith(f"`bank` at `{url}` closed the connection without an answer: ")
        assert (caught.value.server, caught.value.status) == ("bank", None)
        assert isinstance(caught.value, aiohttp.ServerDisconnectedError)
        assert isinstance(caught.value, aiohttp.ClientOSError)
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), again.server) == (str(caught.value), "bank")
        with pytest.raises(aiohttp.ClientConnectionError) as foreign:
            await request("POST", url, json={})
        assert not isinstance(foreign.value, RemoteError), "another host's failure is aiohttp's own"


async def test_a_json_body_is_sent_compact_with_its_content_type(serve: Any) -> None:
    served = serve(echo_app())
    for body in ({"a": [1, None]}, {}, []):
        echoed = await get_response_json(await request("POST", f"{served.url}/x", json=body))
        assert (json.loads(echoed["body"]), echoed["type"]) == (body, "application/json")


async def test_a_refused_connection_is_tried_a_few_times_and_named_with_its_url(
    closed_port: int, no_pauses: None, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"http://127.0.0.1:{closed_port}/v1/responses?key=secret"
    with pytest.raises(aiohttp.ClientConnectorError) as caught:
        await request("POST", url, _internal=True, _server_name="policy_model", _max_connection_retries=2)
    error = caught.value
    assert isinstance(error, RemoteError)
    assert error.attempt == 3
    assert f"`policy_model` at `http://127.0.0.1:{closed_port}/v1/responses`" in str(error)
    assert "secret" not in str(error)
    assert "trying again" in caplog.text, "the first failure is reported at once"


async def test_a_request_that_may_have_been_sent_is_never_sent_twice(serve: Any, no_pauses: None) -> None:
    seen = []

    async def drops_the_connection(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append(scope["path"])
            raise ConnectionResetError

    served = serve(drops_the_connection)
    answer = await request("POST", f"{served.url}/run", json={"a": 1}, _internal=True)
    assert answer.status == 500
    assert seen == ["/run"]


async def test_a_body_that_is_no_json_raises_before_anything_is_sent(closed_port: int) -> None:
    with pytest.raises(TypeError):
        await request("POST", f"http://127.0.0.1:{closed_port}/", json={"a": object()})


def test_bodies_may_hold_models_configuration_nodes_and_lone_surrogates() -> None:
    body = {"part": Part(text="x"), "node": OmegaConf.create({"a": "${b}", "b": 2}), "odd": "\ud800"}
    assert json.loads(encode_body(body)) == {"part": {"text": "x"}, "node": {"a": 2, "b": 2}, "odd": "\ud800"}


async def test_raise_for_status_keeps_the_body_and_can_be_pickled(serve: Any) -> None:
    served = serve(echo_app())
    answer = await request("GET", f"{served.url}/fails", headers={"Authorization": "Bearer secret"})
    with pytest.raises(aiohttp.ClientResponseError) as caught:
        await raise_for_status(answer)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.status, copy.response_content) == (418, b'{"error":"teapot"}')
    assert "secret" not in repr(caught.value)
    await raise_for_status(await request("GET", f"{served.url}/fine"))


async def test_a_body_that_is_no_json_is_a_decode_error(serve: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>"})

    with pytest.raises(orjson.JSONDecodeError):
        await get_response_json(await request("GET", serve(app).url))


async def test_the_session_is_shared_and_can_be_closed() -> None:
    session = http_session.get_global_aiohttp_client()
    assert http_session.get_global_aiohttp_client() is session
    assert http_session.is_global_aiohttp_client_setup()
    await http_session.close_global_aiohttp_client()
    assert not http_session.is_global_aiohttp_client_setup()


def test_connection_limits_are_shared_between_workers() -> None:
    config = http_session.GlobalAIOHTTPAsyncClientConfig.from_global_config(
        {"global_aiohttp_connector_limit": 100, "global_aiohttp_connector_limit_per_host": 0, "other": 1},
        num_workers=4,
    )
    assert config.share(config.global_aiohttp_connector_limit) == 25
    assert config.share(config.global_aiohttp_connector_limit_per_host) == 0


async def test_servers_are_called_by_name_and_models_sent_without_unset_fields(serve: Any, make_client: Any) -> None:
    served = serve(echo_app())
    client = make_client(policy=("responses_api_models", served.port))
    answer = await client.post("policy", "/v1/responses", json=Part(text="hi"), params={"q": "1"})
    echoed = await answer.json()
    assert (echoed["path"], echoed["query"], echoed["body"]) == ("/v1/responses", "q=1", '{"text":"hi"}')
    assert (await (await client.get(server_name="policy", url_path="/a")).json())["path"] == "/a"


async def test_an_unknown_server_is_a_key_error_with_the_nearest_name(make_client: Any) -> None:
    client = make_client(policy_model=("responses_api_models", 1))
    with pytest.raises(ConfigKeyError, match="policy_model"):
        await client.post("policy_modle", "/")
    with pytest.raises(KeyError):
        await client.post("nobody", "/")


async def test_with_observability_calls_carry_the_current_rollout(serve: Any, make_client: Any) -> None:
    served = serve(echo_app())
    on = {"observability_enabled": True, "model_call_capture_dir": "/captures"}
    client = make_client(
        on,
        policy=("responses_api_models", served.port),
        tasks=("resources_servers", served.port),
        agent=("responses_api_agents", served.port),
    )

    async def path_of(server: str, path: str, **kwargs: Any) -> str:
        return str((await (await client.post(server, path, **kwargs)).json())["path"])

    assert await path_of("policy", "/v1/responses") == "/v1/responses"
    assert await path_of("tasks", "/verify", json={"_ng_task_index": 3, "_ng_rollout_index": 1}) == (
        "/ng-rollout/3-1/verify"
    )
    with rollout_context("7-0-a1"):
        assert await path_of("policy", "/v1/messages?beta=true") == "/ng-rollout/7-0-a1/v1/messages"
        assert await path_of("policy", "/ng-rollout/9-9/v1/responses") == "/ng-rollout/9-9/v1/responses"
        assert await path_of("policy", "/v1/models") == "/v1/models"
        assert await path_of("tasks", "/some_tool") == "/ng-rollout/7-0-a1/some_tool"
        assert await path_of("agent", "/v1/responses") == "/v1/responses"
    off = make_client(policy=("responses_api_models", served.port))
    with rollout_context("7-0"):
        assert (await (await off.post("policy", "/v1/responses")).json())["path"] == "/v1/responses"


async def test_the_environment_can_replace_one_model_servers_url(
    serve: Any, make_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(echo_app())
    monkeypatch.setenv("NEMO_GYM_MODEL_SERVER_NAME", "policy")
    monkeypatch.setenv("NEMO_GYM_MODEL_SERVER_BASE_URL", f"{served.url}/ng-rollout/5-5")
    client = make_client(
        {"observability_enabled": True, "model_call_capture_dir": "/captures"}, policy=("responses_api_models", 1)
    )
    with rollout_context("7-0"):
        echoed = await (await client.post("policy", "/v1/responses")).json()
    assert echoed["path"] == "/ng-rollout/5-5/v1/responses", "a prefix is never put on twice"


async def test_a_client_reads_the_configuration_from_the_head_server(serve: Any) -> None:
    state = HeadState(config_yaml="policy:\n  responses_api_models:\n    m: {host: 127.0.0.1, port: 7}\n")
    head = serve(build_head_app(state))
    client = ServerClient.load_from_global_config(BaseServerConfig(host="127.0.0.1", port=head.port))
    assert client._resolve_base_url("policy") == "http://127.0.0.1:7"
    assert client.poll_for_status("head_server") == "success"
    assert client.poll_for_status("policy", timeout_seconds=1) == "connection_error"


def test_a_missing_head_server_is_a_value_error_that_names_the_url(closed_port: int) -> None:
    with pytest.raises(ValueError, match=f"http://127.0.0.1:{closed_port}") as caught:
        ServerClient.load_from_global_config(BaseServerConfig(host="127.0.0.1", port=closed_port))
    assert isinstance(caught.value, HeadServerUnreachableError)

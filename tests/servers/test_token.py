"""Who does not show the token of the run is refused, in the shape that its client reads, before anything else."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from nemo_gym.servers.access import TokenMiddleware

TOKEN = "tökén"


async def answer(request: Request) -> JSONResponse:
    return JSONResponse({"path": request.url.path})


async def talk(socket: WebSocket) -> None:
    await socket.accept()
    await socket.close()


@pytest.fixture
def client() -> TestClient:
    app = Starlette(routes=[WebSocketRoute("/ws", talk), Route("/{path:path}", answer, methods=["GET", "POST"])])
    return TestClient(TokenMiddleware(app, token=TOKEN))


@pytest.mark.parametrize(
    ("path", "anthropic"),
    [
        ("/v1/messages", True),
        ("/v1/messages/count_tokens", True),
        ("/ng-rollout/0-0/v1/messages", True),
        ("/v1/responses", False),
        ("/ng-rollout/0-0/v1/chat/completions", False),
        ("/v1/models", False),
        ("/run", False),
    ],
)
@pytest.mark.parametrize(
    "headers",
    [{}, {"x-api-key": ""}, {"x-api-key": "wrong"}, {"authorization": "Bearer "}, {"authorization": "Basic dG9rZW4="}],
)
def test_a_refusal_has_the_shape_that_the_client_reads(
    client: TestClient, path: str, anthropic: bool, headers: dict[str, str]
) -> None:
    reply = client.post(path, headers=headers)
    assert reply.status_code == 401
    body = reply.json()
    assert (body.get("type") == "error") == anthropic
    assert body["error"]["type"] == "authentication_error"
    assert "token" in body["error"]["message"]


@pytest.mark.parametrize("name", ["x-api-key", "X-NG-Server-Token", "authorization"])
def test_the_token_opens_every_path(client: TestClient, name: str) -> None:
    shown = (b"bearer " if name == "authorization" else b"") + TOKEN.encode()
    headers = [(name.encode(), b"wrong"), (name.encode(), shown)]
    for path in ("/v1/messages", "/run"):
        assert client.post(path, headers=headers).json() == {"path": path}


def test_liveness_needs_no_token(client: TestClient) -> None:
    assert client.get("/livez").status_code == 200


def test_a_websocket_needs_the_token_too(client: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/ws"):
        pass
    with client.websocket_connect("/ws", headers={"x-api-key": TOKEN.encode()}):
        pass

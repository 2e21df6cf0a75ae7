"""What models and callers send: text that is no UTF-8, numbers that are no JSON, bodies that are no object."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel, ConfigDict
from starlette.testclient import TestClient

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, Body, SimpleResponsesAPIAgent
from nemo_gym.builtin.responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig
from nemo_gym.judge import JudgeError
from nemo_gym.server_utils import ServerClient

BASE = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "odd"}
ODD = ["\ud800", "x\udfffy", "\ud83d", "\x00", float("nan"), float("inf"), 2**70]


class Verdict(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class VerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")


class Said(BaseModel):
    said: Any


class Tasks(SimpleResourcesServer):
    value: Any = None
    calls: list[str] = []

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        for route in (self.typed, self.untyped, self.refused, self.sync):
            app.post(f"/{route.__name__}")(route)
        return app

    async def verify(self, body: VerifyRequest) -> Verdict:
        self.calls.append("verify")
        return Verdict(**body.model_dump(), reward=1.0, value=self.value)

    async def typed(self, response: Response) -> Said:
        response.headers["x-kept"] = "yes"
        return Said(said=self.value)

    async def untyped(self):  # type: ignore[no-untyped-def]
        return {"said": self.value}

    def sync(self) -> dict[str, Any]:
        return {"said": self.value}

    async def refused(self) -> None:
        raise HTTPException(404, {"said": self.value}, headers={"x-kept": "yes"})


class FailingJudge(Tasks):
    async def verify(self, body: VerifyRequest) -> Verdict:
        raise JudgeError(str(self.value))


def tasks(value: Any, kind: type[Tasks] = Tasks) -> tuple[Tasks, TestClient]:
    server = kind(
        config=BaseResourcesServerConfig(**BASE), server_client=MagicMock(spec=ServerClient), value=value, calls=[]
    )
    return server, TestClient(server.served_app())


def judged(response: dict[str, Any], value: Any) -> bytes:
    """A verify request, with text that no strict encoder takes."""
    if isinstance(value, str):
        response = json.loads(json.dumps(response).replace("42", json.dumps(value)[1:-1]))
    row = {"responses_create_params": {"input": [{"role": "user", "content": str(value)}]}, "response": response}
    return json.dumps(row | ({"given": value} if isinstance(value, str) else {})).encode()


def plain(value: Any) -> Any:
    """What a value is in JSON."""
    return None if isinstance(value, float) else value


@pytest.mark.parametrize("value", ODD, ids=ascii)
def test_verify_answers_whatever_the_model_wrote_once(value: Any, response_body: dict[str, Any]) -> None:
    server, client = tasks(value)
    answer = client.post("/verify", content=judged(response_body, value))
    assert answer.status_code == 200, answer.text
    said = json.loads(answer.content)
    assert (said["reward"], said["value"]) == (1.0, plain(value))
    if isinstance(value, str):
        assert said["given"] == value
    assert server.calls == ["verify"]


@pytest.mark.parametrize("value", ODD, ids=ascii)
def test_tools_answer_whatever_they_are_made_to_say(value: Any) -> None:
    _, client = tasks(value)
    for route in ("typed", "untyped", "sync"):
        answer = client.post(f"/{route}")
        assert (answer.status_code, json.loads(answer.content)) == (200, {"said": plain(value)}), route
    assert client.post("/typed").headers["x-kept"] == "yes"
    refused = client.post("/refused")
    assert (refused.status_code, json.loads(refused.content)) == (404, {"detail": {"said": plain(value)}})
    assert refused.headers["x-kept"] == "yes"


def test_a_body_that_does_not_fit_is_422_even_when_it_cannot_be_quoted() -> None:
    answer = tasks(None)[1].post("/verify", content=b'{"response": "\\ud800"}')
    assert answer.status_code == 422
    assert json.loads(answer.content)["detail"]


def test_a_judge_that_failed_over_such_text_masks_the_sample(response_body: dict[str, Any]) -> None:
    answer = tasks("\ud800", FailingJudge)[1].post("/verify", content=judged(response_body, "\ud800"))
    assert answer.status_code == 200
    assert json.loads(answer.content)["mask_sample"] is True


@pytest.mark.parametrize("value", ["plain", "\u00e9\u4e2d\U0001f600", 1.5, [1, None, True]])
def test_ordinary_answers_are_the_frameworks_own_bytes(value: Any) -> None:
    app = FastAPI()

    @app.post("/typed")
    async def typed() -> Said:
        return Said(said=value)

    mine = tasks(value)[1].post("/typed")
    own = TestClient(app).post("/typed")
    assert (mine.content, mine.headers["content-type"]) == (own.content, own.headers["content-type"])


class Echo(SimpleResponsesAPIAgent):
    async def responses(self, body: dict[str, Any] = Body()) -> Said:
        return Said(said=body["input"])

    async def run(self, body: dict[str, Any] = Body()) -> Said:
        return Said(said=body["input"])


def simple_agent() -> SimpleAgent:
    config = SimpleAgentConfig(
        **BASE,
        model_server={"type": "responses_api_models", "name": "m"},
        resources_server={"type": "resources_servers", "name": "r"},
    )
    client = MagicMock(spec=ServerClient)
    client.post = AsyncMock(side_effect=AssertionError("nothing is to be sent"))
    return SimpleAgent(config=config, server_client=client)


@pytest.mark.parametrize("path", ["/v1/responses", "/run"])
@pytest.mark.parametrize("value", ["\ud800", "x\udfffy"], ids=ascii)
def test_an_agents_answer_may_hold_such_text(path: str, value: str) -> None:
    agent = Echo(config=BaseResponsesAPIAgentConfig(**BASE), server_client=MagicMock(spec=ServerClient))
    answer = TestClient(agent.served_app()).post(path, content=json.dumps({"input": value}).encode())
    assert (answer.status_code, json.loads(answer.content)) == (200, {"said": value})


@pytest.mark.parametrize("path", ["/v1/responses", "/run", "/ng-rollout/1-1/v1/responses"])
@pytest.mark.parametrize("body", [b"", b"{bad", b"[]", b'"x"', b"5", b"null", b"\xff", b'{"a": NaN}', b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_422(path: str, body: bytes) -> None:
    client = TestClient(simple_agent().served_app())
    answer = client.post(path, content=body)
    assert answer.status_code == 422, answer.text
    assert "JSON object" in answer.json()["detail"][0]["msg"]


@pytest.mark.parametrize("given", [5, True, {"a": 1}, ["text"], [None], [[]]])
def test_an_input_of_another_kind_is_422_and_named(given: Any) -> None:
    client = TestClient(simple_agent().served_app())
    for path, body in (
        ("/v1/responses", {"input": given}),
        ("/run", {"responses_create_params": {"input": given}}),
    ):
        answer = client.post(path, json=body)
        assert (answer.status_code, answer.json()["detail"][0]["loc"][-1]) == (422, "input")
    assert client.post("/run", json={"responses_create_params": ["x"]}).status_code == 422

"""The smallest environment: the tool answers, and only an answer that was looked up is rewarded."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from starlette.testclient import TestClient

from nemo_gym.builtin.resources_servers.example_single_tool_call.app import (
    ExampleSingleToolCallConfig,
    ExampleSingleToolCallServer,
)
from nemo_gym.server_utils import ServerClient

CALL = {"type": "function_call", "call_id": "t", "name": "get_weather", "arguments": "{}"}


@pytest.fixture
def client() -> TestClient:
    config = ExampleSingleToolCallConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="e")
    server = ExampleSingleToolCallServer(config=config, server_client=MagicMock(spec=ServerClient))
    return TestClient(server.setup_webserver())


def message(text: str) -> dict:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}


def test_the_tool_answers_for_the_city(client: TestClient) -> None:
    answer = client.post("/get_weather", json={"city": "Oslo"})
    assert answer.json() == {"city": "Oslo", "weather_description": "The weather in Oslo is cold."}
    assert client.post("/get_weather", json={}).status_code == 422


@pytest.mark.parametrize(
    ("output", "reward"),
    [([CALL, message("It is cold.")], 1.0), ([message("It is cold.")], 0.0), ([CALL, message("It is hot.")], 0.0)],
)
def test_only_an_answer_that_was_looked_up_is_rewarded(client: TestClient, output: list, reward: float) -> None:
    response = {
        "id": "r",
        "object": "response",
        "created_at": 0,
        "model": "m",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    body = {"responses_create_params": {"input": "x"}, "response": response}
    assert client.post("/verify", json=body).json()["reward"] == reward

"""The check, called as the agent calls it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from starlette.testclient import TestClient

from nemo_gym.server_utils import ServerClient

SPEC = importlib.util.spec_from_file_location("capital_cities_app", Path(__file__).parents[1] / "app.py")
APP = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = APP  # annotations are resolved in the module of their class
SPEC.loader.exec_module(APP)


@pytest.mark.parametrize(("text", "reward"), [("It is paris.", 1.0), ("It is Lyon.", 0.25)])
def test_the_right_city_earns_the_reward(text: str, reward: float) -> None:
    config = APP.CapitalCitiesConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="c", partial_reward=0.25)
    server = APP.CapitalCitiesServer(config=config, server_client=MagicMock(spec=ServerClient))
    message = {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    body = {
        "responses_create_params": {"input": "What is the capital of France?"},
        "expected_answer": "Paris",
        "response": {
            "id": "r",
            "object": "response",
            "created_at": 0,
            "model": "m",
            "output": [message],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        },
    }
    answer = TestClient(server.setup_webserver()).post("/verify", json=body)
    assert answer.status_code == 200
    assert answer.json()["reward"] == reward

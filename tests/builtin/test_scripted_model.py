"""`scripted_model` plays one script in all three dialects, streaming or not, and its errors and cuts are real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_gym.builtin.responses_api_models.scripted_model.app import ScriptedModel
from nemo_gym.dialects import make_accumulator
from nemo_gym.errors import ConfigError, ConfigFileNotFoundError

PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions", "messages": "/v1/messages"}
STEPS = [
    {"reasoning": "hm", "text": "let me look", "calls": [{"name": "f", "arguments": {"x": 1}, "call_id": "t1"}]},
    {"text": "done", "usage": {"input_tokens": 30, "output_tokens": 5}},
]


def asking(dialect: str, text: str = "go", **extra: Any) -> dict[str, Any]:
    if dialect == "responses":
        return {"input": text, **extra}
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 99, "model": "m", **extra}


@pytest.fixture
def script(tmp_path: Path):
    def write(*steps: dict, **script: Any) -> str:
        path = tmp_path / "scripts.yaml"
        path.write_text(yaml.safe_dump({"scripts": [{"name": "s", "steps": list(steps), **script}]}))
        return str(path)

    return write


def said(dialect: str, answer: dict) -> tuple[str, list[str]]:
    """Return the text and the names of the tools of an answer."""
    if dialect == "responses":
        texts = [part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"]]
        return "".join(texts), [item["name"] for item in answer["output"] if item["type"] == "function_call"]
    if dialect == "chat":
        message = answer["choices"][0]["message"]
        return message["content"] or "", [call["function"]["name"] for call in message.get("tool_calls") or []]
    texts = [block["text"] for block in answer["content"] if block["type"] == "text"]
    return "".join(texts), [block["name"] for block in answer["content"] if block["type"] == "tool_use"]


@pytest.mark.parametrize("dialect", PATHS)
def test_a_step_is_the_same_in_every_dialect(served, script, dialect: str) -> None:
    client = served(ScriptedModel, scripts_fpath=script(*STEPS))
    answer = client.post(PATHS[dialect], json=asking(dialect))
    assert said(dialect, answer.json()) == ("let me look", ["f"])


@pytest.mark.parametrize("dialect", PATHS)
def test_a_stream_carries_what_the_whole_answer_says(served, script, dialect: str) -> None:
    client = served(ScriptedModel, scripts_fpath=script(*STEPS))
    streamed = client.post(PATHS[dialect], json=asking(dialect, stream=True))
    accumulator = make_accumulator(dialect)
    accumulator.feed(streamed.content)
    accumulator.finish()
    assert said(dialect, accumulator.response) == ("let me look", ["f"])
    assert accumulator.terminal == "complete"
    assert accumulator.problems == []


@pytest.mark.parametrize("dialect", PATHS)
def test_a_cut_stream_ends_without_its_last_event(served, script, dialect: str) -> None:
    client = served(ScriptedModel, scripts_fpath=script({"text": "never finished", "cut_after_events": 2}))
    accumulator = make_accumulator(dialect)
    accumulator.feed(client.post(PATHS[dialect], json=asking(dialect, stream=True)).content)
    accumulator.finish()
    assert accumulator.terminal is None


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_the_first_tries_of_a_step_fail_as_scripted_and_the_next_one_answers(
    served, script, dialect: str, stream: bool
) -> None:
    failing = {"error": {"status": 429, "message": "slow down", "retry_after": 0.5}}
    client = served(ScriptedModel, scripts_fpath=script({"text": "ok", "attempts": [failing, failing]}))
    answers = [client.post(PATHS[dialect], json=asking(dialect, stream=stream)) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [429, 429, 200]
    assert answers[0].headers["retry-after"] == "0.5"
    assert answers[0].json()["error"]["message"] == "slow down"


def test_tries_are_counted_per_rollout(served, script) -> None:
    failing = {"error": {"status": 500}}
    client = served(ScriptedModel, scripts_fpath=script({"text": "ok", "attempts": [failing]}))
    for rollout in ("a", "b"):
        url = f"/ng-rollout/{rollout}/v1/responses"
        assert [client.post(url, json=asking("responses")).status_code for _ in range(2)] == [500, 200]


def test_usage_is_scripted_counted_or_left_out(served, script) -> None:
    client = served(ScriptedModel, scripts_fpath=script({"text": "four"}))
    counted = client.post("/v1/responses", json=asking("responses")).json()["usage"]
    assert counted["input_tokens"] > 0
    assert counted["total_tokens"] == counted["input_tokens"] + counted["output_tokens"]
    given = served(ScriptedModel, scripts_fpath=script({"text": "x", "usage": {"input_tokens": 3, "output_tokens": 4}}))
    assert given.post("/v1/responses", json=asking("responses")).json()["usage"]["total_tokens"] == 7
    silent = served(ScriptedModel, scripts_fpath=script({"text": "x", "usage": None}))
    assert silent.post("/v1/responses", json=asking("responses")).json()["usage"] is None


def test_a_length_stop_is_said_in_each_dialects_words(served, script) -> None:
    client = served(ScriptedModel, scripts_fpath=script({"text": "cut", "finish": "length"}))
    assert client.post("/v1/responses", json=asking("responses")).json()["status"] == "incomplete"
    assert client.post(PATHS["chat"], json=asking("chat")).json()["choices"][0]["finish_reason"] == "length"
    assert client.post(PATHS["messages"], json=asking("messages")).json()["stop_reason"] == "max_tokens"


def test_a_seed_chooses_the_variant_wherever_it_stands(served, script) -> None:
    client = served(ScriptedModel, scripts_fpath=script({"text": "a"}, variants=[[{"text": "b"}]]))
    metadata = {"extra_body": json.dumps({"seed": 1})}
    assert said("responses", client.post("/v1/responses", json=asking("responses", metadata=metadata)).json())[0] == "b"
    assert said("chat", client.post(PATHS["chat"], json=asking("chat", seed=1)).json())[0] == "b"
    assert said("chat", client.post(PATHS["chat"], json=asking("chat", seed=2)).json())[0] == "a"


def test_a_request_that_no_script_answers_is_refused_with_the_nearest_name(served, script) -> None:
    client = served(ScriptedModel, scripts_fpath=script({"text": "a"}))
    answer = client.post("/v1/responses", json=asking("responses", metadata={"script": "z"}))
    assert answer.status_code == 400
    assert "there is no script `z`" in answer.json()["error"]["message"]


@pytest.mark.parametrize("metadata", [{"script": ["s"]}, {"script": {"a": 1}}, {"script": 5}, {"script": True}])
@pytest.mark.parametrize("dialect", ["responses", "chat"])
def test_a_script_name_that_is_no_text_is_a_bad_request(served, script, dialect: str, metadata: object) -> None:
    answer = served(ScriptedModel, scripts_fpath=script(*STEPS)).post(
        PATHS[dialect], json=asking(dialect, metadata=metadata)
    )
    assert answer.status_code == 400
    assert "metadata.script" in answer.text


def test_metadata_that_is_no_object_names_no_script(served, script) -> None:
    client = served(ScriptedModel, scripts_fpath=script(*STEPS))
    assert client.post("/v1/responses", json=asking("responses", metadata=["s"])).status_code == 200


def test_a_script_that_cannot_be_read_stops_the_start(served, tmp_path: Path) -> None:
    with pytest.raises(ConfigFileNotFoundError, match="nowhere"):
        served(ScriptedModel, scripts_fpath=str(tmp_path / "nowhere.yaml"))
    (tmp_path / "bad.yaml").write_text("scripts: 3")
    with pytest.raises(ConfigError, match="scripts"):
        served(ScriptedModel, scripts_fpath=str(tmp_path / "bad.yaml"))

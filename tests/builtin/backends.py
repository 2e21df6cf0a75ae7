"""The three kinds of backend as the shipped model servers know them, and what each says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from served_models import model_server
from starlette.testclient import TestClient

from nemo_gym.builtin.responses_api_models.anthropic_model.app import AnthropicModel
from nemo_gym.builtin.responses_api_models.openai_model.app import OpenAIModel
from nemo_gym.builtin.responses_api_models.vllm_model.app import VLLMModel
from nemo_gym.dialects import make_accumulator
from nemo_gym.dialects.conversion import replay_events, responses_to_chat_response, responses_to_messages_response

DIALECTS = ("responses", "chat", "messages")
PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions", "messages": "/v1/messages"}
KEY = "sk-secret-0123456789"
BODIES: dict[str, dict[str, Any]] = {
    "responses": {"input": "what?", "model": "any"},
    "chat": {"messages": [{"role": "user", "content": "what?"}], "model": "any"},
    "messages": {"messages": [{"role": "user", "content": "what?"}], "model": "any", "max_tokens": 9},
}
TEXT = {"type": "output_text", "text": "forty-two", "annotations": []}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "real",
    "error": None,
    "incomplete_details": None,
    "output": [{"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [TEXT]}],
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "usage": {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    },
}


def said_in(dialect: str, response: dict[str, Any] = RESPONSE) -> dict[str, Any]:
    """The answer in a dialect."""
    if dialect == "chat":
        return responses_to_chat_response(response, requested_model="real")[0]
    if dialect == "messages":
        return responses_to_messages_response(response, requested_model="real")[0]
    return response


def stream_of(dialect: str, *, include_usage: bool = True) -> list[bytes]:
    """The answer as the dialect's events."""
    return list(replay_events(dialect, said_in(dialect), include_usage=include_usage))


def front(kind: str, url: str, *, captures: Path | None = None, **settings: Any) -> Any:
    """A model server before a backend of the dialect `kind` at `url`."""
    if kind == "messages":
        named = {"anthropic_base_url": url, "anthropic_api_key": KEY, "anthropic_model": "real"}
        return model_server(AnthropicModel, captures=captures, **named, **settings)
    if kind == "chat":
        named = {"base_url": f"{url}/v1", "api_key": KEY, "model": "real"}
        return model_server(VLLMModel, captures=captures, **named, **settings)
    named = {"openai_base_url": f"{url}/v1", "openai_api_key": KEY, "openai_model": "real", "wire": "responses"}
    return model_server(OpenAIModel, captures=captures, **{**named, **settings})


def client_of(server: Any) -> TestClient:
    """A client of the app as it is served."""
    return TestClient(server.served_app(), raise_server_exceptions=False)


def accumulated(dialect: str, stream: bytes) -> Any:
    """What a reader of the stream ends with."""
    accumulator = make_accumulator(dialect)
    accumulator.feed(stream)
    accumulator.finish()
    return accumulator


def error_of(dialect: str, body: dict[str, Any]) -> dict[str, Any]:
    """The error object of a body in the dialect's own shape."""
    assert (body.get("type") == "error") == (dialect == "messages"), body
    error = body["error"]
    assert {"message", "type"} <= error.keys()
    assert dialect == "messages" or {"param", "code"} <= error.keys()
    return error


def text_in(dialect: str, answer: dict[str, Any]) -> str:
    """The text of a finished answer."""
    if dialect == "chat":
        return answer["choices"][0]["message"]["content"]
    if dialect == "messages":
        return answer["content"][0]["text"]
    return answer["output"][0]["content"][0]["text"]


def encode(value: Any) -> bytes:
    """JSON bytes."""
    return json.dumps(value).encode()

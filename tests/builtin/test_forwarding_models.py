"""`openai_model` and `vllm_model` in front of a backend: what passes through, what is converted, what errors say."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from nemo_gym.builtin.responses_api_models.openai_model.app import OpenAIModel
from nemo_gym.builtin.responses_api_models.openai_model.extra_body import extra_body_of, merge_extra_body
from nemo_gym.builtin.responses_api_models.vllm_model.app import VLLMModel

Served = Callable[..., TestClient]

RESPONSE = {"id": "resp_1", "object": "response", "output": [], "an_extra": {"kept": True}}
COMPLETION = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "real-name",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "hello",
                "reasoning_content": "thinking",
                "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
}
STREAM = b'data: {"id":"c1","choices":[]}\r\n\r\n: comment\n\ndata: [DONE]\n'


def openai(served: Served, url: str, **settings: Any) -> TestClient:
    return served(OpenAIModel, openai_base_url=f"{url}/v1/", openai_api_key="key", openai_model="named", **settings)


def vllm(served: Served, url: Any, **settings: Any) -> TestClient:
    return served(VLLMModel, base_url=url, api_key="key", model="named", **settings)


def test_a_responses_call_passes_through_and_the_configured_model_replaces_the_requests(served, backend) -> None:
    backend.answer("/v1/responses", RESPONSE)
    answer = openai(served, backend.url).post("/v1/responses", json={"input": "hi", "model": "other", "unknown": 1})
    assert answer.json() == RESPONSE
    path, body, headers = backend.asked[0]
    assert (path, body, headers["Authorization"]) == (
        "/v1/responses",
        {"input": "hi", "model": "named", "unknown": 1},
        "Bearer key",
    )


def test_a_stream_passes_through_byte_by_byte(served, backend) -> None:
    backend.answer("/v1/chat/completions", (200, STREAM, {"Content-Type": "text/event-stream"}))
    answer = openai(served, backend.url).post("/v1/chat/completions", json={"messages": [], "stream": True})
    assert answer.content == STREAM
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_a_refusal_keeps_its_status_body_and_retry_after_and_is_tried_again_when_it_may_pass(served, backend) -> None:
    refusal = {"error": {"message": "slow down", "type": "rate_limit", "code": None, "param": None}}
    backend.answer("/v1/responses", (429, refusal, {"Retry-After": "0"}))
    answer = openai(served, backend.url, max_http_attempts=2).post("/v1/responses", json={"input": "hi"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (429, "slow down")
    assert answer.headers["retry-after"] == "0"
    assert answer.headers["x-upstream-status"] == "429"
    assert len(backend.asked) == 2


def test_a_refusal_that_passes_is_not_seen(served, backend) -> None:
    backend.answer("/v1/responses", (503, {"error": {"message": "no"}}, {"Retry-After": "0"}), RESPONSE)
    assert openai(served, backend.url).post("/v1/responses", json={"input": "hi"}).json() == RESPONSE


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": "bad"}}),
        (401, {"error": {"message": "key"}}),
        (404, {"error": {"message": "path"}}),
        (429, {"error": {"message": "quota", "code": "insufficient_quota"}}),
    ],
)
def test_a_refusal_that_cannot_pass_is_tried_once(served, backend, status: int, body: dict) -> None:
    backend.answer("/v1/responses", (status, body, {}))
    assert openai(served, backend.url).post("/v1/responses", json={"input": "hi"}).status_code == status
    assert len(backend.asked) == 1


def test_a_url_where_nothing_answers_is_named_at_once(served) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    answer = openai(served, url).post("/v1/responses", json={"input": "hi"})
    assert answer.status_code == 502
    assert f"{url}/v1/responses" in answer.json()["error"]["message"]


def test_reasoning_items_are_left_out_for_endpoints_that_refuse_them(served, backend) -> None:
    backend.answer("/v1/responses", RESPONSE)
    items = [{"role": "user", "content": "x"}, {"type": "reasoning", "id": "r", "summary": []}]
    openai(served, backend.url, drop_input_reasoning_items=True).post("/v1/responses", json={"input": items})
    assert backend.asked[0][1]["input"] == items[:1]


def test_responses_are_served_by_a_chat_endpoint(served, backend) -> None:
    backend.answer("/v1/chat/completions", COMPLETION)
    request = {"input": "hi", "instructions": "be brief", "max_output_tokens": 9}
    answer = vllm(served, f"{backend.url}/v1").post("/v1/responses", json=request).json()
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "function_call"]
    assert answer["usage"]["input_tokens"] == 5
    sent = backend.asked[0][1]
    assert (sent["model"], sent["max_tokens"], sent["messages"][0]["role"]) == ("named", 9, "system")


def test_messages_are_served_by_a_chat_endpoint(served, backend) -> None:
    backend.answer("/v1/chat/completions", COMPLETION)
    request = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    answer = vllm(served, f"{backend.url}/v1").post("/v1/messages", json=request).json()
    assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use"]
    assert answer["stop_reason"] == "tool_use"


def test_a_prompt_that_is_too_long_is_a_length_stop_unless_errors_are_wanted(served, backend) -> None:
    said = {"error": {"message": "This model's maximum context length is 8 tokens", "code": 400}}
    backend.answer("/v1/chat/completions", (400, said, {}))
    answer = vllm(served, f"{backend.url}/v1").post("/v1/responses", json={"input": "hi"}).json()
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    strict = vllm(served, f"{backend.url}/v1", propagate_context_overflow_errors=True)
    assert strict.post("/v1/responses", json={"input": "hi"}).status_code == 400


@pytest.mark.parametrize(
    ("said", "overflow"),
    [
        ({"error": {"code": "context_length_exceeded", "message": "no"}}, True),
        ({"error": {"type": "exceed_context_size_error", "code": 400}}, True),
        ({"error": {"message": "The input (9 tokens) is longer than the model's context length (8 tokens)."}}, True),
        ({"error": {"message": "The decoder prompt (length 9) is longer than the maximum model length of 8."}}, True),
        ({"error": {"message": "The prompt (total length 9) is too long to fit into the model"}}, True),
        ({"error": {"message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."}}, True),
        ({"error": {"message": "prompt is too long: 9 tokens > 8 maximum"}}, True),
        ({"object": "error", "message": "This model's maximum context length is 8 tokens"}, True),
        ({"detail": "This model's maximum context length is 8 tokens"}, True),
        ({"error": "This model's maximum context length is 8 tokens"}, True),
        ({"error": {"message": "max_tokens must be positive"}}, False),
        ({"error": {"message": "`context length` is no parameter"}}, False),
        ({"error": {"message": "the name is too long", "code": ["context_length_exceeded"], "type": {}}}, False),
        ({"detail": [{"msg": "maximum context length"}]}, False),
    ],
)
def test_an_overflow_is_told_by_its_code_or_a_known_phrase(served, backend, said, overflow) -> None:
    backend.answer("/v1/chat/completions", (400, said, {}))
    answer = vllm(served, f"{backend.url}/v1").post("/v1/responses", json={"input": "hi"})
    assert answer.status_code == (200 if overflow else 400)
    assert not overflow or answer.json()["incomplete_details"] == {"reason": "max_output_tokens"}


def test_an_answer_that_is_no_json_object_is_a_bad_gateway(served, backend) -> None:
    backend.answer("/v1/chat/completions", (200, b"<html>", {"Content-Type": "text/html"}))
    answer = vllm(served, f"{backend.url}/v1").post("/v1/responses", json={"input": "hi"})
    assert answer.status_code == 502
    assert "no JSON object" in answer.json()["error"]["message"]


def test_all_calls_of_a_rollout_meet_the_same_endpoint(served, backend) -> None:
    backend.answer("/a/chat/completions", COMPLETION)
    backend.answer("/b/chat/completions", COMPLETION)
    client = vllm(served, [f"{backend.url}/a", f"{backend.url}/b"])
    met = {}
    for rollout in range(16):
        for _ in range(3):
            client.post(f"/ng-rollout/{rollout}-0/v1/responses", json={"input": "hi"})
            met.setdefault(rollout, set()).add(backend.asked[-1][0])
    assert all(len(paths) == 1 for paths in met.values())
    assert len(set.union(*met.values())) == 2


def test_requests_are_shaped_as_configured(served, backend) -> None:
    backend.answer("/v1/chat/completions", COMPLETION)
    client = vllm(
        served,
        f"{backend.url}/v1",
        extra_body={"top_k": 5, "seed": 1},
        chat_template_kwargs={"enable_thinking": False},
        sampling_overrides={"temperature": 0.1},
        replace_developer_role_with_system=True,
    )
    metadata = {"extra_body": json.dumps({"seed": 7}), "own": "kept"}
    messages = [{"role": "developer", "content": "d"}, {"role": "user", "content": "u"}]
    client.post("/v1/chat/completions", json={"messages": messages, "temperature": 1, "metadata": metadata})
    sent = backend.asked[0][1]
    assert sent["messages"][0]["role"] == "system"
    assert (sent["top_k"], sent["seed"], sent["temperature"]) == (5, 7, 0.1)
    assert (sent["metadata"], sent["chat_template_kwargs"]) == ({"own": "kept"}, {"enable_thinking": False})


def test_extra_body_that_is_no_object_is_ignored() -> None:
    for text in ("[1]", "{", "3"):
        assert extra_body_of({"metadata": {"extra_body": text}}) == {}
    assert extra_body_of({"metadata": None}) == {}
    assert merge_extra_body({"metadata": {"extra_body": '{"a": 1}'}, "a": 2}, {"b": 3}) == {"a": 2, "b": 3}

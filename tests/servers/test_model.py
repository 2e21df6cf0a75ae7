from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import MagicMock

import aiohttp
import pytest
from fastapi import HTTPException, Request
from fastapi.responses import StreamingResponse
from omegaconf import OmegaConf
from starlette.testclient import TestClient

from nemo_gym.base_responses_api_model import (
    BaseResponsesAPIModelConfig,
    CaptureStore,
    SimpleResponsesAPIModel,
    UpstreamError,
    read_model_call_records,
)
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.model_calls import ModelCalls

USAGE = {
    "input_tokens": 7,
    "output_tokens": 3,
    "total_tokens": 10,
    "input_tokens_details": {"cached_tokens": 2},
    "output_tokens_details": {"reasoning_tokens": 0},
}
COMPLETION = {
    "id": "chatcmpl_1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "42"}}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
}
PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions", "messages": "/v1/messages"}
BODIES: dict[str, dict[str, Any]] = {
    "responses": {"input": "what?", "model": "any"},
    "chat": {"messages": [{"role": "user", "content": "what?"}], "model": "any"},
    "messages": {"messages": [{"role": "user", "content": "what?"}], "model": "any", "max_tokens": 9},
}


class TypedModel(SimpleResponsesAPIModel):
    """Answers 42, or raises what it was given."""

    answer: Any = None
    failure: Any = None
    delay_s: float = 0.0
    seen: list[Any] = []

    async def responses(self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        self.seen.append(body)
        await asyncio.sleep(self.delay_s)
        if self.failure is not None:
            raise self.failure
        return NeMoGymResponse(**self.answer)

    async def chat_completions(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> NeMoGymChatCompletion:
        self.seen.append(body)
        await asyncio.sleep(self.delay_s)
        if self.failure is not None:
            raise self.failure
        return NeMoGymChatCompletion(**COMPLETION)


class RawModel(SimpleResponsesAPIModel):
    """Passes bytes on, like a proxy."""

    seen: list[Any] = []

    async def responses(self, body: dict[str, Any]) -> Any:
        self.seen.append(body)
        if body.get("stream"):
            return StreamingResponse(iter([b"event: own\n", b"data: {}\n\n"]), media_type="text/event-stream")
        return {"id": "resp_raw", "object": "response", "status": "completed", "output": [], "echo": body}

    async def chat_completions(self, body: dict[str, Any]) -> Any:
        return COMPLETION


def make(cls: type[SimpleResponsesAPIModel], settings: dict[str, Any] | None = None, **fields: Any) -> Any:
    client = MagicMock(spec=ServerClient)
    client.global_config_dict = OmegaConf.create(settings or {})
    config = BaseResponsesAPIModelConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="policy_model")
    return cls(config=config, server_client=client, **fields)


@pytest.fixture
def answer(response_body: dict[str, Any]) -> dict[str, Any]:
    return {**response_body, "status": "completed", "usage": USAGE}


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_each_dialect_gets_the_answer_in_its_own_shape(answer: dict[str, Any]) -> None:
    client = TestClient(make(TypedModel, answer=answer).setup_webserver())
    response = client.post(PATHS["responses"], json=BODIES["responses"]).json()
    assert response["output"][0]["content"][0]["text"] == "42"
    assert client.post(PATHS["chat"], json=BODIES["chat"]).json()["choices"][0]["message"]["content"] == "42"
    message = client.post(PATHS["messages"], json=BODIES["messages"]).json()
    assert (message["type"], message["content"][0]["text"], message["model"]) == ("message", "42", "any")
    assert client.post(PATHS["chat"] + "/", json=BODIES["chat"]).status_code == 200, "a final slash is no other route"


def test_each_dialect_streams_the_finished_answer(answer: dict[str, Any]) -> None:
    client = TestClient(make(TypedModel, answer=answer).setup_webserver())
    streamed = {dialect: client.post(path, json={**BODIES[dialect], "stream": True}) for dialect, path in PATHS.items()}
    for reply in streamed.values():
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.headers["cache-control"] == "no-cache"
    assert events(streamed["responses"].text)[-1]["type"] == "response.completed"
    assert streamed["chat"].text.rstrip().endswith("data: [DONE]")
    assert events(streamed["messages"].text)[-1]["type"] == "message_stop"


def test_input_is_lenient_whether_it_streams_or_not(answer: dict[str, Any]) -> None:
    server = make(TypedModel, answer=answer, seen=[])
    client = TestClient(server.setup_webserver())
    body = {**BODIES["responses"], "unheard_of": 1, "tools": [{"type": "function", "name": "f"}]}
    for stream in (False, True):
        assert client.post(PATHS["responses"], json={**body, "stream": stream}).status_code == 200
    plain, streamed = server.seen
    assert plain.model_dump() == streamed.model_dump()
    assert plain.tools[0]["name"] == "f"


@pytest.mark.parametrize("dialect", ["responses", "chat", "messages"])
@pytest.mark.parametrize("content", [b"{not json", b"[1]", b"", b'{"stream": "yes"}', b'{"temperature": []}'])
def test_a_bad_body_is_refused_in_the_dialects_shape(dialect: str, content: bytes, answer: dict[str, Any]) -> None:
    client = TestClient(make(TypedModel, answer=answer).setup_webserver())
    reply = client.post(PATHS[dialect], content=content)
    assert reply.status_code == (400 if dialect == "messages" else 422)
    body = reply.json()
    assert body["error"]["message"]
    assert (body.get("type") == "error") == (dialect == "messages")


def test_a_bad_field_is_also_named_in_fastapis_document(answer: dict[str, Any]) -> None:
    client = TestClient(make(TypedModel, answer=answer).setup_webserver())
    reply = client.post(PATHS["responses"], json={"input": "x", "temperature": "warm"})
    assert reply.status_code == 422
    assert reply.json()["detail"][0]["loc"][:2] == ["body", "temperature"]


@pytest.mark.parametrize("dialect", ["responses", "chat", "messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_backends_refusal_keeps_its_status_and_retry_after(dialect: str, stream: bool) -> None:
    failure = UpstreamError(
        "the model answered 429",
        server="http://provider",
        status=429,
        body=b'{"error": {"message": "slow down", "type": "rate_limit", "param": null, "code": "rl"}}',
        headers={"Retry-After": "7"},
        dialect="chat",
    )
    client = TestClient(make(TypedModel, failure=failure).setup_webserver())
    reply = client.post(PATHS[dialect], json={**BODIES[dialect], "stream": stream})
    assert reply.status_code == 429
    assert (reply.headers["x-upstream-status"], reply.headers["retry-after"]) == ("429", "7")
    assert reply.json()["error"]["message"] == "slow down"
    assert (reply.json().get("type") == "error") == (dialect == "messages")


def test_other_failures_of_a_handler_keep_their_status_too() -> None:
    inner = aiohttp.ClientResponseError(MagicMock(real_url="http://x/"), (), status=404, message="Not Found")
    inner.response_content = b'{"detail": "no such model"}'  # type: ignore[attr-defined]
    for failure, status, said in (
        (inner, 404, "no such model"),
        (HTTPException(413, "too large for us"), 413, "too large for us"),
    ):
        client = TestClient(make(TypedModel, failure=failure).setup_webserver())
        for dialect, path in PATHS.items():
            reply = client.post(path, json=BODIES[dialect])
            assert (reply.status_code, reply.json()["error"]["message"]) == (status, said)


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (RuntimeError("a bug"), 500),
        (TimeoutError("too slow"), 504),
        (ConnectionResetError("gone"), 502),
        (UpstreamError("no model answers at `http://x`", server="http://x"), 502),
    ],
)
def test_what_nobody_meant_to_answer_is_answered_in_the_dialects_shape(failure: Exception, status: int) -> None:
    client = TestClient(make(TypedModel, failure=failure).served_app())
    for dialect, path in PATHS.items():
        reply = client.post(path, json=BODIES[dialect])
        assert reply.status_code == status
        assert str(failure) in reply.json()["error"]["message"]
    assert (
        str(failure) in client.post("/ng-rollout/0-0/v1/messages", json=BODIES["messages"]).json()["error"]["message"]
    )


def test_a_backend_that_takes_the_raw_body_gets_it_whole_and_streams_truly() -> None:
    server = make(RawModel, seen=[])
    client = TestClient(server.setup_webserver())
    sent = {**BODIES["responses"], "unheard_of": {"a": None}}
    assert client.post(PATHS["responses"], json=sent).json()["echo"] == sent
    reply = client.post(PATHS["responses"], json={**sent, "stream": True})
    assert reply.content == b"event: own\ndata: {}\n\n"
    assert server.seen[1]["stream"] is True
    replayed = client.post(PATHS["chat"], json={**BODIES["chat"], "stream": True})
    assert replayed.text.rstrip().endswith("data: [DONE]"), "a plain answer is replayed"


def test_the_served_object_can_be_changed_last(answer: dict[str, Any]) -> None:
    class Finalizing(TypedModel):
        def _finalize_served_response(self, response: Any) -> Any:
            response.metadata = {"seen": "yes"}
            return response

    client = TestClient(make(Finalizing, answer=answer).setup_webserver())
    assert client.post(PATHS["responses"], json=BODIES["responses"]).json()["metadata"] == {"seen": "yes"}


def test_a_native_messages_handler_replaces_the_conversion(answer: dict[str, Any]) -> None:
    class Native(TypedModel):
        async def messages(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
            return {"type": "message", "content": [], "echo": body}

    client = TestClient(make(Native, answer=answer).setup_webserver())
    assert client.post(PATHS["messages"], json=BODIES["messages"]).json()["echo"] == BODIES["messages"]


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("/chat/completions", "/chat/completions"),
        ("/v1/v1/responses", "/v1/v1/responses"),
        ("/ng-rollout/0-0/messages", "/messages"),
        ("/ng-rollout/0-0/inv/root/sub/v1/responses", "/sub/v1/responses"),
    ],
)
def test_a_path_of_no_route_is_told_what_a_base_url_looks_like(answer: dict[str, Any], path: str, left: str) -> None:
    client = TestClient(make(TypedModel, answer=answer).setup_webserver())
    refused = client.post(path, json={"input": "x"})
    assert refused.status_code == 404
    for word in (f"`{left}` is no route", "`/v1/messages`", "ends in `/v1`", "`%2F`"):
        assert word in refused.json()["detail"]


def test_models_tokens_and_capture_health_have_routes() -> None:
    client = TestClient(make(RawModel).setup_webserver())
    assert [entry["id"] for entry in client.get("/v1/models").json()["data"]] == ["policy_model"]
    counted = client.post("/v1/messages/count_tokens", json={"messages": [{"role": "user", "content": "x" * 400}]})
    assert 100 <= counted.json()["input_tokens"] < 120
    assert client.post("/v1/messages/count_tokens", content=b"no").json()["type"] == "error"
    assert client.get("/ng-capture/health").json() == {"enabled": False}


async def test_prefixed_calls_are_captured_and_others_are_not(
    tmp_path: Any, serve: Any, answer: dict[str, Any]
) -> None:
    """A3, C3, C6, C7, C12: the route records what passed, under the id of the prefix."""
    settings = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path)}
    server = make(TypedModel, settings, answer=answer)
    served = serve(server.served_app())
    assert str(tmp_path) in server.startup_notice()
    async with aiohttp.ClientSession() as session:
        for dialect, path in PATHS.items():
            plain = await session.post(served.url + path, json=BODIES[dialect])
            prefixed = await session.post(f"{served.url}/ng-rollout/0-1{path}", json=BODIES[dialect])
            assert plain.status == prefixed.status == 200
            assert (await plain.json()).keys() == (await prefixed.json()).keys()
            assert prefixed.headers["x-ng-model-call-id"]
        health = await (await session.get(served.url + "/ng-capture/health")).json()
    records = read_model_call_records(CaptureStore(tmp_path), "0-1")
    assert [record.tokens_in for record in records] == [7, 7, 7]
    assert (health["enabled"], health["calls"], health["failed"]) == (True, 3, 0)


async def test_the_setting_applies_to_every_model_server_of_the_run_c2(
    tmp_path: Any, serve: Any, answer: dict[str, Any]
) -> None:
    """C2, C5: whatever a server overrides, its calls are in the one file of the rollout, under its own name."""

    class Dispatching(RawModel):
        async def responses_dispatch(self, request: Request, body: dict[str, Any]) -> Any:
            return await self.responses(body)

        chat_completions_dispatch = responses_dispatch
        messages = responses_dispatch

    class WithOwnRoutes(TypedModel):
        def setup_webserver(self) -> Any:
            app = super().setup_webserver()
            app.add_api_route("/own", lambda: "mine")
            return app

    settings = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path)}
    kinds = [TypedModel, RawModel, Dispatching, WithOwnRoutes]
    async with aiohttp.ClientSession() as session:
        for kind in kinds:
            server = make(kind, settings, **({"answer": answer} if issubclass(kind, TypedModel) else {}))
            server.config.name = kind.__name__
            served = serve(server.served_app())
            for dialect, path in PATHS.items():
                got = await session.post(f"{served.url}/ng-rollout/0-1{path}", json=BODIES[dialect])
                assert got.status == 200, (kind, dialect)
                await got.read()
    records = read_model_call_records(CaptureStore(tmp_path), "0-1")
    assert [(record.model_ref.name, record.dialect) for record in records if record.model_ref] == [
        (kind.__name__, dialect) for kind in kinds for dialect in PATHS
    ]


async def test_the_record_of_a_failed_call_keeps_the_exceptions_category(tmp_path: Any, serve: Any) -> None:
    settings = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path)}
    served = serve(make(TypedModel, settings, failure=ConnectionRefusedError("no model there")).served_app())
    async with aiohttp.ClientSession() as session:
        reply = await session.post(f"{served.url}/ng-rollout/5-0/v1/responses", json=BODIES["responses"])
        assert reply.status == 502
        call_id = reply.headers["x-ng-model-call-id"]
    (record,) = read_model_call_records(CaptureStore(tmp_path), "5-0")
    assert (record.error_category, record.model_call_id) == ("connection", call_id)


def test_unusable_capture_settings_stop_the_server_before_it_serves() -> None:
    with pytest.raises(ValueError, match="model_call_capture_dir"):
        make(RawModel, {"observability_enabled": True}).setup_webserver()


@pytest.mark.parametrize("dialect", ["responses", "chat", "messages"])
async def test_a_slow_answer_is_preceded_by_signs_of_life(
    dialect: str, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make(TypedModel, answer=answer, delay_s=0.2)
    server.__dict__["_model_calls"] = ModelCalls(server, keep_alive_s=0.05)
    text = TestClient(server.setup_webserver()).post(PATHS[dialect], json={**BODIES[dialect], "stream": True}).text
    assert text.startswith("event: ping\n" if dialect == "messages" else ": keep-alive\n\n")
    last = {"responses": "response.completed", "chat": "[DONE]", "messages": "message_stop"}[dialect]
    assert last in text.rstrip().rsplit("\n\n", 1)[-1]


@pytest.mark.parametrize(
    "failure",
    [
        RuntimeError("late bug"),
        UpstreamError("late bug", server="x", status=400),
    ],
)
@pytest.mark.parametrize("dialect", ["responses", "chat", "messages"])
def test_a_late_failure_ends_the_stream_with_the_dialects_error(dialect: str, failure: Exception) -> None:
    server = make(TypedModel, failure=failure, delay_s=0.1)
    server.__dict__["_model_calls"] = ModelCalls(server, keep_alive_s=0.02)
    reply = TestClient(server.setup_webserver()).post(PATHS[dialect], json={**BODIES[dialect], "stream": True})
    last = events(reply.text)[-1]
    inner = last["response"]["error"] if dialect == "responses" else last["error"]
    assert reply.status_code == 200
    assert inner["message"] == "late bug"
    if dialect == "responses":
        assert last["type"] == "response.failed"
    else:
        assert "event: error\n" in reply.text

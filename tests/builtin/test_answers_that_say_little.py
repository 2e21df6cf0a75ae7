"""Answers that are errors under HTTP 200, that count nothing, or that are cut inside an event, behind every pair."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from backends import BODIES, DIALECTS, PATHS, RESPONSE, accumulated, client_of, error_of, front, said_in, stream_of
from served_models import last_line, model_server, records

from nemo_gym.base_responses_api_model import SimpleResponsesAPIModel
from nemo_gym.builtin.responses_api_models.scripted_model.app import ScriptedModel
from nemo_gym.dialects.conversion import replay_events

STREAMED = {"Content-Type": "text/event-stream"}
UNKNOWN = (None, None, None, None)


def failed(wire: str, code: str) -> dict[str, Any]:
    error = {"code": code, "message": "it said no"}
    if wire == "responses":
        return {**RESPONSE, "status": "failed", "output": [], "error": error}
    return {"type": "error", "error": {"type": code, **error}} if wire == "messages" else {"error": error}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("client", "wire"), [pair for pair in itertools.product(("chat", "messages"), DIALECTS) if pair[0] != pair[1]]
)
def test_an_answer_that_failed_under_200_gets_the_status_that_belongs_to_it(
    backend, tmp_path, client, wire, stream
) -> None:
    cases = {"rate_limit_exceeded": 429, "overloaded_error": 529, "context_length_exceeded": 400, "odd": 500}
    with client_of(front(wire, backend.url, captures=tmp_path)) as http:
        for code, status in cases.items():
            backend.answer(PATHS[wire], failed(wire, code))
            answer = http.post(f"/ng-rollout/r-0{PATHS[client]}", json={**BODIES[client], "stream": stream})
            assert answer.status_code == status
            error = error_of(client, answer.json())
            assert error["message"] == "it said no"
            assert client != "messages" or (error["type"] == "overloaded_error") == (status == 529)
            line = last_line(tmp_path, "r-0")
            assert (line["client_status_code"], line["upstream_status_code"]) == (status, 200)
            assert line["error_category"]


NO_ANSWERS: list[dict[str, Any]] = [
    {},
    {"status": "ok"},
    {"detail": "Not Found"},
    {"object": "error", "message": "no such model", "code": 404},
    {"choices": None, "content": None, "output": None},
    {"choices": "forty-two", "content": "forty-two", "output": "forty-two"},
]
FAILURES_ELSEWHERE: dict[str, list[dict[str, Any]]] = {
    "responses": [{"type": "error"}],
    "chat": [{"type": "error"}, {"status": "failed"}, {"status": "cancelled"}],
    "messages": [{"status": "failed"}, {"status": "cancelled"}],
}
"""What is a failure in another dialect only."""
FAILURES: dict[str, list[dict[str, Any]]] = {
    "responses": [{"error": "no"}, {"status": "failed"}, {"status": "cancelled", "output": None}],
    "chat": [{"error": "no"}, {"error": {"message": "no"}, "choices": None}, {"error": "no", "choices": "x"}],
    "messages": [{"error": "no"}, {"error": {"message": "no"}}, {"type": "error"}, {"type": "error", "error": "no"}],
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("client", "wire"), [pair for pair in itertools.product(DIALECTS, DIALECTS) if pair[0] != pair[1]]
)
def test_an_object_that_is_no_answer_is_not_converted_to_an_empty_one(backend, tmp_path, client, wire, stream) -> None:
    """A verifier would judge it, and its 0 would measure the gateway that spoke."""
    with client_of(front(wire, backend.url, captures=tmp_path, max_http_attempts=1)) as http:
        for said in (*NO_ANSWERS, *FAILURES_ELSEWHERE[wire]):
            backend.answer(PATHS[wire], said)
            answer = http.post(f"/ng-rollout/r-0{PATHS[client]}", json={**BODIES[client], "stream": stream})
            assert answer.status_code == 502, answer.text
            assert (
                f"{PATHS[wire]}` answered with an object that is no answer"
                in error_of(client, answer.json())["message"]
            )
            assert last_line(tmp_path, "r-0")["error_category"] == "exception"
        empty = {"choices": [], "content": [], "output": [], "object": "x", "status": "completed"}
        backend.answer(PATHS[wire], empty)
        assert http.post(f"/ng-rollout/r-1{PATHS[client]}", json=BODIES[client]).status_code == 200


@pytest.mark.parametrize(
    ("client", "wire"), [pair for pair in itertools.product(DIALECTS, DIALECTS) if pair[0] != pair[1]]
)
def test_a_failure_that_says_little_is_a_failure_and_no_empty_answer(backend, tmp_path, client, wire) -> None:
    with client_of(front(wire, backend.url, captures=tmp_path)) as http:
        for said in FAILURES[wire]:
            backend.answer(PATHS[wire], said)
            answer = http.post(f"/ng-rollout/r-0{PATHS[client]}", json=BODIES[client])
            body = answer.json()
            if client == "responses":
                assert (answer.status_code, body["status"], body["output"]) == (200, "failed", [])
            else:
                assert answer.status_code == 500, body
            message = (body if client == "responses" else {"error": error_of(client, body)})["error"]["message"]
            assert "None" not in message
            assert message == "no" or "error" not in said
            line = last_line(tmp_path, "r-0")
            assert (line["client_status_code"], line["upstream_status_code"]) == (answer.status_code, 200)


@pytest.mark.parametrize(
    ("code", "kind", "category"),
    [
        ("rate_limit_exceeded", "rate_limit_error", "rate_limit"),
        ("overloaded_error", "overloaded_error", "overloaded"),
        ("invalid_api_key", "authentication_error", "auth"),
        ("model_not_found", "not_found_error", "not_found"),
        ("context_length_exceeded", "invalid_request_error", "client_error"),
        ("server_error", "api_error", "upstream_error"),
    ],
)
@pytest.mark.parametrize("wire", ["responses", "chat"])
def test_an_error_inside_a_stream_has_the_type_that_messages_clients_know(
    backend, tmp_path, wire, code, kind, category
) -> None:
    stream = b"".join(replay_events(wire, failed(wire, code)))
    backend.answer(PATHS[wire], (200, stream, STREAMED))
    with client_of(front(wire, backend.url, captures=tmp_path)) as http:
        answer = http.post(f"/ng-rollout/r-0{PATHS['messages']}", json={**BODIES["messages"], "stream": True})
    ended = accumulated("messages", answer.content)
    assert (ended.terminal, ended.stream_error) == ("error", {"type": kind, "message": "it said no"})
    assert last_line(tmp_path, "r-0")["error_category"] == category


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("kept", [1, 25, -2])
def test_a_stream_cut_inside_an_event_ends_with_an_error_and_stays_the_answer_it_was(
    backend, tmp_path, dialect, kept
) -> None:
    events = stream_of(dialect)
    spoken = next(place for place, event in enumerate(events) if b"forty-two" in event)

    async def cut(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers=STREAMED)
        await answer.prepare(request)
        for event in [*events[: spoken + 1], events[spoken + 1][:kept]]:
            await answer.write(event)
        await asyncio.sleep(0.05)  # a reset may overtake bytes that nobody has read yet
        assert request.transport is not None
        request.transport.close()
        return answer

    backend.answer(PATHS[dialect], cut)
    with client_of(front(dialect, backend.url, captures=tmp_path)) as http:
        answer = http.post(f"/ng-rollout/r-0{PATHS[dialect]}", json={**BODIES[dialect], "stream": True})
    assert answer.content.startswith(b"".join(events[: spoken + 1]))
    ended = accumulated(dialect, answer.content)
    assert ended.terminal == "error"
    assert "sequence_gap" not in ended.problems
    record = records(tmp_path, "r-0")[-1]
    assert (record.terminal, record.response_id, record.model) == ("error", "resp_1", "real")
    assert record.error_category in ("connection", "upstream_error")
    assert "forty-two" in str(record.response)


@pytest.mark.parametrize("ending", ["whole", "stream", "cut"])
@pytest.mark.parametrize("wire", ["responses", "chat"])
def test_counts_that_only_fill_the_shape_of_messages_are_recorded_as_unknown(backend, tmp_path, wire, ending) -> None:
    said = said_in(wire, {**RESPONSE, "usage": None})
    events = list(replay_events(wire, said))

    async def cut(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers=STREAMED)
        await answer.prepare(request)
        await answer.write(b"".join(events[:-2]))
        return answer

    answers = {"whole": said, "stream": (200, b"".join(events), STREAMED), "cut": cut}
    backend.answer(PATHS[wire], answers[ending])
    with client_of(front(wire, backend.url, captures=tmp_path)) as http:
        body = {**BODIES["messages"], "stream": ending != "whole"}
        assert http.post(f"/ng-rollout/r-0{PATHS['messages']}", json=body).status_code == 200
    check_unknown(tmp_path)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("counted", [False, True])
def test_a_server_that_counts_nothing_is_recorded_so_in_messages(tmp_path, stream, counted) -> None:
    class Silent(SimpleResponsesAPIModel):
        async def responses(self, body: dict[str, Any]) -> Any:
            return RESPONSE if counted else {**RESPONSE, "usage": None}

        async def chat_completions(self, body: dict[str, Any]) -> Any:
            raise NotImplementedError

    with client_of(model_server(Silent, captures=tmp_path)) as http:
        http.post(f"/ng-rollout/r-0{PATHS['messages']}", json={**BODIES["messages"], "stream": stream})
    if not counted:
        check_unknown(tmp_path)
    else:
        record = records(tmp_path, "r-0")[-1]
        assert (record.tokens_in, record.tokens_out, record.cached_tokens) == (5, 2, 0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_script_without_counts_is_recorded_so_in_messages_and_says_what_it_left_out(tmp_path, stream) -> None:
    script = tmp_path / "scripts.yaml"
    script.write_text("scripts: [{name: s, steps: [{text: hi, usage: null}]}]")
    with client_of(model_server(ScriptedModel, captures=tmp_path / "own", scripts_fpath=str(script))) as http:
        http.post(f"/ng-rollout/r-0{PATHS['messages']}", json={**BODIES["messages"], "stream": stream, "top_k": 4})
    check_unknown(tmp_path / "own")
    assert "`top_k` dropped" in last_line(tmp_path / "own", "r-0")["conversion_notes"]


def check_unknown(captures: Path) -> None:
    record = records(captures, "r-0")[-1]
    assert (record.tokens_in, record.tokens_out, record.tokens_total, record.cached_tokens) == UNKNOWN
    assert record.response is not None
    assert record.response["usage"] == {"input_tokens": 0, "output_tokens": 0}, "the shape requires numbers"

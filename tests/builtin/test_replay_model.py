"""`replay_model`: a captured run is answered again, call by call, in any dialect; what was not captured is a 404."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from backends import BODIES, DIALECTS, PATHS, accumulated, client_of, error_of, front, said_in, text_in
from served_models import last_line, model_server

from nemo_gym.builtin.responses_api_models.replay_model.app import ReplayModel
from nemo_gym.errors import ConfigError

SECOND = {"role": "user", "content": "and then?"}


def replaying(captures: Path, **settings: Any) -> Any:
    return client_of(model_server(ReplayModel, captures_fpath=str(captures), **settings))


@pytest.fixture
def captured(backend, tmp_path) -> Path:
    """Two rollouts of a chat agent: the same question, other answers."""
    folder = tmp_path / "run" / "captures"
    with client_of(front("chat", backend.url, captures=folder, max_http_attempts=1)) as http:
        for rollout in ("0-0", "0-1"):
            for turn in range(2):
                completion = said_in("chat")
                completion["choices"][0]["message"]["content"] = f"answer {turn} of {rollout}"
                backend.answer(PATHS["chat"], completion)
                body = dict(BODIES["chat"])
                if turn:
                    body["messages"] = [*body["messages"], {"role": "assistant", "content": "x"}, SECOND]
                http.post(f"/ng-rollout/{rollout}{PATHS['chat']}", json=body)
        backend.answer(
            PATHS["chat"], (429, {"error": {"message": "slow", "type": "t", "code": None}}, {}), said_in("chat")
        )
        for _ in range(2):
            http.post(f"/ng-rollout/1-0{PATHS['chat']}", json={"model": "m", "messages": [SECOND]})
    return tmp_path / "run"


def test_each_rollout_gets_its_own_answers_again(captured) -> None:
    with replaying(captured) as http:
        for rollout in ("0-1", "0-0"):
            answer = http.post(f"/ng-rollout/{rollout}{PATHS['chat']}", json={**BODIES["chat"], "model": "another"})
            assert text_in("chat", answer.json()) == f"answer 0 of {rollout}"
        strangers = [http.post(f"/ng-rollout/9-9{PATHS['chat']}", json=BODIES["chat"]).json() for _ in range(3)]
    assert [text_in("chat", answer) for answer in strangers] == [
        "answer 0 of 0-0",
        "answer 0 of 0-1",
        "answer 0 of 0-1",
    ], "who was not there gets one after the other"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_dialect_that_is_asked_is_answered(captured, dialect, stream) -> None:
    with replaying(captured) as http:
        answer = http.post(f"/ng-rollout/0-0{PATHS[dialect]}", json={**BODIES[dialect], "stream": stream})
    assert answer.status_code == 200
    finished = accumulated(dialect, answer.content).response if stream else answer.json()
    assert text_in(dialect, finished) == "answer 0 of 0-0"


def test_errors_are_replayed_in_their_turn(captured) -> None:
    body = {"model": "m", "messages": [SECOND], "max_tokens": 5}
    with replaying(captured) as http:
        first = http.post(f"/ng-rollout/1-0{PATHS['chat']}", json={key: body[key] for key in ("model", "messages")})
        second = http.post(f"/ng-rollout/1-0{PATHS['chat']}", json={key: body[key] for key in ("model", "messages")})
    assert (first.status_code, first.json()["error"]["message"]) == (429, "slow")
    assert second.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_was_never_captured_is_a_clear_404(captured, tmp_path, dialect, stream) -> None:
    body = {**BODIES[dialect], "stream": stream}
    body |= {"input": "else"} if dialect == "responses" else {"messages": [{"role": "user", "content": "else"}]}
    own = tmp_path / "own"
    with client_of(model_server(ReplayModel, captures=own, captures_fpath=str(captured))) as http:
        answer = http.post(f"/ng-rollout/0-0{PATHS[dialect]}", json=body)
    assert answer.status_code == 404
    assert "was captured" in error_of(dialect, answer.json())["message"]
    line = last_line(own, "0-0")
    assert (line["error_category"], line["local_response_reason"]) == ("not_found", "not_captured")


def test_recorded_timing_waits_as_the_model_did(captured) -> None:
    capture = next(captured.rglob("0-0.capture.jsonl"))
    lines = [json.loads(line) for line in capture.read_text().splitlines()]
    for line in lines:
        line["latency_ms"], line["latency_ttft_ms"] = 300.0, 100.0
    capture.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with replaying(capture, timing="recorded") as http:
        for stream in (False, True):
            begun = time.monotonic()
            http.post(f"/ng-rollout/0-0{PATHS['chat']}", json={**BODIES["chat"], "stream": stream})
            assert time.monotonic() - begun >= 0.29


def test_a_folder_without_captures_stops_the_start(tmp_path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="captures_fpath"):
            replaying(path)


@pytest.mark.parametrize("ending", [{"error_category": "cancelled"}, {"error_category": "stream_truncated"}])
def test_an_answer_that_was_cut_is_not_replayed_as_a_whole_one(captured, ending) -> None:
    capture = next(captured.rglob("0-0.capture.jsonl"))
    whole = capture.read_text().splitlines()[0]
    cut = {**json.loads(whole), **ending, "stream": True, "terminal": None, "started_at": 1.0}
    cut["response"]["choices"][0] |= {"message": {"role": "assistant", "content": "answ"}, "finish_reason": None}
    capture.write_text(json.dumps(cut) + "\n" + whole + "\n")
    with replaying(capture) as http:
        answer = http.post(f"/ng-rollout/0-0{PATHS['chat']}", json=BODIES["chat"])
    assert text_in("chat", answer.json()) == "answer 0 of 0-0"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["chat", "messages"])
def test_a_recorded_response_that_failed_is_an_error_in_other_dialects(backend, tmp_path, dialect, stream) -> None:
    failed = {**said_in("responses"), "status": "failed", "error": {"code": "rate_limit_exceeded", "message": "slow"}}
    backend.answer(PATHS["responses"], failed)
    with client_of(front("responses", backend.url, captures=tmp_path)) as http:
        http.post(f"/ng-rollout/0-0{PATHS['responses']}", json=BODIES["responses"])
    with replaying(tmp_path) as http:
        answer = http.post(f"/ng-rollout/0-0{PATHS[dialect]}", json={**BODIES[dialect], "stream": stream})
    assert (answer.status_code, error_of(dialect, answer.json())["message"]) == (429, "slow")

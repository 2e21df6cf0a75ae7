from __future__ import annotations

import asyncio
import fcntl
import gzip
import json
import time
import zlib
from typing import Any

import pytest

from nemo_gym.capture import (
    CaptureMiddleware,
    build_model_call_record,
    capture_health,
    current_invocation_id,
    current_rollout_id,
    model_call_id_of,
    read_model_call_records,
    report_execution,
)

PATHS = ("/v1/responses", "/v1/chat/completions", "/v1/messages")
ANSWER = b'{"id": "r1", "model": "m", "output": [], "usage": {"input_tokens": 3, "output_tokens": 4}}'


async def test_a_call_leaves_one_line_with_the_keys_in_order(captured: Any, tools: Any) -> None:
    app = captured(tools.json_app(ANSWER))
    answer = await app.call("/ng-rollout/0-0/v1/responses", b'{"model": "m", "input": "hi"}')
    assert answer.body == ANSWER
    (line,) = app.lines()
    assert list(line)[:11] == [
        "model_call_id",
        "dialect",
        "model_ref",
        "started_at",
        "completed_at",
        "latency_ms",
        "latency_ttft_ms",
        "status_code",
        "error_category",
        "request",
        "response",
    ]
    assert line["model_call_id"] == answer.headers["x-ng-model-call-id"]
    assert len(line["model_call_id"]) == 32
    assert line["model_ref"] == {"type": "responses_api_models", "name": "policy"}
    assert line["request"] == {"model": "m", "input": "hi"}
    assert line["response"] == json.loads(ANSWER)
    assert line["started_at"] <= line["completed_at"]
    assert (line["stream"], line["method"], line["client_status_code"]) == (False, "POST", 200)
    assert "client_session_id" not in line
    assert "request_raw" not in line


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("slash", ["", "/"])
async def test_the_prefix_is_taken_off_and_both_slash_forms_are_calls_c6(
    captured: Any, tools: Any, path: str, slash: str
) -> None:
    inner = tools.json_app(b"{}")
    app = captured(inner)
    await app.call(f"/ng-rollout/0-0{path}{slash}")
    assert inner.seen == [(path, b"{}")]
    assert len(app.lines()) == 1


async def test_an_unprefixed_call_passes_and_is_not_captured_c7(captured: Any, tools: Any) -> None:
    inner = tools.json_app(b"{}")
    app = captured(inner)
    answer = await app.call("/v1/responses")
    assert inner.seen == [("/v1/responses", b"{}")]
    assert "x-ng-model-call-id" not in answer.headers
    assert list(app.store.root.iterdir()) == []


async def test_the_prefix_is_taken_off_when_capture_is_off_c1(tools: Any) -> None:
    inner = tools.json_app(b"{}")
    answer = await tools.call(CaptureMiddleware(inner), "/ng-rollout/0-0/v1/responses")
    assert inner.seen == [("/v1/responses", b"{}")]
    assert len(answer.headers["x-ng-model-call-id"]) == 32


async def test_the_prefix_counts_once_and_only_at_the_start(captured: Any, tools: Any) -> None:
    inner = tools.json_app(b"{}")
    app = captured(inner)
    await app.call("/ng-rollout/a/ng-rollout/b/v1/responses")
    await app.call("/x/ng-rollout/a/v1/responses")
    await app.call("/ng-rollout/a")
    assert [path for path, _ in inner.seen] == [
        "/ng-rollout/b/v1/responses",
        "/x/ng-rollout/a/v1/responses",
        "/ng-rollout/a",
    ]
    assert app.lines("a") == []


async def test_only_post_is_a_model_call(captured: Any, tools: Any) -> None:
    app = captured(tools.json_app(b"{}", status=405))
    await app.call("/ng-rollout/0-0/v1/responses", method="GET")
    await app.call("/ng-rollout/0-0/v1/models")
    assert app.lines() == []


async def test_invocation_and_token_capture_segments_are_understood(captured: Any, tools: Any) -> None:
    inner = tools.json_app(b"{}")
    app = captured(inner)
    await app.call("/ng-rollout/0-0/inv/root%2Fsub%20a/v1/messages")
    await app.call("/ng-rollout/0-0/training-token-capture/v1/messages")
    await app.call("/ng-rollout/0-0/inv/x/training-token-capture/v1/messages")
    await app.call("/ng-rollout/0-0/training-token-capture/inv/y/v1/messages")
    assert {path for path, _ in inner.seen} == {"/v1/messages"}
    assert [line.get("invocation_id") for line in app.lines()] == ["root/sub a", None, "x", "y"]


BAD_IDS = ["a%20b", "%C3%A9", "a%2Fb", "..", "%2e%2e", "x" * 300, "-x", "", ".", "a.", "a%00b"]


@pytest.mark.parametrize("rollout_id", BAD_IDS)
@pytest.mark.parametrize("path", PATHS)
async def test_an_unusable_id_is_a_visible_error_in_the_dialects_shape(
    captured: Any, tools: Any, rollout_id: str, path: str
) -> None:
    """Nothing is served that could not be recorded, and no file appears anywhere."""
    inner = tools.json_app(b"{}")
    app = captured(inner)
    answer = await app.call(f"/ng-rollout/{rollout_id}{path}")
    assert answer.status == 400
    assert "x-ng-model-call-id" in answer.headers
    assert isinstance(answer.json()["error"]["message"], str)
    assert answer.json().get("type") == ("error" if path == "/v1/messages" else None)
    assert inner.seen == []
    assert list(app.store.root.rglob("*")) == []
    assert capture_health(app.app)["refused"] == 1


async def test_an_unusable_id_is_refused_when_capture_is_off_too(tools: Any) -> None:
    answer = await tools.call(CaptureMiddleware(tools.json_app(b"{}")), "/ng-rollout/-x/v1/responses")
    assert answer.status == 400


async def test_the_current_rollout_is_set_while_a_handler_runs(captured: Any, tools: Any) -> None:
    seen: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append((current_rollout_id(), current_invocation_id()))
        await tools.json_app(b"{}")(scope, receive, send)

    app = captured(inner)
    await app.call("/ng-rollout/0-0/inv/sub/v1/responses")
    await app.call("/ng-rollout/1-0/v1/models", method="GET")
    await tools.call(CaptureMiddleware(inner), "/ng-rollout/2-0/v1/responses")
    await app.call("/v1/responses")
    assert seen == [("0-0", "sub"), ("1-0", None), ("2-0", None), (None, None)]
    assert current_rollout_id() is None


@pytest.mark.parametrize(
    ("values", "expected"), [(["a"], "a"), (["a", "a"], "a"), (["a", "b"], None), ([" "], None), ([" ", "a"], "a")]
)
async def test_the_session_header_counts_when_it_says_one_thing(
    captured: Any, tools: Any, values: list[str], expected: str | None
) -> None:
    app = captured(tools.json_app(b"{}"))
    await app.call("/ng-rollout/0-0/v1/responses", headers=tuple(("X-Session-Id", value) for value in values))
    assert app.lines()[0].get("client_session_id") == expected


async def test_only_harmless_request_headers_are_kept(captured: Any, tools: Any) -> None:
    app = captured(tools.json_app(b"{}"))
    secret = "sk-very-secret"
    await app.call(
        "/ng-rollout/0-0/v1/messages",
        headers=(("Authorization", f"Bearer {secret}"), ("x-api-key", secret), ("User-Agent", "cli/1")),
    )
    assert app.lines()[0]["request_headers"] == {"user-agent": "cli/1"}
    assert secret not in app.store.path_for("0-0").read_text()


DEEP = b'{"a":' + b"[" * 900 + b"]" * 900 + b"}"
OBJECTS = [
    b'{"a":"\\ud800"}',
    b'{"a":1000000000000000000000000000000}',
    b'{\n  "a": [1,\r\n 2]\n}\n',
    '{"a":"é\u2028\u0085"}'.encode(),
    b'{"a":1,"a":2}',
    DEEP,
]


@pytest.mark.parametrize("body", OBJECTS)
async def test_odd_json_objects_pass_unchanged_and_are_recorded(captured: Any, tools: Any, body: bytes) -> None:
    """A value that some reader refuses never costs the record; the line stays one line."""
    inner = tools.json_app(body)
    app = captured(inner)
    answer = await app.call("/ng-rollout/0-0/v1/chat/completions", body)
    assert answer.body == body
    assert inner.seen[0][1] == body
    (line,) = app.lines()
    assert isinstance(line["request"], dict)
    assert line["error_category"] is None
    (raw,) = app.store.path_for("0-0").read_bytes().splitlines(keepends=True)
    on_disk = json.loads(raw)  # the standard parser keeps integers of any size
    assert on_disk["request"] == on_disk["response"] == json.loads(body)


async def test_not_a_number_becomes_null_with_a_note(captured: Any, tools: Any) -> None:
    app = captured(tools.json_app(b"{}"))
    await app.call("/ng-rollout/0-0/v1/chat/completions", b'{"t": NaN, "u": Infinity}')
    (line,) = app.lines()
    assert line["request"] == {"t": None, "u": None}
    assert line["capture_problems"] == ["request_not_finite"]


@pytest.mark.parametrize(
    ("body", "raw"),
    [
        (b"", None),
        (b"[1, 2]", "[1, 2]"),
        (b'"text"', '"text"'),
        (b'{"cut": ', '{"cut": '),
        (b'{"a":"\xff"}', '{"a":"\ufffd"}'),
        (b"\x00\x01", "\x00\x01"),
    ],
)
async def test_a_request_that_is_no_object_stays_as_text_c14(
    captured: Any, tools: Any, body: bytes, raw: str | None
) -> None:
    inner = tools.json_app(b'{"detail": "no"}', status=422)
    app = captured(inner)
    await app.call("/ng-rollout/0-0/v1/responses", body)
    assert inner.seen[0][1] == body
    (line,) = app.lines()
    assert line["request"] is None
    assert line.get("request_raw") == raw
    assert line["error_category"] == "client_error"
    assert read_model_call_records(app.store, "0-0")[0].request is None


@pytest.mark.parametrize(
    ("body", "status", "raw", "category"),
    [
        (b"", 200, None, None),
        (b"", 204, None, None),
        (b"<html>", 200, "<html>", "capture_parse_error"),
        (b"[1]", 200, "[1]", "capture_parse_error"),
        (b'{"x":"\xff"}', 200, '{"x":"\ufffd"}', "capture_parse_error"),
        (b'{"error": {}}', 429, None, "rate_limit"),
        (b"gone", 503, "gone", "upstream_error"),
        (b"", 307, None, None),
    ],
)
async def test_answers_that_are_no_object(
    captured: Any, tools: Any, body: bytes, status: int, raw: str | None, category: str | None
) -> None:
    app = captured(tools.json_app(body, status=status))
    answer = await app.call("/ng-rollout/0-0/v1/responses")
    assert (answer.status, answer.body) == (status, body)
    (line,) = app.lines()
    assert (line["status_code"], line.get("response_raw"), line["error_category"]) == (status, raw, category)


@pytest.mark.parametrize(
    ("name", "squeeze"), [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress)]
)
async def test_compressed_bodies_are_read_and_passed_as_they_are(
    captured: Any, tools: Any, name: str, squeeze: Any
) -> None:
    body = squeeze(ANSWER)
    inner = tools.json_app(body, headers=((b"content-encoding", name.encode()),))
    app = captured(inner)
    answer = await app.call("/ng-rollout/0-0/v1/responses", body, headers=(("content-encoding", name),))
    assert answer.body == body
    (line,) = app.lines()
    assert line["request"] == line["response"] == json.loads(ANSWER)


async def test_an_unknown_or_broken_encoding_is_noted(captured: Any, tools: Any) -> None:
    app = captured(tools.json_app(b"not gzip", headers=((b"content-encoding", b"gzip"),)))
    await app.call("/ng-rollout/0-0/v1/responses", b"??", headers=(("content-encoding", "zip"),))
    (line,) = app.lines()
    assert line["capture_problems"] == ["request_encoding_unknown", "response_encoding_unknown"]
    assert (line["request_raw"], line["response_raw"]) == ("??", "not gzip")


async def test_a_request_in_pieces_is_joined(captured: Any, tools: Any) -> None:
    app = captured(tools.json_app(b"{}"))
    await app.call("/ng-rollout/0-0/v1/responses", [b'{"a"', b": 1", b"}"])
    assert app.lines()[0]["request"] == {"a": 1}


async def test_a_body_that_is_never_read_is_unknown(captured: Any) -> None:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    app = captured(inner)
    await app.call("/ng-rollout/0-0/v1/responses", b'{"a": 1}')
    (line,) = app.lines()
    assert line["request"] is None
    assert "request_raw" not in line
    assert line["error_category"] == "auth"


class UpstreamFailed(Exception):
    def __init__(self) -> None:
        self.status = 429
        self.response_content = b'{"error": "slow down"}'


async def test_a_raised_error_is_recorded_and_raised_on(captured: Any, tools: Any) -> None:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await tools.read_body(receive)
        raise UpstreamFailed

    app = captured(inner)
    with pytest.raises(UpstreamFailed):
        await app.call("/ng-rollout/0-0/v1/responses", b'{"a": 1}')
    (line,) = app.lines()
    assert (line["status_code"], line["client_status_code"]) == (429, None)
    assert line["error_category"] == "rate_limit"
    assert line["response_raw"] == '{"error": "slow down"}'
    assert line["request"] == {"a": 1}


async def test_the_error_inside_a_group_gives_the_category(captured: Any) -> None:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        raise ExceptionGroup("tasks", [ExceptionGroup("inner", [ConnectionResetError("gone")])])

    app = captured(inner)
    with pytest.raises(ExceptionGroup):
        await app.call("/ng-rollout/0-0/v1/responses")
    assert app.lines()[0]["error_category"] == "connection"


async def test_who_answers_outside_can_name_the_call(captured: Any, tools: Any) -> None:
    ids: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("no")

    app = captured(inner)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app.app(scope, receive, send)
        except RuntimeError:
            ids.append(model_call_id_of(scope))

    await tools.call(outer, "/ng-rollout/0-0/v1/responses")
    assert ids == [app.lines()[0]["model_call_id"]]


async def test_a_forwarded_call_id_is_replaced(captured: Any, tools: Any) -> None:
    app = captured(tools.json_app(b"{}", headers=((b"X-NG-Model-Call-Id", b"other"),)))
    answer = await app.call("/ng-rollout/0-0/v1/responses")
    assert answer.headers["x-ng-model-call-id"] == app.lines()[0]["model_call_id"]


async def test_execution_facts_are_written_together(captured: Any, tools: Any) -> None:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        report_execution(scope, upstream_attempted=True, upstream=[{"status": 503}])
        report_execution(upstream_status_code=400, upstream=[{"status": 400}])
        report_execution(response_source="local", local_response_reason="context_length_exceeded")
        await tools.json_app(b"{}")(scope, receive, send)

    app = captured(inner)
    await app.call("/ng-rollout/0-0/v1/responses")
    (line,) = app.lines()
    assert line["upstream_attempted"] is True
    assert (line["response_source"], line["upstream_status_code"]) == ("local", 400)
    assert line["error_category"] == line["local_response_reason"] == "context_length_exceeded"
    assert line["upstream"] == [{"status": 503}, {"status": 400}]


async def test_one_fact_brings_the_other_three_as_unknown(captured: Any, tools: Any) -> None:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        report_execution(scope, upstream_attempted=False)
        await tools.json_app(b"{}")(scope, receive, send)

    app = captured(inner)
    await app.call("/ng-rollout/0-0/v1/responses")
    (line,) = app.lines()
    assert [line[name] for name in ("response_source", "upstream_status_code", "local_response_reason")] == [None] * 3


def test_facts_without_a_captured_call_go_nowhere() -> None:
    report_execution(None, upstream_attempted=True)
    report_execution({}, upstream_attempted=True)
    with pytest.raises(TypeError, match="no such execution fact"):
        report_execution({}, upstream_atempted=True)


async def test_a_fact_that_json_refuses_does_not_cost_the_record(captured: Any, tools: Any) -> None:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        report_execution(scope, upstream=[{"note": "\ud800", "big": 10**30}])
        await tools.json_app(b"{}")(scope, receive, send)

    app = captured(inner)
    await app.call("/ng-rollout/0-0/v1/responses")
    assert app.lines()[0]["upstream"][0]["big"] == 10**30


async def test_the_end_of_a_json_answer_waits_for_its_record(captured: Any, tools: Any) -> None:
    """Whoever has the last byte can read the record, a thousand times out of a thousand (acceptance item 5)."""
    app = captured(tools.json_app(ANSWER))
    seen: list[int] = []

    async def look(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body"):
            seen.append(len(app.store.read("0-0")))

    for _ in range(100):
        await app.call("/ng-rollout/0-0/v1/responses", on_message=look)
    assert seen == list(range(1, 101))


async def test_a_thousand_concurrent_calls_on_twenty_rollouts_are_all_durable_when_answered(
    captured: Any, tools: Any
) -> None:
    app = captured(tools.json_app(ANSWER))

    async def one(number: int) -> bool:
        answer = await app.call(f"/ng-rollout/{number % 20}-0/v1/responses")
        call_id = answer.headers["x-ng-model-call-id"]
        return call_id.encode() in app.store.path_for(f"{number % 20}-0").read_bytes()

    assert all(await asyncio.gather(*(one(number) for number in range(1000))))
    assert sum(len(app.store.read(f"{number}-0")) for number in range(20)) == 1000
    assert app.store.open_calls() == []


async def test_bytes_go_out_at_the_deadline_when_a_file_cannot_be_had(captured: Any, tools: Any) -> None:
    """Somebody sits on the file's lock; the client gets its bytes, and the other rollouts do not wait."""
    app = captured(tools.json_app(ANSWER), hold_deadline_s=0.05)
    app.store.record("0-0", {})
    with app.store.path_for("0-0").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        answer = await app.call("/ng-rollout/0-0/v1/responses")
        assert answer.body == ANSWER
        assert capture_health(app.app)["late"] == 1
        app.app._hold_deadline_s = 60.0  # the other rollout has all the time that a busy machine needs
        await app.call("/ng-rollout/1-0/v1/responses")
        assert len(app.store.read("1-0")) == 1
        assert capture_health(app.app)["late"] == 1
    assert len(app.lines()) == 2
    assert app.store.incomplete_path_for("0-0").exists()
    assert not app.store.is_incomplete("0-0"), "the late call has arrived: nothing is missing"


async def test_the_end_goes_out_at_the_deadline_while_the_application_still_runs(captured: Any, tools: Any) -> None:
    sent = asyncio.Event()

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await tools.json_app(ANSWER)(scope, receive, send)
        await asyncio.wait_for(sent.wait(), 10)  # background work after the answer

    async def note(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            sent.set()

    app = captured(inner, hold_deadline_s=0.05)
    answer = await app.call("/ng-rollout/0-0/v1/responses", on_message=note)
    assert answer.body == ANSWER
    assert len(app.lines()) == 1


async def test_a_capture_that_cannot_be_written_changes_nothing_for_the_client_c3(
    captured: Any, tools: Any, caplog: Any
) -> None:
    app = captured(tools.json_app(ANSWER))
    app.store.path_for("0-0").mkdir()  # an append to a directory fails for root too
    answer = await app.call("/ng-rollout/0-0/v1/responses")
    assert (answer.status, answer.body) == (200, ANSWER)
    app.writer.flush(10)
    health = capture_health(app.app)
    assert (health["calls"], health["failed"], health["written"]) == (1, 1, 0)
    assert health["last_error"]
    assert "was not recorded" in caplog.text
    assert app.store.missing_calls("0-0", set())[0]["model_call_id"] == answer.headers["x-ng-model-call-id"]


async def test_times_are_taken_around_the_inner_application_c13(captured: Any, tools: Any) -> None:
    times: list[float] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        times.append(time.time())
        await tools.json_app(ANSWER)(scope, receive, send)
        times.append(time.time())

    app = captured(inner)
    await app.call("/ng-rollout/0-0/v1/responses")
    (line,) = app.lines()
    assert line["started_at"] <= times[0] <= times[1] <= line["completed_at"]
    assert 0 <= line["latency_ttft_ms"] <= line["latency_ms"]


async def test_non_http_scopes_pass_untouched(captured: Any) -> None:
    seen: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    app = captured(inner)
    scope = {"type": "websocket", "path": "/ng-rollout/0-0/v1/responses"}
    await app.app(scope, None, None)
    assert seen == [scope]


async def test_a_record_says_nothing_beyond_the_boundary_c17(captured: Any, tools: Any) -> None:
    app = captured(tools.json_app(ANSWER))
    await app.call("/ng-rollout/0-0/v1/responses")
    fields = set(build_model_call_record(app.lines()[0], call_index=0).model_dump())
    assert not fields & {"tool_output", "turn", "turns", "turn_no", "compaction", "sandbox", "parent_invocation_id"}


async def test_large_bodies_are_recorded_whole(captured: Any, tools: Any) -> None:
    body = b'{"text": "' + b"x" * (8 << 20) + b'"}'
    app = captured(tools.json_app(body))
    answer = await app.call("/ng-rollout/0-0/v1/responses", body)
    assert answer.body == body
    (line,) = app.lines()
    assert line["request"] == line["response"] == json.loads(body)

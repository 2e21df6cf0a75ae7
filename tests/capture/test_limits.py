"""Size: a body or a queue that is too large costs bytes in the middle at most, never a call (issue: size)."""

from __future__ import annotations

import fcntl
import hashlib
import json
from typing import Any

import pytest

from nemo_gym.capture import bodies, build_model_call_record, read_model_call_records, writer
from nemo_gym.capture.bodies import KeptBytes
from nemo_gym.capture.spill import Spill


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_BODY_BYTES", 10_000)
    monkeypatch.setattr(bodies, "RAW_HALF_BYTES", 1000)


@pytest.mark.usefixtures("small_limits")
async def test_a_body_above_the_limit_keeps_both_ends_and_the_hash(captured: Any, tools: Any) -> None:
    body = b'{"begin": "' + b"x" * 50_000 + b'", "end": 1}'
    app = captured(tools.json_app(body))
    answer = await app.call("/ng-rollout/0-0/v1/responses", [body[:70], body[70:30_000], body[30_000:]])
    assert answer.body == body
    (line,) = app.lines()
    for name in ("request", "response"):
        assert line[name] is None
        assert line[f"{name}_raw"].startswith('{"begin": "xxx')
        assert line[f"{name}_raw"].endswith('xxx", "end": 1}')
        assert line[f"{name}_truncated"]["bytes"] == len(body)
        assert line[f"{name}_truncated"]["sha256"] == hashlib.sha256(body).hexdigest()
        left_out = line[f"{name}_truncated"]["bytes_left_out"]
        assert f"[... {left_out} bytes left out ...]" in line[f"{name}_raw"]
        assert 0 < left_out <= len(body) - 2000
    assert build_model_call_record(line, call_index=0).request_raw == line["request_raw"]


@pytest.mark.usefixtures("small_limits")
async def test_a_body_at_the_limit_is_kept_whole(captured: Any, tools: Any) -> None:
    body = b'{"a": "' + b"x" * (10_000 - 9) + b'"}'
    app = captured(tools.json_app(body))
    await app.call("/ng-rollout/0-0/v1/responses", [body[:1], body[1:]])
    (line,) = app.lines()
    assert line["request"] == line["response"] == json.loads(body)
    assert "request_truncated" not in line


@pytest.mark.parametrize("step", [1, 7, 999, 1000, 5000, 40_000])
@pytest.mark.usefixtures("small_limits")
def test_what_is_kept_does_not_grow_however_it_is_cut(step: int) -> None:
    body = bytes(range(256)) * 200
    kept = KeptBytes(bodies.MAX_BODY_BYTES)
    for start in range(0, len(body), step):
        kept.add(body[start : start + step])
    assert kept.whole() is None
    assert 2000 <= kept.held <= 3000
    truncation = kept.truncation()
    assert truncation is not None
    assert truncation["sha256"] == hashlib.sha256(body).hexdigest()
    assert kept.held + truncation["bytes_left_out"] == len(body)


async def test_when_memory_is_full_calls_wait_in_a_temporary_file(
    captured: Any, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "HARD_LIMIT_BYTES", 10)
    monkeypatch.setattr(writer, "SOFT_LIMIT_BYTES", 1)
    app = captured(tools.json_app(b'{"a": "b"}'), hold_deadline_s=0.05)
    app.store.record("0-0", {"model_call_id": "first"})
    with app.store.path_for("0-0").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        answers = [await app.call("/ng-rollout/0-0/v1/responses", b'{"n": %d}' % number) for number in range(9)]
        assert app.writer._spill._waiting == 8
    assert {answer.body for answer in answers} == {b'{"a": "b"}'}
    lines = app.lines()
    assert [line.get("request") for line in lines] == [None, *({"n": number} for number in range(9))]
    assert app.store.missing_calls("0-0", {line["model_call_id"] for line in lines}) == []
    assert app.writer._spill._end == 0, "the temporary file is emptied"
    assert app.writer.counters.failed == 0


async def test_a_call_that_fits_nowhere_is_marked(captured: Any, tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Spill, line: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "HARD_LIMIT_BYTES", 10)
    monkeypatch.setattr(Spill, "put", full)
    app = captured(tools.json_app(b'{"a": "b"}'), hold_deadline_s=0.05)
    app.store.record("0-0", {"model_call_id": "first"})
    with app.store.path_for("0-0").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        answers = [await app.call("/ng-rollout/0-0/v1/responses") for _ in range(2)]
    lines = app.lines()
    assert len(lines) == 2
    missing = app.store.missing_calls("0-0", {line["model_call_id"] for line in lines})
    assert [call["model_call_id"] for call in missing] == [answers[1].headers["x-ng-model-call-id"]]
    assert [call["reason"] for call in missing] == ["the capture queue was full"]


def test_spilled_lines_come_back_as_they_were() -> None:
    spill = Spill()
    lines = [bytes([number]) * number * 1000 for number in range(5)]
    places = [spill.put(line) for line in lines]
    assert [spill.take(place) for place in reversed(places)] == lines[::-1]
    assert spill.take(spill.put(b"again")) == b"again"


@pytest.mark.parametrize("frames", [0, 80, 300])
@pytest.mark.parametrize("depth", [800, 930, 960, 990, 1200])
async def test_a_deep_body_is_readable_wherever_it_is_read_from(
    captured: Any, tools: Any, depth: int, frames: int
) -> None:
    body = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
    app = captured(tools.json_app(body))
    await app.call("/ng-rollout/0-0/v1/responses", [body])

    def read(more: int) -> Any:
        if more:
            return read(more - 1)
        return app.lines()[0], read_model_call_records(app.store, "0-0")[0]

    line, record = read(frames)
    for name in ("request", "response"):
        assert (line[name] is None) == (f"{name}_raw" in line), "an object, or else its text"
        assert (getattr(record, name) is None) == (line[name] is None)


@pytest.mark.parametrize("digits", [20, 400, 4300, 4301, 100_000])
@pytest.mark.parametrize("sign", ["", "-"])
async def test_a_number_of_any_length_loses_no_line(captured: Any, tools: Any, digits: int, sign: str) -> None:
    body = f'{{"model":"m","n":{sign}{"9" * digits}}}'.encode()
    app = captured(tools.json_app(body))
    answer = await app.call("/ng-rollout/0-0/v1/responses", [body])
    assert answer.body == body
    record = read_model_call_records(app.store, "0-0")[0]
    assert record.request == record.response
    assert record.response is not None
    assert record.response["model"] == "m"
    if digits <= 4300:
        assert record.response["n"] == int(sign + "9" * digits)

"""What a call was given and answered is in the record itself, or the row of histories says what is not."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.records.evidence import TrajectoryModelCall, read
from nemo_gym.testing.history import history_problems

POLICY = {"type": "responses_api_models", "name": "policy"}
OTHER = {"type": "responses_api_models", "name": "other"}
PIXEL = "aGVsbG8="
ELSEWHERE = "model_calls[0]: a file or a picture is only referred to"
UNDECODABLE = "model_calls[0]: a picture cannot be decoded"
ENCRYPTED = "model_calls[0]: a text is encrypted"
BODIES = {"responses": ("input", "output"), "chat": ("messages", "choices"), "messages": ("messages", "content")}


def call(
    given: Any, answered: Any = (), *, dialect: str = "responses", server: Any = POLICY, **facts: Any
) -> TrajectoryModelCall:
    """A call of one dialect; `given` and `answered` are its input and its list of outputs."""
    of_request, of_response = BODIES[dialect]
    body = {
        "request": {of_request: given, **facts.pop("also", {})},
        "response": {of_response: list(answered)},
        "response_metadata": {"dialect": dialect, "status_code": 200, "model_ref": server, **facts},
    }
    return read(TrajectoryModelCall, body)


def user(*parts: Any) -> list[Any]:
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize(
    ("dialect", "part", "expected"),
    [
        ("responses", {"type": "input_text", "text": "https://example.org/a.png is only named"}, []),
        ("responses", {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}, []),
        ("responses", {"type": "input_image", "image_url": "https://example.org/a.png"}, [ELSEWHERE]),
        ("responses", {"type": "input_image", "file_id": "file-1"}, [ELSEWHERE]),
        ("responses", {"type": "input_image", "file_id": None, "image_url": f"data:;base64,{PIXEL}"}, [UNDECODABLE]),
        ("responses", {"type": "input_image", "image_url": "data:image/png;base64,%%%"}, [UNDECODABLE]),
        ("responses", {"type": "input_image", "image_url": "data:image/png;base64,"}, [UNDECODABLE]),
        ("responses", {"type": "input_file", "file_url": "https://example.org/a.pdf"}, [ELSEWHERE]),
        ("responses", {"type": "input_file", "filename": "a.txt", "file_data": PIXEL}, []),
        ("chat", {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}, []),
        ("chat", {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}, [ELSEWHERE]),
        ("chat", {"type": "file", "file": {"file_id": "file-1"}}, [ELSEWHERE]),
        ("chat", {"type": "file", "file": {"file_data": PIXEL, "filename": "a.txt"}}, []),
        ("messages", {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}, []),
        ("messages", {"type": "image", "source": {"type": "base64", "data": "hello world"}}, [UNDECODABLE]),
        ("messages", {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}, [ELSEWHERE]),
        ("messages", {"type": "document", "source": {"type": "file", "file_id": "file-1"}}, [ELSEWHERE]),
        ("messages", {"type": "document", "source": {"type": "text", "data": "words"}}, []),
        ("messages", {"type": "redacted_thinking", "data": "xyz"}, [ENCRYPTED]),
        ("messages", {"type": "thinking", "thinking": "I see", "signature": "xyz"}, []),
    ],
)
def test_a_part_that_is_not_in_the_record_itself_is_found(dialect: str, part: Any, expected: list[str]) -> None:
    assert history_problems([call(user(part), dialect=dialect)]) == expected
    inside = {"type": "tool_result", "tool_use_id": "t", "content": [part]}
    assert history_problems([call(user(inside), dialect=dialect)]) == expected
    assert history_problems([call("x" if dialect == "responses" else user(), user(part), dialect=dialect)]) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [("xyz", [ENCRYPTED]), (None, []), ("", [])], ids=["encrypted", "null", "empty"]
)
def test_encrypted_reasoning_is_no_history(value: Any, expected: list[str]) -> None:
    item = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": value}
    assert history_problems([call([item])]) == expected
    assert history_problems([call("x", [item, item])]) == expected


@pytest.mark.parametrize("dialect", BODIES)
def test_each_dialect_has_its_own_input_and_outputs(dialect: str) -> None:
    assert history_problems([call(user(), dialect=dialect)]) == []
    for other in BODIES:
        strange = call(user(), dialect=other)
        as_other = read(
            TrajectoryModelCall,
            {
                "request": strange.request,
                "response": strange.response,
                "response_metadata": {"dialect": dialect, "status_code": 200},
            },
        )
        fits = BODIES[other][0] == BODIES[dialect][0], BODIES[other][1] == BODIES[dialect][1]
        wrong = ["model_calls[0]: no input in its request", "model_calls[0]: no list of outputs in its response"]
        assert history_problems([as_other]) == [text for text, ok in zip(wrong, fits, strict=True) if not ok]


def test_a_failed_call_owes_no_outputs() -> None:
    refused = read(
        TrajectoryModelCall,
        {
            "request": {"input": "x"},
            "response": {"error": {"message": "slow down"}},
            "response_metadata": {"dialect": "responses", "status_code": 429},
        },
    )
    assert history_problems([refused]) == []


@pytest.mark.parametrize(
    ("earlier", "found"),
    [
        ([call("x", response_id="r1")], False),
        ([call("x", response_id="r1", server=OTHER)], True),
        ([call("x", response_id="r1"), call("x", response_id="r1")], True),
        ([call("x", response_id="r1"), call("x", response_id="r1", server=OTHER)], False),
        ([], True),
    ],
    ids=["saved", "another server's", "twice", "one of two servers", "not saved"],
)
def test_a_response_that_is_gone_on_from_is_saved_once_by_the_same_server(
    earlier: list[TrajectoryModelCall], found: bool
) -> None:
    problems = history_problems([*earlier, call("y", also={"previous_response_id": "r1"})])
    assert problems == [f"model_calls[{len(earlier)}]: the response it goes on from is not saved"] * found

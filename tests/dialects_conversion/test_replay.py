"""Replayed streams: the order of events, and that every reader of them gets the object back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from nemo_gym.dialects import make_accumulator
from nemo_gym.dialects.conversion import replay_events

CALL = {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": '{"a":1}', "status": "completed"}
NOTE = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
LOGPROB = {"token": "h", "logprob": -0.1, "bytes": [104], "top_logprobs": []}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "model": "m",
    "output": [
        {
            "type": "reasoning",
            "id": "rs",
            "summary": [{"type": "summary_text", "text": "hm"}, {"type": "summary_text", "text": "so"}],
            "content": [{"type": "reasoning_text", "text": "raw"}],
            "encrypted_content": "sig",
        },
        {
            "type": "message",
            "id": "msg",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "h\u2028i 🙂", "annotations": [NOTE], "logprobs": [LOGPROB]},
                {"type": "refusal", "refusal": "no"},
                {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
            ],
        },
        CALL,
        {"type": "custom_tool_call", "id": "ct", "call_id": "d", "name": "g", "input": "raw"},
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "q"}},
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 3,
    },
}
COMPLETION: dict[str, Any] = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "system_fingerprint": "fp",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "h\u2028i 🙂",
                "reasoning_content": "hm",
                "annotations": [{"type": "url_citation", "url_citation": {"url": "u"}}],
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
                    {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                ],
            },
            "logprobs": {"content": [LOGPROB]},
            "finish_reason": "tool_calls",
            "stop_reason": 7,
        },
        {"index": 1, "message": {"role": "assistant", "content": None, "refusal": "no"}, "finish_reason": "stop"},
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "thinking", "thinking": "", "signature": "sig2"},
        {"type": "redacted_thinking", "data": "zz"},
        {
            "type": "text",
            "text": "h\u2028i 🙂",
            "citations": [
                {
                    "type": "web_search_result_location",
                    "url": "u",
                    "title": "t",
                    "encrypted_index": "",
                    "cited_text": "h",
                }
            ],
        },
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": {"b": 1}}},
        {"type": "tool_use", "id": "u", "name": "f", "input": {}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 1,
        "output_tokens": 2,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 0,
    },
}
OBJECTS = {"responses": RESPONSE, "chat": COMPLETION, "messages": MESSAGE}


def events(dialect: Any, response: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    found = []
    for chunk in replay_events(dialect, response, **options):
        *names, data = chunk.decode().removesuffix("\n\n").split("\n")
        payload = data.removeprefix("data: ")
        if payload == "[DONE]":
            found.append({"type": "[DONE]"})
            continue
        found.append(json.loads(payload))
        assert names == ([] if dialect == "chat" else [f"event: {found[-1]['type']}"])
    return found


def without_nulls(value: Any) -> Any:
    """A null in a chunk says nothing, so a reader of chunks cannot tell it from an absent key."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("dialect", ["responses", "chat", "messages"])
@pytest.mark.parametrize("size", [None, 1, 7])
def test_a_reader_gets_the_object_back(dialect: Any, size: int | None) -> None:
    stream = b"".join(replay_events(dialect, OBJECTS[dialect], include_usage=True))
    accumulator = make_accumulator(dialect)
    for start in range(0, len(stream), size or len(stream)):
        accumulator.feed(stream[start : start + (size or len(stream))])
    accumulator.finish()
    assert accumulator.problems == []
    assert accumulator.terminal == "complete"
    assert without_nulls(accumulator.response) == without_nulls(OBJECTS[dialect])


class TestResponses:
    def test_order_of_events(self) -> None:
        kinds = [event["type"].removeprefix("response.") for event in events("responses", RESPONSE)]
        assert kinds == [
            "created",
            "in_progress",
            "output_item.added",
            *["reasoning_summary_part.added", "reasoning_summary_text.delta"],
            *["reasoning_summary_text.done", "reasoning_summary_part.done"],
            *["reasoning_summary_part.added", "reasoning_summary_text.delta"],
            *["reasoning_summary_text.done", "reasoning_summary_part.done"],
            *["content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done"],
            "output_item.done",
            "output_item.added",
            *["content_part.added", "output_text.delta", "output_text.annotation.added"],
            *["output_text.done", "content_part.done"],
            *["content_part.added", "refusal.delta", "refusal.done", "content_part.done"],
            *["content_part.added", "output_text.done", "content_part.done"],
            "output_item.done",
            *["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"],
            *["output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"],
            *["output_item.added", "output_item.done"],
            "completed",
        ]

    def test_every_event_is_numbered_from_0(self) -> None:
        numbers = [event["sequence_number"] for event in events("responses", RESPONSE)]
        assert numbers == list(range(len(numbers)))

    def test_the_sdk_reads_every_event(self) -> None:
        adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
        for event in events("responses", RESPONSE):
            assert type(adapter.validate_python(event)).model_fields["type"].annotation.__args__ == (event["type"],)

    def test_lifecycle_events_nest_the_object(self) -> None:
        created, in_progress, *_, last = events("responses", RESPONSE)
        for event in (created, in_progress):
            assert (event["response"]["status"], event["response"]["output"]) == ("in_progress", [])
            assert event["response"]["usage"] is None
        assert last["response"] == RESPONSE

    @pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled"])
    def test_the_terminal_event_says_the_status(self, status: str) -> None:
        assert events("responses", {**RESPONSE, "status": status})[-1]["type"] == f"response.{status}"

    def test_an_item_of_deltas_can_be_read_without_its_done(self) -> None:
        """A stream that is cut keeps what it sent: the deltas say as much as the finished item."""
        stream = [
            chunk
            for chunk in replay_events("responses", RESPONSE)
            if b"response.output_item.done" not in chunk and b"event: response.completed" not in chunk
        ]
        accumulator = make_accumulator("responses")
        for chunk in stream:
            accumulator.feed(chunk)
        accumulator.finish()
        assert accumulator.response is not None
        for got, sent in zip(accumulator.response["output"][:4], RESPONSE["output"][:4], strict=True):
            assert without_nulls({**got, "status": None}) == without_nulls({**sent, "status": None})

    def test_an_error_object_is_an_error_event(self) -> None:
        (event,) = events("responses", {"error": {"code": "c", "message": "m", "type": "t", "param": None}})
        assert event == {"type": "error", "code": "c", "message": "m", "param": None, "sequence_number": 0}


class TestChat:
    def test_order_of_chunks(self) -> None:
        found = events("chat", COMPLETION, include_usage=True)
        keys = [
            (chunk["choices"][0]["index"], *chunk["choices"][0]["delta"]) if chunk.get("choices") else chunk["type"]
            for chunk in found
            if chunk.get("choices") or "type" in chunk
        ]
        assert keys == [
            (0, "role", "content"),
            (0, "reasoning_content"),
            (0, "content"),
            (0, "tool_calls"),
            (0, "annotations"),
            (0,),
            (1, "role", "content"),
            (1, "refusal"),
            (1,),
            "[DONE]",
        ]
        assert [call["index"] for call in found[3]["choices"][0]["delta"]["tool_calls"]] == [0, 1]
        assert found[2]["choices"][0]["logprobs"] == {"content": [LOGPROB]}
        assert found[-2] == {
            **{key: COMPLETION[key] for key in ("id", "created", "model", "system_fingerprint", "usage")},
            "object": "chat.completion.chunk",
            "choices": [],
        }

    def test_usage_is_sent_only_when_asked_for(self) -> None:
        assert not any("usage" in chunk for chunk in events("chat", COMPLETION))

    def test_the_sdk_reads_every_chunk(self) -> None:
        for chunk in events("chat", COMPLETION, include_usage=True)[:-1]:
            ChatCompletionChunk.model_validate(chunk)

    def test_an_error_has_no_done(self) -> None:
        assert events("chat", {"error": {"message": "m"}}) == [{"error": {"message": "m"}}]


class TestMessages:
    def test_order_of_events(self) -> None:
        found = events("messages", MESSAGE)
        kinds = [event.get("delta", {}).get("type") or event["type"] for event in found]
        assert kinds == [
            "message_start",
            "ping",
            *["content_block_start", "thinking_delta", "signature_delta", "content_block_stop"],
            *["content_block_start", "signature_delta", "content_block_stop"],
            *["content_block_start", "content_block_stop"],
            *["content_block_start", "text_delta", "citations_delta", "content_block_stop"],
            *["content_block_start", "input_json_delta", "content_block_stop"],
            *["content_block_start", "input_json_delta", "content_block_stop"],
            "message_delta",
            "message_stop",
        ]

    def test_the_start_knows_nothing_of_the_end(self) -> None:
        start = events("messages", MESSAGE)[0]["message"]
        assert (start["stop_reason"], start["content"], start["usage"]["output_tokens"]) == (None, [], 0)

    def test_both_usage_objects_carry_the_cache_counts(self) -> None:
        found = events("messages", MESSAGE)
        for usage in (found[0]["message"]["usage"], found[-2]["usage"]):
            assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (3, 0)

    def test_an_error_object_is_an_error_event(self) -> None:
        error = {"type": "error", "error": {"type": "api_error", "message": "m"}}
        assert events("messages", error) == [error]

    @pytest.mark.parametrize("said", [{"error": {"message": "m"}}, {"error": "m"}, {"type": "error"}])
    def test_an_error_that_says_little_is_no_empty_message(self, said: dict[str, Any]) -> None:
        assert events("messages", said) == [{**said, "type": "error"}]


@pytest.mark.parametrize("choices", [None, [], "x"])
def test_a_chat_error_is_no_empty_completion_whatever_is_in_the_place_of_choices(choices: Any) -> None:
    assert events("chat", {"error": "m", "choices": choices}) == [{"error": "m"}]

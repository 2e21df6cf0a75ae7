"""Chat completions to Responses and back: each row of the table, one test."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.dialects.conversion import (
    ConversionError,
    Mint,
    chat_response_to_responses,
    responses_to_chat_response,
)
from nemo_gym.openai_utils import NeMoGymChatCompletion, NeMoGymResponse

MINT = Mint(random_hex=lambda: "0", now=lambda: 7.0)
TOKENS = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.1], "routed_experts": "e"}
LOGPROBS = [{"token": "x", "logprob": -0.1, "bytes": None, "top_logprobs": []}]


def convert(
    message: dict[str, Any],
    finish: str | None = "stop",
    *,
    request: Any = None,
    think_tags: bool | None = None,
    **more: Any,
) -> tuple[dict[str, Any], list[str]]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", **message},
        "finish_reason": finish,
        **more.pop("choice", {}),
    }
    completion = {"id": "c", "object": "chat.completion", "created": 5, "model": "real", "choices": [choice], **more}
    converted, notes = chat_response_to_responses(completion, request=request or {}, think_tags=think_tags, mint=MINT)
    NeMoGymResponse.model_validate(converted)  # a strict reader accepts it
    return converted, notes


def kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def texts(response: dict[str, Any]) -> list[str]:
    return [part["text"] for item in response["output"] for part in item.get("content") or () if "text" in part]


class TestToResponses:
    def test_reasoning_message_calls_in_this_order(self) -> None:
        calls = [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "b", "type": "custom", "custom": {"name": "g", "input": "raw"}},
        ]
        converted, notes = convert(
            {"content": "x", "refusal": "no", "reasoning_content": "hm", "tool_calls": calls}, "tool_calls"
        )
        assert kinds(converted) == ["reasoning", "message", "function_call", "custom_tool_call"]
        assert [part["type"] for part in converted["output"][1]["content"]] == ["output_text", "refusal"]
        assert converted["output"][2] == {
            "id": "a",
            "call_id": "a",
            "type": "function_call",
            "name": "f",
            "arguments": "{}",
            "status": "completed",
        }
        assert converted["output"][3]["input"] == "raw"
        assert notes == []

    def test_closed_think_blocks_become_reasoning(self) -> None:
        converted, _ = convert({"content": "<think>a</think><think>b</think>x"})
        assert [part["text"] for part in converted["output"][0]["summary"]] == ["a", "b"]
        assert texts(converted) == ["x"]

    @pytest.mark.parametrize("content", ["<think>never closed", "lone</think>x"])
    def test_a_lone_tag_stays_text(self, content: str) -> None:
        assert texts(convert({"content": content})[0]) == [content]

    def test_a_literal_tag_beside_real_reasoning_stays_text(self) -> None:
        converted, _ = convert({"content": "<think>x</think>", "reasoning_content": "hm"})
        assert texts(converted) == ["<think>x</think>"]
        assert texts(convert({"content": "<think>x</think>"}, think_tags=False)[0]) == ["<think>x</think>"]

    def test_thinking_parts_of_list_content(self) -> None:
        content = [
            {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
            {"type": "text", "text": "x"},
        ]
        converted, _ = convert({"content": content})
        assert kinds(converted) == ["reasoning", "message"]
        assert texts(converted) == ["x"]

    def test_nothing_at_all_is_one_empty_text(self) -> None:
        converted, _ = convert({"content": None})
        assert (kinds(converted), texts(converted)) == (["message"], [""])

    @pytest.mark.parametrize(
        ("finish", "status", "reason", "noted"),
        [
            ("stop", "completed", None, False),
            ("tool_calls", "completed", None, False),
            ("length", "incomplete", "max_output_tokens", False),
            ("content_filter", "incomplete", "content_filter", False),
            ("abort", "completed", None, True),
            (None, "completed", None, True),
        ],
    )
    def test_status(self, finish: str | None, status: str, reason: str | None, noted: bool) -> None:
        converted, notes = convert({"content": "x"}, finish)
        assert converted["status"] == status
        assert (converted["incomplete_details"] or {}).get("reason") == reason
        assert converted["native_finish_reason"] == finish
        assert bool(notes) is noted

    def test_identity_and_echo(self) -> None:
        converted, _ = convert({"content": "x"}, request={"temperature": 0.3, "tool_choice": "none", "model": "asked"})
        assert (converted["id"], converted["created_at"], converted["model"]) == ("resp_0", 5, "real")
        assert (converted["temperature"], converted["tool_choice"]) == (0.3, "none")

    def test_annotations_and_logprobs_are_kept(self) -> None:
        nested = {"type": "url_citation", "url_citation": {"url": "u", "title": "t", "start_index": 0, "end_index": 1}}
        converted, _ = convert({"content": "x", "annotations": [nested]}, choice={"logprobs": {"content": LOGPROBS}})
        part = converted["output"][0]["content"][0]
        assert part["annotations"] == [
            {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
        ]
        assert part["logprobs"] == LOGPROBS

    def test_token_ids_move_to_the_last_item(self) -> None:
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        converted, _ = convert({"content": "x", "tool_calls": [call], **TOKENS})
        assert "prompt_token_ids" not in converted["output"][0]
        assert {name: converted["output"][1][name] for name in TOKENS} == TOKENS
        with pytest.raises(ConversionError, match="incomplete"):
            convert({"content": "x", "prompt_token_ids": [1]})

    def test_further_choices_are_noted(self) -> None:
        completion = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}] * 3}
        _, notes = chat_response_to_responses(completion, request={}, mint=MINT)
        assert notes == ["2 further choices dropped"]

    def test_calls_without_an_id_get_one(self) -> None:
        converted, notes = convert({"content": None, "function_call": {"name": "f", "arguments": "{}"}})
        assert converted["output"][0]["call_id"] == "call_0"
        assert notes == ["a tool call without an id got one"]

    def test_audio_leaves_its_transcript(self) -> None:
        converted, notes = convert({"content": None, "audio": {"data": "AA", "transcript": "said"}})
        assert texts(converted) == ["said"]
        assert len(notes) == 1

    @pytest.mark.parametrize(
        ("usage", "cached", "reasoning"),
        [
            ({}, None, None),
            ({"prompt_tokens_details": {"cached_tokens": 1}}, 1, None),
            ({"prompt_tokens_details": None, "cache_read_input_tokens": 2}, 2, None),
            ({"cached_input_tokens": 0, "reasoning_output_tokens": 4}, 0, 4),
            ({"completion_tokens_details": {"reasoning_tokens": 3}}, None, 3),
        ],
    )
    def test_usage(self, usage: dict[str, Any], cached: int | None, reasoning: int | None) -> None:
        base = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 99}
        converted = convert({"content": "x"}, usage={**base, **usage})[0]["usage"]
        assert (converted["input_tokens"], converted["output_tokens"], converted["total_tokens"]) == (10, 5, 99)
        assert converted["input_tokens_details"]["cached_tokens"] == cached
        assert converted["output_tokens_details"]["reasoning_tokens"] == reasoning

    def test_usage_without_counts_is_unknown(self) -> None:
        converted, notes = convert({"content": "x"}, usage={"total_tokens": 3})
        assert converted["usage"] is None
        assert len(notes) == 1

    def test_an_error_is_a_failed_response(self) -> None:
        converted, _ = chat_response_to_responses({"error": {"message": "broke", "code": "c"}}, request={}, mint=MINT)
        assert (converted["status"], converted["error"]) == ("failed", {"code": "c", "message": "broke"})

    def test_namespaced_calls_are_mapped_back(self) -> None:
        function = {"type": "function", "name": "f", "parameters": {}, "strict": False}
        request = {"tools": [{"type": "namespace", "name": "n", "description": "d", "tools": [function]}]}
        call = {"id": "a", "type": "function", "function": {"name": "n__f", "arguments": "{}"}}
        converted, _ = convert({"content": None, "tool_calls": [call]}, request=request)
        assert (converted["output"][0]["namespace"], converted["output"][0]["name"]) == ("n", "f")


class TestToChat:
    def convert(self, *output: Any, **more: Any) -> tuple[dict[str, Any], list[str]]:
        response = {"id": "r", "created_at": 5.9, "model": "real", "status": "completed", "output": list(output)}
        converted, notes = responses_to_chat_response({**response, **more}, requested_model="asked", mint=MINT)
        if "error" not in converted:
            NeMoGymChatCompletion.model_validate(converted)
        return converted, notes

    def test_everything_goes_into_one_message(self) -> None:
        note = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
        converted, notes = self.convert(
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
            {
                "type": "message",
                "id": "m",
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "ab", "annotations": []},
                    {"type": "output_text", "text": "c", "annotations": [note], "logprobs": LOGPROBS},
                    {"type": "refusal", "refusal": "no"},
                ],
            },
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", **TOKENS},
            {"type": "web_search_call", "id": "w"},
        )
        (choice,) = converted["choices"]
        message = choice["message"]
        assert (message["content"], message["refusal"], message["reasoning_content"]) == ("abc", "no", "hm")
        assert message["annotations"][0]["url_citation"]["start_index"] == 2
        assert message["prompt_token_ids"] == [1]
        assert choice["logprobs"]["content"] == LOGPROBS
        assert choice["finish_reason"] == "tool_calls"
        assert (converted["model"], converted["created"], converted["id"]) == ("asked", 5, "r")
        assert notes == ["output[3] of type `web_search_call` dropped"]

    @pytest.mark.parametrize(
        ("reason", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter"), (None, "stop")]
    )
    def test_finish(self, reason: str | None, finish: str) -> None:
        converted, _ = self.convert(incomplete_details={"reason": reason} if reason else None)
        assert converted["choices"][0]["finish_reason"] == finish
        assert converted["choices"][0]["message"]["content"] is None

    def test_a_failed_response_is_an_error(self) -> None:
        converted, _ = self.convert(status="failed", error={"code": "server_error", "message": "broke"})
        assert converted["error"]["message"] == "broke"

    def test_usage_is_absent_when_unknown(self) -> None:
        assert self.convert()[0]["usage"] is None


def test_the_choice_with_index_0_is_the_answer_wherever_it_stands() -> None:
    choices = [
        {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for index, text in ((1, "second"), (0, "first"))
    ]
    response, notes = chat_response_to_responses({"choices": choices}, request={})
    assert response["output"][0]["content"][0]["text"] == "first"
    assert notes == ["1 further choices dropped"]


@pytest.mark.parametrize("place", ["usage", "x_groq", "choice"])
def test_usage_is_found_where_providers_put_it(place: str) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    choice: dict[str, Any] = {"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}
    completion: dict[str, Any] = {"choices": [choice]}
    holder = {"usage": completion, "x_groq": completion.setdefault("x_groq", {}), "choice": choice}[place]
    holder["usage"] = usage
    response, _ = chat_response_to_responses(completion, request={})
    assert (response["usage"]["input_tokens"], response["usage"]["total_tokens"]) == (5, 7)

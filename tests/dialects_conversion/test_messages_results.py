"""Responses to Messages answers and back: each row of the table, one test."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.dialects.conversion import Mint, messages_response_to_responses, responses_to_messages_response
from nemo_gym.openai_utils import NeMoGymResponse

MINT = Mint(random_hex=lambda: "0", now=lambda: 7.0)


def answer(*output: Any, **more: Any) -> tuple[dict[str, Any], list[str]]:
    response = {"id": "resp_1", "object": "response", "model": "real", "status": "completed", "output": list(output)}
    return responses_to_messages_response({**response, **more}, requested_model="asked", mint=MINT)


def text(value: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "content": [{"type": "output_text", "text": value, **more}],
    }


def response(*content: Any, request: dict[str, Any] | None = None, **more: Any) -> tuple[dict[str, Any], list[str]]:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": list(content),
        **more,
    }
    converted, notes = messages_response_to_responses(message, request=request or {}, mint=MINT)
    NeMoGymResponse.model_validate(converted)  # a strict reader accepts it
    return converted, notes


class TestToMessages:
    def test_identity_and_model(self) -> None:
        message, _ = answer(text("hi"))
        assert (message["id"], message["model"], message["type"], message["role"]) == (
            "resp_1",
            "asked",
            "message",
            "assistant",
        )
        unnamed, _ = responses_to_messages_response({"model": "real", "output": []}, requested_model=None, mint=MINT)
        assert (unnamed["id"], unnamed["model"]) == ("msg_0", "real")

    def test_text_refusal_reasoning_and_calls_keep_their_order(self) -> None:
        message, notes = answer(
            {
                "type": "reasoning",
                "id": "r",
                "summary": [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}],
                "encrypted_content": "sig",
            },
            text("hi"),
            {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x":1}'},
            {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "raw"},
            {"type": "web_search_call", "id": "w", "status": "completed"},
        )
        assert message["content"] == [
            {"type": "thinking", "thinking": "a", "signature": "sig"},
            {"type": "thinking", "thinking": "b", "signature": "sig"},
            {"type": "text", "text": "hi"},
            {"type": "text", "text": "no"},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "d", "name": "g", "input": {"input": "raw"}},
        ]
        assert message["stop_reason"] == "tool_use"
        assert "output[5] of type `web_search_call` dropped" in notes

    def test_raw_reasoning_is_used_when_there_is_no_summary(self) -> None:
        item = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "raw"}]}
        assert answer(item)[0]["content"] == [{"type": "thinking", "thinking": "raw", "signature": ""}]

    def test_encrypted_reasoning_without_text_can_be_replayed(self) -> None:
        item = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "enc"}
        assert answer(item)[0]["content"] == [{"type": "thinking", "thinking": "", "signature": "enc"}]

    @pytest.mark.parametrize(
        ("arguments", "given"),
        [("{broken", {"_raw": "{broken"}), ("[1]", {"_raw": "[1]"}), ("", {}), (None, {}), ("{}", {})],
    )
    def test_arguments_that_are_no_object_do_not_fail(self, arguments: Any, given: dict[str, Any]) -> None:
        message, _ = answer({"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments})
        assert message["content"][0]["input"] == given

    @pytest.mark.parametrize(
        ("more", "stop"),
        [
            ({}, "end_turn"),
            ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "max_tokens"),
            ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "refusal"),
            ({"native_finish_reason": "pause_turn"}, "pause_turn"),
            ({"native_finish_reason": "stop_sequence", "stop_sequence": "END"}, "stop_sequence"),
            ({"native_finish_reason": "stop"}, "end_turn"),
        ],
    )
    def test_stop_reason(self, more: dict[str, Any], stop: str) -> None:
        assert answer(text("hi"), **more)[0]["stop_reason"] == stop

    def test_a_failed_response_is_an_error(self) -> None:
        message, _ = answer(status="failed", error={"code": "server_error", "message": "broke"})
        assert message == {"type": "error", "error": {"type": "api_error", "message": "broke"}}

    def test_cached_tokens_are_taken_out_of_the_input(self) -> None:
        usage = {
            "input_tokens": 100,
            "output_tokens": 5,
            "total_tokens": 105,
            "input_tokens_details": {"cached_tokens": 80},
            "output_tokens_details": {"reasoning_tokens": 2},
        }
        message, _ = answer(text("hi"), usage=usage)
        assert message["usage"] == {
            "input_tokens": 20,
            "output_tokens": 5,
            "cache_read_input_tokens": 80,
            "cache_creation_input_tokens": 0,
            "output_tokens_details": {"thinking_tokens": 2},
        }

    def test_unknown_usage_is_zero_and_noted(self) -> None:
        message, notes = answer(text("hi"))
        assert message["usage"] == {"input_tokens": 0, "output_tokens": 0}
        assert notes == ["`usage` is unknown; the zeros in the answer stand for unknown"]

    def test_url_citations_become_citations(self) -> None:
        note = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 2}
        message, notes = answer(text("hi", annotations=[note, {"type": "file_path", "file_id": "f"}]))
        (citation,) = message["content"][0]["citations"]
        assert (citation["url"], citation["cited_text"]) == ("u", "hi")
        assert "annotation of type `file_path` dropped" in notes

    def test_a_namespaced_call_is_flat(self) -> None:
        item = {"type": "function_call", "call_id": "c", "namespace": "n", "name": "f", "arguments": "{}"}
        assert answer(item)[0]["content"][0]["name"] == "n__f"


class TestToResponses:
    def test_blocks_become_items_in_order(self) -> None:
        converted, notes = response(
            {"type": "thinking", "thinking": "hm", "signature": "sig"},
            {"type": "redacted_thinking", "data": "zz"},
            {"type": "text", "text": "a"},
            {"type": "text", "text": "b"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}},
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            stop_reason="tool_use",
        )
        assert [item["type"] for item in converted["output"]] == ["reasoning", "reasoning", "message", "function_call"]
        assert [part["text"] for part in converted["output"][2]["content"]] == ["a", "b"]
        assert (converted["output"][3]["call_id"], converted["output"][3]["arguments"]) == ("t", '{"x":1}')
        assert (converted["id"], converted["model"], converted["created_at"]) == ("msg_1", "claude", 7.0)
        assert notes == ["content[5] of type `server_tool_use` dropped"]

    @pytest.mark.parametrize(
        ("stop", "status", "reason"),
        [
            ("end_turn", "completed", None),
            ("max_tokens", "incomplete", "max_output_tokens"),
            ("model_context_window_exceeded", "incomplete", "max_output_tokens"),
            ("refusal", "incomplete", "content_filter"),
            ("pause_turn", "completed", None),
        ],
    )
    def test_status(self, stop: str, status: str, reason: str | None) -> None:
        converted, _ = response({"type": "text", "text": "x"}, stop_reason=stop)
        assert (converted["status"], (converted["incomplete_details"] or {}).get("reason")) == (status, reason)
        assert converted["native_finish_reason"] == stop

    def test_settings_of_the_request_are_echoed(self) -> None:
        tools = [{"type": "function", "name": "f", "parameters": {}, "strict": False}]
        converted, _ = response(
            request={"temperature": 0.1, "tools": tools, "instructions": "i", "tool_choice": "none"}
        )
        assert (converted["temperature"], converted["tools"], converted["instructions"]) == (0.1, tools, "i")
        assert converted["output"][0]["content"][0]["text"] == ""

    def test_usage_counts_the_whole_prompt(self) -> None:
        usage = {
            "input_tokens": 20,
            "output_tokens": 5,
            "cache_read_input_tokens": 80,
            "cache_creation_input_tokens": 3,
        }
        converted, _ = response(usage=usage)
        assert converted["usage"] == {
            "input_tokens": 103,
            "input_tokens_details": {"cached_tokens": 80, "cache_write_tokens": 3},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": None},
            "total_tokens": 108,
        }

    def test_custom_tools_and_namespaces_are_recognised(self) -> None:
        function = {"type": "function", "name": "f", "parameters": {}, "strict": False}
        request = {
            "tools": [
                {"type": "custom", "name": "g"},
                {"type": "namespace", "name": "n", "description": "d", "tools": [function]},
            ]
        }
        converted, _ = response(
            {"type": "tool_use", "id": "a", "name": "g", "input": {"input": "raw"}},
            {"type": "tool_use", "id": "b", "name": "n__f", "input": {}},
            request=request,
        )
        assert (converted["output"][0]["type"], converted["output"][0]["input"]) == ("custom_tool_call", "raw")
        assert (converted["output"][1]["namespace"], converted["output"][1]["name"]) == ("n", "f")

    def test_citations_survive_both_ways(self) -> None:
        citations = [
            {"type": "char_location", "document_title": "d", "document_index": 0, "cited_text": "x"},
            {"type": "web_search_result_location", "url": "u", "title": "t", "encrypted_index": "e", "cited_text": "x"},
        ]
        converted, _ = response({"type": "text", "text": "x", "citations": citations})
        assert [note["type"] for note in converted["output"][0]["content"][0]["annotations"]] == [
            "file_citation",
            "url_citation",
        ]
        back, _ = responses_to_messages_response(converted, requested_model=None)
        assert back["content"][0]["citations"] == citations

    def test_an_error_is_a_failed_response(self) -> None:
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
        converted, _ = messages_response_to_responses(error, request={"model": "m"}, mint=MINT)
        assert converted["status"] == "failed"
        assert converted["error"] == {"code": "overloaded_error", "message": "busy"}

"""The lenient clean-up of requests, as coding agents send them."""

from __future__ import annotations

from typing import Any

from nemo_gym.dialects.conversion import (
    responses_request_to_chat,
    restore_namespaces,
    tidy_chat_request,
    tidy_responses_request,
    wants_usage,
)
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
NAMESPACE = {"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION]}


def tidy(**body: Any) -> tuple[dict[str, Any], list[str]]:
    tidied, notes = tidy_responses_request(body)
    NeMoGymResponseCreateParamsNonStreaming.model_validate(tidied)
    return tidied, notes


def test_streaming_settings_go_silently_and_unknown_fields_are_named() -> None:
    tidied, notes = tidy(input="q", stream=True, stream_options={}, client_metadata={"a": 1})
    assert tidied == {"input": "q"}
    assert notes == ["`client_metadata` dropped: unknown field"]


def test_namespaces_are_flattened_in_tools_and_replayed_calls() -> None:
    call = {"type": "function_call", "call_id": "c", "namespace": "n", "name": "f", "arguments": "{}"}
    tidied, notes = tidy(input=[call], tools=[NAMESPACE])
    assert tidied["tools"] == [{**FUNCTION, "name": "n__f"}]
    assert tidied["input"] == [{"type": "function_call", "call_id": "c", "name": "n__f", "arguments": "{}"}]
    assert notes == []


def test_calls_of_the_answer_are_mapped_back() -> None:
    response = {
        "output": [
            {"type": "function_call", "call_id": "c", "name": "n__f", "arguments": "{}"},
            {"type": "function_call", "call_id": "d", "name": "other", "arguments": "{}"},
        ]
    }
    restored = restore_namespaces(response, request={"input": "q", "tools": [NAMESPACE]})
    assert (restored["output"][0]["namespace"], restored["output"][0]["name"]) == ("n", "f")
    assert restored["output"][1] == response["output"][1]
    assert restore_namespaces(response, request={"input": "q"}) is response


def test_additional_tools_join_the_tools() -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [FUNCTION, {"type": "web_search"}, "x"]}
    tidied, notes = tidy(input=[item, {"role": "user", "content": "q"}])
    assert tidied["tools"] == [FUNCTION]
    assert [one.get("role") for one in tidied["input"]] == ["user"]
    assert len(notes) == 2


def test_unusable_tools_and_unknown_items_are_dropped() -> None:
    tidied, notes = tidy(
        input=[{"type": "made_up"}, {"role": "tool", "content": "x"}, "x", {"role": "user", "content": "q"}],
        tools=[{"name": "f"}, {"type": "function"}, {"type": "function", "name": "g", "parameters": "x"}, FUNCTION],
    )
    assert tidied["input"] == [{"role": "user", "content": "q"}]
    assert tidied["tools"] == [FUNCTION]
    assert len(notes) == 6


def test_function_tools_get_the_fields_that_strict_readers_ask_for() -> None:
    tidied, notes = tidy(input="q", tools=[{"type": "function", "name": "f"}])
    assert tidied["tools"] == [
        {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}
    ]
    assert notes == []


def test_the_leading_run_of_instructions_moves() -> None:
    tidied, _ = tidy(
        instructions="a",
        input=[
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "b"}]},
            {"role": "system", "content": "c"},
            {"role": "user", "content": "q"},
            {"role": "developer", "content": "late"},
        ],
    )
    assert tidied["instructions"] == "a\n\nb\n\nc"
    assert [item["role"] for item in tidied["input"]] == ["user", "developer"]


def test_replayed_reasoning_without_an_id_gets_one() -> None:
    tidied, _ = tidy(input=[{"type": "reasoning", "summary": [], "content": None, "encrypted_content": "e"}])
    assert tidied["input"][0]["id"] == "rs_0"


def test_a_request_of_a_coding_agent_reaches_a_chat_backend() -> None:
    tidied, _ = tidy(
        model="m",
        instructions="be good",
        input=[
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": None},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
            {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c"},
            {"type": "function_call_output", "call_id": "c", "output": "ok"},
        ],
        tools=[NAMESPACE, {"type": "web_search"}, {"type": "custom", "name": "apply_patch"}],
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
    )
    converted, notes = responses_request_to_chat(tidied)
    assert [message["role"] for message in converted["messages"]] == ["system", "user", "assistant", "tool"]
    assert converted["messages"][2]["content"] == "<think>hm</think>a"
    assert len(notes) == 3


def test_chat_requests_lose_streaming_settings_and_unknown_fields() -> None:
    body = {"messages": [], "stream": True, "stream_options": {"include_usage": True}, "made_up": 1}
    assert tidy_chat_request(body) == ({"messages": []}, ["`made_up` dropped: unknown field"])
    assert wants_usage(body) is True
    assert wants_usage({"messages": []}) is False

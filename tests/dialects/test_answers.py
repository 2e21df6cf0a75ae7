"""What is read from a finished answer: tool calls (4.4), reasoning (4.5), finish, status, id and model (1.5, 4.3)."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.dialects import (
    dialect_of,
    finish_of,
    finish_reason_of,
    model_of,
    normal_finish,
    parse_arguments,
    reasoning_of,
    response_id_of,
    response_status_of,
    tool_calls_of,
)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({"a": 1}, {"a": 1}),
        ('{"a": 1}', {"a": 1}),
        ("[1]", [1]),
        ("null", None),
        ('{"a"', {"_raw": '{"a"'}),
        ("", {}),
        (" ", {}),
        (None, {}),
    ],
)
def test_arguments(value: Any, wanted: Any) -> None:
    assert parse_arguments(value) == wanted


def responses(*items: Any) -> dict[str, Any]:
    return {"object": "response", "output": list(items)}


def chat(*messages: Any, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, **choice} for message in messages]}


def messages(*blocks: Any) -> dict[str, Any]:
    return {"type": "message", "content": list(blocks)}


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        ({"type": "function_call", "call_id": "c", "id": "i", "name": "f", "arguments": "{}", "namespace": "n"},
         {"call_id": "c", "name": "f", "arguments": {}, "namespace": "n"}),
        ({"type": "function_call", "id": "i", "name": "f"}, {"call_id": "i", "name": "f", "arguments": {}}),
        ({"type": "custom_tool_call", "call_id": "c", "name": "sh", "input": "ls"},
         {"call_id": "c", "name": "sh", "arguments": {"input": "ls"}, "kind": "custom_tool_call"}),
        ({"type": "mcp_call", "id": "m", "name": "q", "arguments": "{", "server_label": "s"},
         {"call_id": "m", "name": "q", "arguments": {"_raw": "{"}, "kind": "mcp_call", "server_label": "s"}),
        ({"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}},
         {"call_id": "c", "name": "local_shell", "arguments": {"command": ["ls"]}, "kind": "local_shell_call"}),
        ({"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
         {"call_id": "c", "name": "shell", "arguments": {"commands": ["ls"]}, "kind": "shell_call"}),
        ({"type": "apply_patch_call", "call_id": "c", "operation": {"type": "x"}},
         {"call_id": "c", "name": "apply_patch", "arguments": {"type": "x"}, "kind": "apply_patch_call"}),
        ({"type": "computer_call", "call_id": "c", "action": {"type": "click"}},
         {"call_id": "c", "name": "computer", "arguments": {"type": "click"}, "kind": "computer_call"}),
        ({"type": "tool_search_call", "id": "t", "arguments": {"q": 1}},
         {"call_id": "t", "name": "tool_search", "arguments": {"q": 1}, "kind": "tool_search_call"}),
        ({"type": "web_search_call", "id": "w", "action": {"query": "x"}},
         {"call_id": "w", "name": "web_search", "arguments": {"query": "x"}, "kind": "web_search_call"}),
        ({"type": "file_search_call", "id": "w", "queries": ["x"]},
         {"call_id": "w", "name": "file_search", "arguments": {"queries": ["x"]}, "kind": "file_search_call"}),
        ({"type": "code_interpreter_call", "id": "w", "code": "1", "container_id": None},
         {"call_id": "w", "name": "code_interpreter", "arguments": {"code": "1"}, "kind": "code_interpreter_call"}),
        ({"type": "image_generation_call", "id": "w"},
         {"call_id": "w", "name": "image_generation", "arguments": {}, "kind": "image_generation_call"}),
    ],
)  # fmt: skip
def test_calls_of_a_response(item: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert tool_calls_of(responses({"type": "message"}, item, 3), "responses") == [wanted]


def test_calls_of_every_chat_choice() -> None:
    first = {
        "tool_calls": [
            {"id": "a", "function": {"name": "f", "arguments": ""}},
            {"id": "b", "type": "custom", "custom": {"name": "sh", "input": "ls"}},
            None,
        ]
    }
    second = {"function_call": {"name": "g", "arguments": "[]"}}
    assert tool_calls_of(chat(first, second, None), "chat") == [
        {"call_id": "a", "name": "f", "arguments": {}},
        {"call_id": "b", "name": "sh", "arguments": {"input": "ls"}, "kind": "custom"},
        {"call_id": None, "name": "g", "arguments": [], "kind": "function_call", "choice": 1},
    ]


def test_calls_of_a_message() -> None:
    answer = messages(
        {"type": "text", "text": "x"},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
        {"type": "server_tool_use", "id": "b", "name": "web_search", "input": {}},
        {"type": "mcp_tool_use", "id": "c", "name": "q", "input": {}, "server_name": "s"},
    )
    wanted = [
        {"call_id": "a", "name": "f", "arguments": {"x": 1}},
        {"call_id": "b", "name": "web_search", "arguments": {}, "kind": "server_tool_use"},
        {"call_id": "c", "name": "q", "arguments": {}, "kind": "mcp_tool_use", "server_label": "s"},
    ]
    assert tool_calls_of(answer, "messages") == tool_calls_of(answer, None) == wanted


@pytest.mark.parametrize(
    ("response", "wanted"),
    [
        (
            responses({"type": "reasoning", "summary": [{"text": "a"}, {"text": "b"}], "content": [{"text": "c"}]}),
            "a\nb",
        ),
        (
            responses({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "raw"}]}),
            "raw",
        ),
        (responses({"type": "reasoning", "encrypted_content": "E"}), None),
        (chat({"reasoning_content": "a", "reasoning": "a"}, {"reasoning": "b"}), "a\nb"),
        (chat({"reasoning": "", "reasoning_details": [{"text": "t"}, {"summary": "s"}, {"data": "E"}]}), "t\ns"),
        (chat({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}, {"type": "text"}]}), "t"),
        (chat({"content": "<think>why</think>so"}), "why"),
        (chat({"content": "so <think>why</think>"}), None),
        (messages({"type": "thinking", "thinking": "a"}, {"type": "redacted_thinking", "data": "E"}), "a"),
        (messages({"type": "thinking", "thinking": ""}), None),
        ({"odd": 1}, None),
        (None, None),
    ],
)
def test_reasoning(response: Any, wanted: str | None) -> None:
    assert reasoning_of(response, None) == wanted
    assert reasoning_of(response, dialect_of(response)) == wanted


@pytest.mark.parametrize(
    ("response", "reason", "normal"),
    [
        ({"stop_reason": "end_turn", "type": "message", "content": []}, "end_turn", "stop"),
        ({"stop_reason": "refusal"}, "refusal", "refusal"),
        ({"stop_reason": "pause_turn"}, "pause_turn", "pause"),
        ({"stop_reason": "model_context_window_exceeded"}, "model_context_window_exceeded", "context_overflow"),
        (chat({}, finish_reason="tool_calls"), "tool_calls", "tool_calls"),
        (chat({}, finish_reason="abort"), "abort", "cancelled"),
        (chat({}, finish_reason="odd"), "odd", None),
        (chat({}, finish_reason=None), None, None),
        ({"object": "response", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
         "max_output_tokens", "length"),
        ({"object": "response", "status": "completed", "output": []}, None, "stop"),
        ({"object": "response", "status": "completed", "output": [{"type": "function_call"}]}, None, "tool_calls"),
        ({"object": "response", "status": "completed", "output": [{"content": [{"type": "refusal"}]}]},
         None, "refusal"),
        ({"object": "response", "status": "failed", "error": {"code": "server_error"}}, None, "error"),
        ({"object": "response", "status": "failed", "error": {"code": "context_length_exceeded"}},
         None, "context_overflow"),
        ({"object": "response", "status": "cancelled"}, None, "cancelled"),
        ({"object": "response", "status": "in_progress"}, None, None),
        ("x", None, None),
    ],
)  # fmt: skip
def test_finish(response: Any, reason: str | None, normal: str | None) -> None:
    assert finish_reason_of(response) == reason
    assert finish_of(response, None).reason == reason
    assert finish_of(response, None).normal == normal


def test_finish_lists_every_choice_and_the_error_code() -> None:
    answer = {"choices": [{"finish_reason": "stop"}, {"finish_reason": None}, {"finish_reason": "length"}]}
    assert finish_of(answer, "chat").reasons == ("stop", None, "length")
    assert finish_of({"status": "failed", "error": {"code": "server_error"}}, "responses").error_code == "server_error"
    assert normal_finish("MAX_TOKENS") == "length"
    assert normal_finish(None) is None


def test_identity_is_read_only_from_strings() -> None:
    assert response_id_of({"id": "r"}) == "r"
    assert response_id_of({"id": 5}) is None
    assert response_status_of({"status": "failed"}) == "failed"
    assert model_of({"model": None}, {"model": "asked"}) == "asked"
    assert model_of({"model": "answered"}, {"model": "asked"}) == "answered"
    assert model_of(None) is None

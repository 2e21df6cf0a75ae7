"""Whatever JSON arrives, a conversion converts it or refuses it as `ConversionError`, so that a client gets a 400."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.dialects import conversion
from nemo_gym.dialects.conversion import ConversionError, replay_events

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"s": 1}}
CUSTOM = {"id": "b", "type": "custom", "custom": {"name": "g", "input": "x"}}
TOKENS = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.1]}
ANNOTATION = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
FUNCTION = {"type": "function", "name": "f", "parameters": {}, "strict": True}
REQUEST = {
    "tools": [FUNCTION, {"type": "namespace", "name": "n", "tools": [FUNCTION]}, {"type": "custom", "name": "g"}]
}

MESSAGES_REQUEST = {
    "model": "m",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "x"}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "x", "citations": [{"type": "char_location"}]},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QQ=="}},
                {"type": "document", "title": "t", "source": {"type": "text", "data": "x"}},
                {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}},
                {"type": "search_result", "title": "t", "content": [{"type": "text", "text": "x"}]},
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "is_error": True,
                    "content": [{"type": "text", "text": "x"}, {"type": "image", "source": {"type": "url"}}],
                },
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "x", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
            ],
        },
    ],
    "tools": [{"name": "f", "input_schema": {}}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "output_config": {"format": {"type": "json_schema", "schema": {}}},
    "stop_sequences": ["x"],
}
RESPONSES_REQUEST = {
    **REQUEST,
    "model": "m",
    "instructions": "i",
    "input": [
        {"role": "developer", "content": [{"type": "input_text", "text": "x"}]},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "x"},
                {"type": "input_image", "image_url": "data:image/png;base64,QQ==", "detail": "auto"},
            ],
        },
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": "s"},
        {
            "type": "message",
            "role": "assistant",
            "id": "m",
            "content": [{"type": "output_text", "text": "x", "annotations": [ANNOTATION]}],
            **TOKENS,
        },
        {"type": "function_call", "call_id": "c", "name": "f", "namespace": "n", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"type": "additional_tools", "tools": [FUNCTION]},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "low"},
    "metadata": {"extra_body": '{"stop": ["x"]}'},
    "include": ["reasoning.encrypted_content"],
    "max_output_tokens": 5000,
}
CHAT_REQUEST = {
    "model": "m",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "u"}}]},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "x"}],
            "refusal": "x",
            "reasoning_content": "x",
            "tool_calls": [CALL, CUSTOM],
            "function_call": {"name": "f", "arguments": "{}"},
            **TOKENS,
        },
        {"role": "tool", "tool_call_id": "a", "content": "x"},
        {"role": "function", "name": "f", "content": "x"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "functions": [{"name": "f"}],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function"}]}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n"}},
    "metadata": {"a": "b"},
    "chat_template_kwargs": {},
    "n": 1,
    "stream_options": {"include_usage": True},
}
MESSAGE = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "x", "signature": "s"},
        {"type": "text", "text": "x", "citations": [{"type": "char_location", "url": "u"}]},
        {"type": "tool_use", "id": "t", "name": "g", "input": {"input": "x"}},
    ],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 1, "output_tokens_details": {"thinking_tokens": 1}},
}
COMPLETION = {
    "id": "c",
    "created": 1,
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "logprobs": {"content": []},
            "message": {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": [{"text": "x"}]}, {"type": "text", "text": "x"}],
                "annotations": [{"type": "url_citation", "url_citation": ANNOTATION}],
                "tool_calls": [CALL, CUSTOM],
                "audio": {"transcript": "x"},
                **TOKENS,
            },
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}},
}
RESPONSE = {
    "id": "r",
    "object": "response",
    "status": "completed",
    "created_at": 1,
    "output": RESPONSES_REQUEST["input"],
    "incomplete_details": {"reason": "max_output_tokens"},
    "usage": {"input_tokens": 1, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 1}},
}

CASES: dict[str, tuple[Any, Any]] = {
    "messages request": (MESSAGES_REQUEST, conversion.messages_request_to_responses),
    "responses request to messages": (RESPONSES_REQUEST, conversion.responses_request_to_messages),
    "responses request to chat": (RESPONSES_REQUEST, conversion.responses_request_to_chat),
    "chat request": (CHAT_REQUEST, conversion.chat_request_to_responses),
    "messages answer": (MESSAGE, lambda body: conversion.messages_response_to_responses(body, request=REQUEST)),
    "chat answer": (COMPLETION, lambda body: conversion.chat_response_to_responses(body, request=REQUEST)),
    "response to messages": (
        RESPONSE,
        lambda body: conversion.responses_to_messages_response(body, requested_model="m"),
    ),
    "response to chat": (RESPONSE, lambda body: conversion.responses_to_chat_response(body, requested_model="m")),
    "tidy responses": (RESPONSES_REQUEST, conversion.tidy_responses_request),
    "tidy chat": (CHAT_REQUEST, conversion.tidy_chat_request),
    "restore namespaces": (RESPONSE, lambda body: conversion.restore_namespaces(body, request=body)),
    "namespaces of the request": (REQUEST, lambda body: conversion.restore_namespaces(RESPONSE, request=body)),
    "replay responses": (RESPONSE, lambda body: list(replay_events("responses", body))),
    "replay chat": (COMPLETION, lambda body: list(replay_events("chat", body, include_usage=True))),
    "replay messages": (MESSAGE, lambda body: list(replay_events("messages", body))),
}
STRANGE = [None, True, 0, -1, 1.5, "", "x", [], ["x"], [[]], [None], {}, {"x": 1}, {"type": []}, [{}], [{"type": {}}]]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in entries:
        found.extend(places(item, (*path, key)))
    return found


def replaced(value: Any, path: tuple[Any, ...], strange: Any) -> Any:
    changed = copy.deepcopy(value)
    target = changed
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = strange
    return changed


@pytest.mark.parametrize("name", CASES)
def test_one_strange_value_anywhere(name: str) -> None:
    body, convert = CASES[name]
    convert(body)
    failures = []
    for path in places(body):
        for strange in STRANGE:
            try:
                convert(replaced(body, path, strange))
            except ConversionError:
                pass
            except Exception as error:
                failures.append((path, strange, repr(error)))
    assert failures == []


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_several_strange_values(name: str, data: st.DataObject) -> None:
    body, convert = CASES[name]
    for _ in range(data.draw(st.integers(2, 5))):
        body = replaced(body, data.draw(st.sampled_from(places(body))), data.draw(st.sampled_from(STRANGE)))
        if not places(body):
            break
    try:
        convert(body)
    except ConversionError:
        pass

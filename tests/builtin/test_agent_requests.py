"""Requests of the shapes that coding agents send pass on every backend, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from backends import DIALECTS, PATHS, accumulated, client_of, front, said_in, stream_of, text_in

from nemo_gym.dialects.conversion import replay_events

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "additionalProperties": False}

CODEX = {
    "model": "gpt-5",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "additional_tools", "tools": [{"type": "function", "name": "extra", "parameters": SCHEMA}]},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fix it"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
        {"type": "function_call", "name": "read", "namespace": "fs", "arguments": '{"path":"a"}', "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "text of a"},
        {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "c2"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
    ],
    "tools": [
        {"type": "namespace", "name": "fs", "tools": [{"type": "function", "name": "read", "parameters": SCHEMA}]},
        {"type": "function", "name": "shell", "description": "run", "parameters": SCHEMA},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "web_search", "external_web_access": True},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "client_metadata": {"x": "y"},
}
CLAUDE_CODE = {
    "model": "claude-sonnet",
    "max_tokens": 32000,
    "system": [
        {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "text", "text": "rules"},
    ],
    "messages": [
        {"role": "system", "content": "a system message in the middle of messages"},
        {"role": "user", "content": [{"type": "text", "text": "fix", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                {"type": "redacted_thinking", "data": "opaque"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a"}},
                {"type": "tool_use", "id": "toolu_2", "name": "Read", "input": {"path": "b"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "A"}]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such file", "is_error": True},
                {"type": "text", "text": "<system-reminder>go on</system-reminder>"},
            ],
        },
    ],
    "tools": [
        {"name": "Read", "description": "Reads.", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "metadata": {"user_id": "u"},
    "temperature": 1,
}
OPENCODE = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "You are opencode."},
        {"role": "system", "content": "environment"},
        {"role": "user", "content": [{"type": "text", "text": "fix"}]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path":"a"}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "A"},
    ],
    "tools": [{"type": "function", "function": {"name": "read", "description": "d", "parameters": SCHEMA}}],
    "tool_choice": "auto",
    "max_tokens": 32000,
    "stream_options": {"include_usage": True},
}
QWEN_CODE = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Qwen", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": [{"type": "text", "text": "fix"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "A"}]},
    ],
    "tools": [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}],
    "temperature": 0,
    "top_p": 1,
    "max_tokens": 8000,
    "metadata": {"sessionId": "s", "promptId": "p"},
    "vl_high_resolution_images": True,
}
PI = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": "You are pi."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ],
        },
    ],
    "tools": [{"type": "function", "function": {"name": "bash", "parameters": SCHEMA, "strict": False}}],
    "max_completion_tokens": 4096,
    "store": False,
    "reasoning_effort": "low",
}
AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "codex": ("responses", CODEX),
    "claude-code": ("messages", CLAUDE_CODE),
    "opencode": ("chat", OPENCODE),
    "qwen-code": ("chat", QWEN_CODE),
    "pi": ("chat", PI),
}


@pytest.mark.parametrize("wire", DIALECTS)
@pytest.mark.parametrize("agent", AGENTS)
def test_agents_pass_on_every_backend(backend, agent, wire) -> None:
    dialect, body = AGENTS[agent]
    with client_of(front(wire, backend.url)) as http:
        backend.answer(PATHS[wire], said_in(wire))
        answer = http.post(PATHS[dialect], json=body)
        assert answer.status_code == 200, answer.text
        assert text_in(dialect, answer.json()) == "forty-two"
        backend.answer(PATHS[wire], (200, b"".join(stream_of(wire)), {"Content-Type": "text/event-stream"}))
        answer = http.post(PATHS[dialect], json={**body, "stream": True})
        assert answer.status_code == 200, answer.text
        assert b"forty-two" in answer.content
    whole, streamed = (sent for _, sent, _ in backend.asked)
    assert {key: streamed[key] for key in whole if key not in ("stream_options",)} == {
        key: value for key, value in whole.items() if key not in ("stream_options",)
    }, "what the model is asked does not depend on `stream`"


def test_claude_code_reaches_a_chat_model_whole(backend) -> None:
    backend.answer(PATHS["chat"], said_in("chat"))
    with client_of(front("chat", backend.url)) as http:
        http.post(PATHS["messages"], json=CLAUDE_CODE)
    sent = backend.asked[0][1]
    roles = [message["role"] for message in sent["messages"]]
    assert roles[:2] == ["system", "user"]
    assert roles[-3:] == ["tool", "tool", "user"]
    assistant = next(message for message in sent["messages"] if message["role"] == "assistant")
    assert [call["id"] for call in assistant["tool_calls"]] == ["toolu_1", "toolu_2"]
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["Read"]


def test_codex_namespaces_come_back_from_a_chat_model(backend) -> None:
    call = {"id": "c9", "type": "function", "function": {"name": "fs__read", "arguments": '{"path":"b"}'}}
    completion = said_in("chat")
    completion["choices"][0]["message"]["tool_calls"] = [call]
    backend.answer(PATHS["chat"], completion)
    with client_of(front("chat", backend.url)) as http:
        output = http.post(PATHS["responses"], json=CODEX).json()["output"]
        streamed = http.post(PATHS["responses"], json={**CODEX, "stream": True}).text
    assert (output[-1]["namespace"], output[-1]["name"]) == ("fs", "read")
    assert '"namespace":"fs"' in streamed
    names = [tool["function"]["name"] for tool in backend.asked[0][1]["tools"] if tool["type"] == "function"]
    assert names == ["fs__read", "shell", "apply_patch", "extra"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_custom_tool_is_a_function_for_a_model_that_knows_nothing_else(backend, stream) -> None:
    arguments = '{"input":"*** Begin \\"é\\""}'
    completion = said_in("chat")
    function = {"name": "apply_patch", "arguments": arguments}
    completion["choices"][0]["message"]["tool_calls"] = [{"id": "c9", "type": "function", "function": function}]
    answer = completion if not stream else b"".join(replay_events("chat", completion))
    backend.answer(PATHS["chat"], (200, answer, {"Content-Type": "text/event-stream"} if stream else {}))
    with client_of(front("chat", backend.url)) as http:
        said = http.post(PATHS["responses"], json={**CODEX, "stream": stream})
    output = (accumulated("responses", said.content).response if stream else said.json())["output"]
    assert (output[-1]["type"], output[-1]["input"]) == ("custom_tool_call", '*** Begin "é"')
    sent = backend.asked[0][1]
    assert {tool["type"] for tool in sent["tools"]} == {"function"}
    calls = [call for message in sent["messages"] for call in message.get("tool_calls") or ()]
    assert [call["type"] for call in calls] == ["function", "function"]
    assert calls[1]["function"] == {"name": "apply_patch", "arguments": '{"input":"*** Begin"}'}

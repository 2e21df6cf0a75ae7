"""Properties of conversions there and back."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.dialects.conversion import (
    chat_request_to_responses,
    chat_response_to_responses,
    messages_request_to_responses,
    messages_response_to_responses,
    responses_request_to_chat,
    responses_request_to_messages,
    responses_to_chat_response,
    responses_to_messages_response,
)
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)

words = st.text(min_size=1, max_size=8)
names = st.from_regex(r"[a-z]{1,6}", fullmatch=True)
ids = st.from_regex(r"toolu_[a-z0-9]{1,6}", fullmatch=True)
inputs = st.dictionaries(words, st.one_of(words, st.integers(-(2**53), 2**53), st.booleans(), st.none()), max_size=3)

texts = st.builds(lambda text: {"type": "text", "text": text}, words)
thinking = st.builds(
    lambda text, signature: {"type": "thinking", "thinking": text, "signature": signature}, st.text(max_size=8), words
)
redacted = st.builds(lambda data: {"type": "redacted_thinking", "data": data}, words)
tool_use = st.builds(
    lambda id, name, given: {"type": "tool_use", "id": id, "name": name, "input": given}, ids, names, inputs
)
tool_result = st.builds(
    lambda id, text, failed: {
        "type": "tool_result",
        "tool_use_id": id,
        "content": text,
        **({"is_error": True} if failed else {}),
    },
    ids,
    st.text(max_size=8),
    st.booleans(),
)
images = st.builds(
    lambda data: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
    st.from_regex(r"[A-Za-z0-9+/]{4,8}", fullmatch=True),
)
assistant_blocks = st.lists(st.one_of(texts, thinking, redacted, tool_use), min_size=1, max_size=5)
user_blocks = st.lists(st.one_of(texts, images, tool_result), min_size=1, max_size=5)
conversations = st.lists(
    st.one_of(
        st.builds(lambda content: {"role": "user", "content": content}, st.one_of(words, user_blocks)),
        st.builds(lambda content: {"role": "assistant", "content": content}, st.one_of(words, assistant_blocks)),
    ),
    min_size=1,
    max_size=5,
)


def blocks_of(messages: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Every block with its role, in order: how blocks are grouped into messages carries no meaning."""
    found: list[tuple[str, Any]] = []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        found.extend((message["role"], block) for block in blocks)
    return found


@given(conversations)
@settings(max_examples=200, deadline=None)
def test_messages_requests_survive_responses(messages: list[dict[str, Any]]) -> None:
    """Text, thinking with signature, redacted thinking, tool ids, images and their order survive (8.9)."""
    canonical, notes = messages_request_to_responses({"model": "m", "max_tokens": 9, "messages": messages})
    assert notes == []
    NeMoGymResponseCreateParamsNonStreaming.model_validate(canonical)
    back, notes = responses_request_to_messages(canonical)
    assert notes == []
    assert blocks_of(back["messages"]) == blocks_of(messages)


@given(assistant_blocks, st.sampled_from(["end_turn", "tool_use", "max_tokens", "refusal", "pause_turn"]))
@settings(max_examples=200, deadline=None)
def test_messages_answers_survive_responses(content: list[dict[str, Any]], stop: str) -> None:
    usage = {"input_tokens": 3, "output_tokens": 4, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 6}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": usage,
    }
    canonical, _ = messages_response_to_responses(message, request={})
    NeMoGymResponse.model_validate(canonical)
    back, _ = responses_to_messages_response(canonical, requested_model="m")
    if stop in ("end_turn", "tool_use"):
        stop = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    assert back == {**message, "stop_reason": stop}


chat_calls = st.lists(
    st.one_of(
        st.builds(
            lambda id, name, given: {
                "id": id,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(given)},
            },
            ids,
            names,
            inputs,
        ),
        st.builds(
            lambda id, name, text: {"id": id, "type": "custom", "custom": {"name": name, "input": text}},
            ids,
            names,
            words,
        ),
    ),
    max_size=3,
)
plain_words = st.text(alphabet="abc <>/\n", min_size=1, max_size=8)


@given(st.none() | plain_words, st.none() | plain_words, st.none() | plain_words, chat_calls, st.booleans())
@settings(max_examples=200, deadline=None)
def test_chat_answers_survive_responses(
    content: str | None, reasoning: str | None, refusal: str | None, calls: list[Any], tokens: bool
) -> None:
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": refusal}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    if tokens:
        message |= {"prompt_token_ids": [1], "generation_token_ids": [2, 3], "generation_log_probs": [-0.1, -0.2]}
    if not (content or reasoning or refusal or calls):
        message["content"] = ""  # an empty answer is an empty text
    completion = {
        "id": "c",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "choices": [
            {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls" if calls else "stop"}
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    }
    canonical, notes = chat_response_to_responses(completion, request={})
    assert notes == []
    NeMoGymResponse.model_validate(canonical)
    back, notes = responses_to_chat_response(canonical, requested_model="m")
    NeMoGymChatCompletion.model_validate(back)
    assert notes == []
    assert {**back, "id": "c"} == completion


@given(plain_words, st.none() | plain_words, chat_calls, plain_words)
@settings(max_examples=200, deadline=None)
def test_chat_requests_survive_responses(question: str, reasoning: str | None, calls: list[Any], answer: str) -> None:
    turn: dict[str, Any] = {"role": "assistant", "content": answer}
    if reasoning:
        turn["reasoning_content"] = reasoning
    if calls:
        turn["tool_calls"] = calls
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "r"} for call in calls]
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": question}]},
        turn,
        *results,
    ]
    body = {
        "model": "m",
        "messages": messages,
        "max_tokens": 3,
        "temperature": 0.5,
        "stop": ["END"],
        "seed": 3,
        "reasoning_effort": "low",
    }
    canonical, notes = chat_request_to_responses(body)
    assert notes == []
    NeMoGymResponseCreateParamsNonStreaming.model_validate(canonical)
    back, notes = responses_request_to_chat(canonical, reasoning_key="reasoning_content")
    NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(back)
    assert notes == []
    assert back == body

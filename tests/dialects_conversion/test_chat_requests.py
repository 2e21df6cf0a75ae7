"""Responses requests to Chat requests and back: each row of the table, one test."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.dialects.conversion import (
    ConversionError,
    chat_request_to_responses,
    convert_request,
    responses_request_to_chat,
)
from nemo_gym.dialects.conversion.fields import CHAT_FIELDS, RESPONSES_FIELDS
from nemo_gym.openai_utils import (
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponseCreateParamsNonStreaming,
)

TOKENS = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.1]}
FUNCTION = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}


def to_chat(items: Any = "q", **settings: Any) -> tuple[dict[str, Any], list[str]]:
    converted, notes = responses_request_to_chat({"input": items, **settings})
    NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(converted)  # a strict reader accepts it
    return converted, notes


def messages(*items: Any, **settings: Any) -> list[Any]:
    return to_chat(list(items), **settings)[0]["messages"]


def thought(*texts: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": text} for text in texts]}


def said(*parts: Any) -> dict[str, Any]:
    return {"type": "message", "id": "m", "role": "assistant", "content": list(parts)}


def output(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def call(call_id: str = "c", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **more}


def test_the_known_fields_are_those_of_the_typed_requests() -> None:
    assert set(NeMoGymResponseCreateParamsNonStreaming.model_fields) == RESPONSES_FIELDS
    assert set(NeMoGymChatCompletionCreateParamsNonStreaming.model_fields) == CHAT_FIELDS


class TestToChat:
    def test_a_string_is_one_user_message_with_one_text_part(self) -> None:
        assert messages_of_string("q") == [{"role": "user", "content": [{"type": "text", "text": "q"}]}]

    def test_instructions_and_the_leading_run_are_one_system_message(self) -> None:
        given = [
            {"role": "developer", "content": "b"},
            {"role": "system", "content": [{"type": "input_text", "text": "c"}]},
            {"role": "user", "content": "q"},
            {"role": "system", "content": "late"},
        ]
        assert messages(*given, instructions="a") == [
            {"role": "system", "content": "a\n\nb\n\nc"},
            {"role": "user", "content": "q"},
            {"role": "system", "content": "late"},
        ]

    def test_a_single_developer_message_keeps_its_role(self) -> None:
        assert messages({"role": "developer", "content": "b"})[0]["role"] == "developer"

    def test_parts_of_the_user(self) -> None:
        (message,) = messages(
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "x"},
                    {"type": "input_image", "image_url": "u", "detail": "high"},
                    {"type": "input_video", "video_url": "v"},
                ],
            }
        )
        assert message["content"] == [
            {"type": "text", "text": "x"},
            {"type": "image_url", "image_url": {"url": "u", "detail": "high"}},
            {"type": "video_url", "video_url": {"url": "v"}},
        ]

    @pytest.mark.parametrize(
        "part",
        [
            {"type": "input_image", "image_url": "u", "detail": "original"},
            {"type": "input_image", "file_id": "f"},
            {"type": "input_file", "file_id": "f"},
            {"type": "secret", "text": "do not show"},
        ],
    )
    def test_other_parts_are_refused_without_their_content(self, part: dict[str, Any]) -> None:
        with pytest.raises(ConversionError) as caught:
            to_chat([{"role": "user", "content": [part]}])
        assert caught.value.param == "input[0].content[0]"
        assert "do not show" not in str(caught.value)

    def test_what_the_assistant_did_in_a_row_is_one_message(self) -> None:
        (message,) = messages(
            thought("a", "b"), said(output("x"), output("y")), thought("c"), said(output("z")), call("c1"), call("c2")
        )
        assert message["content"] == "<think>a</think><think>b</think>xy<think>c</think>z"
        assert [one["id"] for one in message["tool_calls"]] == ["c1", "c2"]

    def test_reasoning_may_go_into_a_field(self) -> None:
        converted, _ = responses_request_to_chat(
            {"input": [thought("a", "b"), said(output("x"))]}, reasoning_key="reasoning_content"
        )
        assert converted["messages"] == [{"role": "assistant", "content": "x", "reasoning_content": "a\nb"}]

    def test_a_turn_without_text_has_null_content_and_no_empty_calls(self) -> None:
        assert messages(call())[0]["content"] is None
        assert messages(said()) == [{"role": "assistant", "content": None}]

    def test_a_refusal_has_its_field(self) -> None:
        (message,) = messages(said({"type": "refusal", "refusal": "no"}))
        assert message == {"role": "assistant", "content": None, "refusal": "no"}

    def test_custom_and_namespaced_calls(self) -> None:
        (message,) = messages(
            {"type": "custom_tool_call", "call_id": "a", "name": "g", "input": "raw"}, call("b", namespace="n")
        )
        assert message["tool_calls"][0] == {"id": "a", "type": "custom", "custom": {"name": "g", "input": "raw"}}
        assert message["tool_calls"][1]["function"]["name"] == "n__f"

    def test_answers_of_tools(self) -> None:
        answers = messages(
            call("a"),
            call("b"),
            {"type": "function_call_output", "call_id": "a", "output": "1"},
            {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "2"}]},
        )[1:]
        assert answers == [
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "2"}]},
        ]

    def test_images_of_tools_follow_the_whole_run_of_answers(self) -> None:
        image = {"type": "input_image", "image_url": "u"}
        built = messages(
            call("a"),
            call("b"),
            {"type": "function_call_output", "call_id": "a", "output": [image]},
            {"type": "function_call_output", "call_id": "b", "output": "2"},
            {"role": "user", "content": "next"},
        )
        assert [message["role"] for message in built] == ["assistant", "tool", "tool", "user", "user"]
        assert built[3]["content"][0] == {"type": "text", "text": "Output of tool call a:"}
        assert built[3]["content"][1]["type"] == "image_url"

    def test_chat_shaped_items_are_accepted(self) -> None:
        calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
        assert messages(
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
        ) == [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
        ]

    @pytest.mark.parametrize("item", [{"type": "web_search_call", "secret": "x"}, {"role": "owner", "content": "x"}])
    def test_other_items_are_refused_by_type(self, item: dict[str, Any]) -> None:
        with pytest.raises(ConversionError, match=r"web_search_call|owner"):
            to_chat([item])

    def test_token_ids_return_to_the_assistant_message(self) -> None:
        (message,) = messages(thought("a"), {**said(output("x")), **TOKENS})
        assert {name: message[name] for name in TOKENS} == TOKENS
        with pytest.raises(ConversionError, match="generation_log_probs"):
            to_chat([{**said(output("x")), "prompt_token_ids": [1], "generation_token_ids": [2]}])

    def test_settings_keep_their_meaning(self) -> None:
        converted, notes = to_chat(
            model="m",
            max_output_tokens=7,
            temperature=0.1,
            top_p=0.2,
            top_logprobs=3,
            user="u",
            metadata={"a": "b"},
            store=False,
            service_tier="flex",
            safety_identifier="s",
            prompt_cache_key="k",
            reasoning={"effort": "low", "summary": "auto", "generate_summary": None},
            text={"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}, "verbosity": "low"},
            include=["reasoning.encrypted_content"],
            truncation="disabled",
        )
        converted.pop("messages")
        assert converted == {
            "model": "m",
            "max_tokens": 7,
            "temperature": 0.1,
            "top_p": 0.2,
            "top_logprobs": 3,
            "logprobs": True,
            "user": "u",
            "metadata": {"a": "b"},
            "store": False,
            "service_tier": "flex",
            "safety_identifier": "s",
            "prompt_cache_key": "k",
            "reasoning_effort": "low",
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}},
            "verbosity": "low",
        }
        assert len(notes) == 2

    @pytest.mark.parametrize(
        ("model", "key"),
        [
            ("gpt-5-mini", "max_completion_tokens"),
            ("openai/o3", "max_completion_tokens"),
            ("gpt-4o", "max_tokens"),
            ("openai/gpt-oss-20b", "max_tokens"),
        ],
    )
    def test_reasoning_models_of_openai_get_their_own_limit(self, model: str, key: str) -> None:
        assert to_chat(model=model, max_output_tokens=7)[0][key] == 7

    @pytest.mark.parametrize(
        "settings",
        [
            {"include": ["file_search_call.results"]},
            {"truncation": "auto"},
            {"previous_response_id": "r"},
            {"conversation": "c"},
            {"background": True},
            {"prompt": {"id": "p"}},
            {"max_tool_calls": 2},
            {"context_management": [{"type": "compaction"}]},
            {"reasoning": {"mode": "pro"}},
            {"tool_choice": "required"},
        ],
    )
    def test_what_chat_cannot_honour_is_refused(self, settings: dict[str, Any]) -> None:
        with pytest.raises(ConversionError):
            to_chat(**settings)

    def test_logprobs_can_be_asked_for_by_include(self) -> None:
        assert to_chat(include=["message.output_text.logprobs"])[0]["logprobs"] is True

    def test_tools_are_nested_and_hosted_ones_dropped(self) -> None:
        grammar = {"type": "grammar", "syntax": "lark", "definition": "x"}
        converted, notes = to_chat(
            tools=[
                FUNCTION,
                {"type": "function", "name": "bare"},
                {"type": "custom", "name": "g", "format": grammar},
                {"type": "namespace", "name": "n", "tools": [FUNCTION]},
                {"type": "web_search"},
            ],
            parallel_tool_calls=False,
        )
        inner = {key: value for key, value in FUNCTION.items() if key != "type"}
        assert converted["tools"] == [
            {"type": "function", "function": inner},
            {"type": "function", "function": {"name": "bare", "parameters": {"type": "object", "properties": {}}}},
            {
                "type": "custom",
                "custom": {
                    "name": "g",
                    "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}},
                },
            },
            {"type": "function", "function": {**inner, "name": "n__f"}},
        ]
        assert converted["parallel_tool_calls"] is False
        assert notes == ["tool of type `web_search` dropped: a chat backend does not run it"]

    @pytest.mark.parametrize(
        ("choice", "converted"),
        [
            ("required", "required"),
            ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
            ({"type": "custom", "name": "g"}, {"type": "custom", "custom": {"name": "g"}}),
            (
                {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
                {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
                },
            ),
        ],
    )
    def test_tool_choice_is_nested(self, choice: Any, converted: Any) -> None:
        assert to_chat(tools=[FUNCTION], tool_choice=choice)[0]["tool_choice"] == converted

    def test_without_tools_nothing_about_tools_is_sent(self) -> None:
        converted, _ = to_chat(tool_choice="auto", parallel_tool_calls=True, tools=[])
        assert set(converted) == {"messages"}
        forced, notes = to_chat(tools=[{"type": "web_search"}], tool_choice="required")
        assert set(forced) == {"messages"}
        assert len(notes) == 2

    def test_the_requests_own_settings_win_over_the_carried_ones(self) -> None:
        extra = '{"stop": ["END"], "temperature": 9}'
        converted, _ = to_chat(metadata={"extra_body": extra, "a": "b"}, temperature=0.1)
        assert (converted["stop"], converted["temperature"], converted["metadata"]) == (["END"], 0.1, {"a": "b"})

    def test_unknown_fields_are_named(self) -> None:
        assert to_chat(made_up=1)[1] == ["`made_up` dropped: unknown"]


def messages_of_string(text: str) -> list[Any]:
    return to_chat(text)[0]["messages"]


class TestToResponses:
    def convert(self, messages: list[Any], **settings: Any) -> tuple[dict[str, Any], list[str]]:
        converted, notes = chat_request_to_responses({"messages": messages, **settings})
        NeMoGymResponseCreateParamsNonStreaming.model_validate(converted)
        return converted, notes

    def test_every_part_of_the_user(self) -> None:
        parts = [
            {"type": "text", "text": "x"},
            {"type": "image_url", "image_url": {"url": "u"}},
            {"type": "video_url", "video_url": {"url": "v"}},
            {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
            {"type": "file", "file": {"file_data": "data:,", "filename": "a"}},
        ]
        converted, _ = self.convert([{"role": "user", "content": parts}])
        assert [part["type"] for part in converted["input"][0]["content"]] == [
            "input_text",
            "input_image",
            "input_video",
            "input_audio",
            "input_file",
        ]

    def test_a_turn_becomes_reasoning_message_and_calls(self) -> None:
        calls = [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"s": 1}},
            {"id": "b", "type": "custom", "custom": {"name": "g", "input": "raw"}},
        ]
        converted, _ = self.convert(
            [
                {
                    "role": "assistant",
                    "content": "x",
                    "refusal": "no",
                    "reasoning": "hm",
                    "tool_calls": calls,
                    **TOKENS,
                },
                {"role": "tool", "tool_call_id": "a", "content": "1"},
                {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "2"}]},
            ]
        )
        assert [item["type"] for item in converted["input"]] == [
            "reasoning",
            "message",
            "function_call",
            "custom_tool_call",
            "function_call_output",
            "custom_tool_call_output",
        ]
        assert [part["type"] for part in converted["input"][1]["content"]] == ["output_text", "refusal"]
        assert converted["input"][2]["extra_content"] == {"s": 1}
        assert converted["input"][3]["prompt_token_ids"] == [1]

    def test_legacy_functions(self) -> None:
        converted, _ = self.convert(
            [
                {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "1"},
            ],
            functions=[{"name": "f"}],
            function_call={"name": "f"},
        )
        assert converted["input"][0]["call_id"] == converted["input"][1]["call_id"]
        assert converted["tools"][0]["name"] == "f"
        assert converted["tool_choice"] == {"type": "function", "name": "f"}

    def test_settings(self) -> None:
        converted, notes = self.convert(
            [],
            max_completion_tokens=5,
            reasoning_effort="low",
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
            verbosity="low",
            logprobs=True,
            top_logprobs=2,
            stop="END",
            chat_template_kwargs={"enable_thinking": False},
            tools=[{"type": "function", "function": {"name": "f"}}, {"type": "made_up"}],
            tool_choice={"type": "function", "function": {"name": "f"}},
            web_search_options={},
        )
        assert converted["max_output_tokens"] == 5
        assert converted["reasoning"] == {"effort": "low"}
        assert converted["text"] == {
            "format": {"type": "json_schema", "name": "n", "schema": {}},
            "verbosity": "low",
        }
        assert converted["include"] == ["message.output_text.logprobs"]
        assert converted["metadata"] == {
            "extra_body": '{"stop":"END"}',
            "chat_template_kwargs": '{"enable_thinking":false}',
        }
        assert converted["tool_choice"] == {"type": "function", "name": "f"}
        assert notes == ["tools[1] of type `made_up` dropped", "`web_search_options` dropped"]

    @pytest.mark.parametrize(
        "body",
        [
            {"messages": [], "n": 2},
            {"messages": [{"role": "owner"}]},
            {"messages": ["x"]},
            {"messages": [{"role": "user", "content": [{"type": "made_up"}]}]},
        ],
    )
    def test_what_has_no_counterpart_is_refused(self, body: dict[str, Any]) -> None:
        with pytest.raises(ConversionError):
            chat_request_to_responses(body)


@pytest.mark.parametrize("reasoning_key", [None, "reasoning_content"])
@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({"summary": [], "encrypted_content": "E"}, False),
        ({"summary": [], "content": None, "encrypted_content": None}, False),
        ({"summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "E"}, True),
        ({"summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}, True),
        ({"summary": [], "reasoning_details": [{"type": "reasoning.encrypted", "data": "E"}]}, True),
        (
            {"summary": [], "prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [0.5]},
            True,
        ),
    ],
)
def test_a_turn_of_nothing_but_sealed_reasoning_is_no_message(
    told: dict[str, Any], kept: bool, reasoning_key: str | None
) -> None:
    turn = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "r", **told},
        {"role": "user", "content": "b"},
    ]
    body, notes = responses_request_to_chat({"input": turn}, reasoning_key=reasoning_key)
    assert [message["role"] for message in body["messages"]] == ["user", *(["assistant"] if kept else []), "user"]
    sealed = "encrypted content of 1 reasoning items dropped: a chat backend reads none"
    assert notes == ([sealed] if told.get("encrypted_content") else [])


@pytest.mark.parametrize(
    ("fields", "notes"),
    [
        ({"min_p": 0.1, "foo": None, "audio": {}}, ["`min_p` dropped", "`audio` dropped"]),
        ({"modalities": ["text"], "repetition_penalty": 1}, ["`modalities` dropped", "`repetition_penalty` dropped"]),
        ({"messages": [{"role": "user", "name": "bob", "content": "x"}]}, ["`name` of messages dropped"]),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]}]},
            ["`cache_control` dropped"],
        ),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"cache_control": {}}}}]}, []),
        ({"n": 1, "stream": True, "stream_options": {}, "seed": 1, "top_k": 2, "user": "u", "temperature": 0}, []),
    ],
)
def test_every_field_of_a_chat_request_that_is_not_carried_is_noted(fields: dict[str, Any], notes: list[str]) -> None:
    assert chat_request_to_responses({"model": "m", "messages": [], **fields})[1] == notes


def test_top_k_reaches_a_messages_backend() -> None:
    sent = convert_request({"messages": [{"role": "user", "content": "x"}], "top_k": 3}, "chat", "messages")
    assert sent.body["top_k"] == 3
    assert not any("top_k" in note for note in sent.notes)


def test_thinking_parts_of_an_assistant_are_reasoning_and_strange_parts_are_noted() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    content = [thinking, {"type": "text", "text": "x"}, {"type": "reference", "reference_ids": [1]}]
    body, notes = chat_request_to_responses({"messages": [{"role": "assistant", "content": content}]})
    reasoning, message = body["input"]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "ab"}]
    assert [part["text"] for part in message["content"]] == ["x"]
    assert notes == ["messages[0].content: a part of type `reference` dropped"]
    back, _ = responses_request_to_chat(body, reasoning_key="reasoning_content")
    assert back["messages"] == [{"role": "assistant", "content": "x", "reasoning_content": "ab"}]


@pytest.mark.parametrize("target", ["chat", "messages"])
def test_what_a_tool_says_beyond_the_protocol_is_noted_once(target: Any) -> None:
    tools = [{**FUNCTION, "name": name, "defer_loading": True, "examples": None} for name in "ab"]
    tools.append({"type": "namespace", "name": "n", "tools": [{**FUNCTION, "tags": ["x"]}]})
    sent = convert_request({"input": "q", "max_output_tokens": 9, "tools": tools}, "responses", target)
    assert sent.notes == ["`defer_loading` of tools dropped", "`tags` of tools dropped"]
    assert "defer_loading" not in str(sent.body)

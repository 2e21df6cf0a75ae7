"""Messages requests to Responses requests and back: each row of the table, one test."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from nemo_gym.dialects.conversion import (
    ConversionError,
    messages_request_to_responses,
    responses_request_to_messages,
)
from nemo_gym.dialects.conversion.fields import extra_body_of
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming


def to_responses(messages: list[Any] | None = None, **settings: Any) -> tuple[dict[str, Any], list[str]]:
    body = {"model": "m", "max_tokens": 100, "messages": messages or [], **settings}
    converted, notes = messages_request_to_responses(body)
    NeMoGymResponseCreateParamsNonStreaming.model_validate(converted)  # a strict reader accepts it
    return converted, notes


def items(*content: Any, role: str = "user") -> list[Any]:
    converted, _ = to_responses([{"role": role, "content": list(content)}])
    return converted["input"]


def to_messages(items: Any, **settings: Any) -> tuple[dict[str, Any], list[str]]:
    return responses_request_to_messages({"model": "m", "input": items, "max_output_tokens": 50_000, **settings})


class TestToResponses:
    def test_system_becomes_instructions(self) -> None:
        assert to_responses(system="be brief")[0]["instructions"] == "be brief"
        blocks = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
        converted, notes = to_responses(system=blocks)
        assert converted["instructions"] == "a\nb"
        assert notes == ["system[1] dropped: not text"]

    def test_sampling_settings_and_the_limit_are_kept(self) -> None:
        converted, notes = to_responses(temperature=0.5, top_p=0.9)
        assert converted == {"model": "m", "temperature": 0.5, "top_p": 0.9, "max_output_tokens": 100, "input": []}
        assert notes == []

    def test_a_missing_limit_is_accepted(self) -> None:
        assert messages_request_to_responses({"messages": []}) == ({"input": []}, [])

    @pytest.mark.parametrize("role", ["user", "assistant", "system"])
    def test_string_content_keeps_its_role(self, role: str) -> None:
        converted, _ = to_responses([{"role": role, "content": "x"}])
        assert converted["input"] == [{"type": "message", "role": role, "content": "x"}]

    def test_a_single_text_is_plain_content(self) -> None:
        assert items({"type": "text", "text": "x"}) == [{"type": "message", "role": "user", "content": "x"}]

    def test_consecutive_texts_and_images_form_one_message(self) -> None:
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "QQ=="}}
        assert items({"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}) == [
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "a"},
                    {"type": "input_image", "image_url": "data:image/gif;base64,QQ==", "detail": "auto"},
                    {"type": "input_text", "text": "b"},
                ],
            }
        ]

    def test_text_of_the_assistant_is_output_text(self) -> None:
        (item,) = items({"type": "text", "text": "a"}, {"type": "text", "text": "b"}, role="assistant")
        assert [part["type"] for part in item["content"]] == ["output_text", "output_text"]

    def test_an_image_url_passes_through(self) -> None:
        (item,) = items({"type": "image", "source": {"type": "url", "url": "https://x/y.png"}})
        assert item["content"][0]["image_url"] == "https://x/y.png"

    def test_documents_become_text_or_files(self) -> None:
        encoded = base64.b64encode("héllo".encode()).decode()
        (item,) = items(
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "t"}},
            {"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": encoded}},
            {
                "type": "document",
                "title": "a.pdf",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "QQ=="},
            },
            {"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}},
            {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "c"}]}},
            {"type": "search_result", "title": "T", "source": "s", "content": [{"type": "text", "text": "r"}]},
        )
        assert item["content"] == [
            {"type": "input_text", "text": "t"},
            {"type": "input_text", "text": "héllo"},
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QQ=="},
            {"type": "input_file", "file_url": "https://x/y.pdf"},
            {"type": "input_text", "text": "c"},
            {"type": "input_text", "text": "T\ns\nr"},
        ]

    @pytest.mark.parametrize(
        "block",
        [
            {"type": "document", "source": {"type": "base64", "media_type": "application/zip", "data": ""}},
            {"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": "***"}},
            {"type": "image", "source": {"type": "satellite"}},
        ],
    )
    def test_what_has_no_counterpart_is_refused_by_place(self, block: dict[str, Any]) -> None:
        with pytest.raises(ConversionError) as caught:
            items(block)
        assert caught.value.param == "messages[0].content[0]"

    def test_tool_use_becomes_a_call_with_the_same_id_in_order(self) -> None:
        calls = items(
            {"type": "text", "text": "let me"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            {"type": "tool_use", "id": "t2", "name": "g", "input": {"_raw": "{broken"}},
            role="assistant",
        )
        assert [item["type"] for item in calls] == ["message", "function_call", "function_call"]
        assert (calls[1]["id"], calls[1]["call_id"], calls[1]["arguments"]) == ("t1", "t1", '{"a":1}')
        assert calls[2]["arguments"] == "{broken"

    @pytest.mark.parametrize(
        ("content", "output"),
        [
            ("x", "x"),
            (None, ""),
            ([], ""),
            ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ],
    )
    def test_a_tool_result_of_text_is_a_string(self, content: Any, output: str) -> None:
        (item,) = items({"type": "tool_result", "tool_use_id": "t", "content": content})
        assert item == {"type": "function_call_output", "call_id": "t", "output": output}

    def test_a_tool_result_with_an_image_is_a_list(self) -> None:
        image = {"type": "image", "source": {"type": "url", "url": "u"}}
        (item,) = items({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "a"}, image]})
        assert [part["type"] for part in item["output"]] == ["input_text", "input_image"]

    def test_a_failed_tool_stays_visible_as_failed(self) -> None:
        (item,) = items({"type": "tool_result", "tool_use_id": "t", "content": "boom", "is_error": True})
        assert item["output"] == "[tool error] boom"

    def test_thinking_keeps_text_and_signature(self) -> None:
        (item,) = items({"type": "thinking", "thinking": "hm", "signature": "sig"}, role="assistant")
        assert item["summary"] == [{"type": "summary_text", "text": "hm"}]
        assert item["encrypted_content"] == "sig"

    def test_redacted_thinking_is_marked(self) -> None:
        (item,) = items({"type": "redacted_thinking", "data": "zzz"}, role="assistant")
        assert item["summary"] == []
        assert item["encrypted_content"].endswith("zzz")

    def test_server_tool_blocks_are_dropped_with_a_note(self) -> None:
        content = [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
            {"type": "text", "text": "x"},
        ]
        converted, notes = to_responses([{"role": "assistant", "content": content}])
        assert len(converted["input"]) == 1
        assert notes == [
            "messages[0].content[0] of type `server_tool_use` dropped",
            "messages[0].content[1] of type `web_search_tool_result` dropped",
        ]

    def test_tools_become_functions_and_server_tools_are_dropped(self) -> None:
        converted, notes = to_responses(
            tools=[
                {"name": "f", "description": "d", "input_schema": {"type": "object"}},
                {"name": "g"},
                {"type": "web_search_20250305", "name": "web_search"},
            ]
        )
        assert converted["tools"] == [
            {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": False},
            {"type": "function", "name": "g", "parameters": {"type": "object", "properties": {}}, "strict": False},
        ]
        assert notes == ["tools[2] of type `web_search_20250305` dropped: only the provider can run it"]

    @pytest.mark.parametrize(
        ("choice", "converted"),
        [
            ({"type": "auto"}, "auto"),
            ({"type": "none"}, "none"),
            ({"type": "any"}, "required"),
            ({"type": "tool", "name": "f"}, {"type": "function", "name": "f"}),
        ],
    )
    def test_tool_choice(self, choice: dict[str, Any], converted: Any) -> None:
        body, _ = to_responses(tools=[{"name": "f"}], tool_choice=choice)
        assert body["tool_choice"] == converted
        assert "parallel_tool_calls" not in body

    def test_parallel_use_can_be_switched_off(self) -> None:
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        assert to_responses(tools=[{"name": "f"}], tool_choice=choice)[0]["parallel_tool_calls"] is False

    @pytest.mark.parametrize(
        ("settings", "effort"),
        [
            ({"output_config": {"effort": "max"}}, "max"),
            ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
            ({"thinking": {"type": "enabled", "budget_tokens": 10000}}, "medium"),
            ({"thinking": {"type": "enabled", "budget_tokens": 60000}}, "high"),
        ],
    )
    def test_thinking_becomes_effort(self, settings: dict[str, Any], effort: str) -> None:
        assert to_responses(**settings)[0]["reasoning"] == {"effort": effort}

    def test_stop_sequences_travel_to_chat_backends(self) -> None:
        assert extra_body_of(to_responses(stop_sequences=["END"])[0]["metadata"]) == {"stop": ["END"]}

    def test_what_has_no_place_is_named(self) -> None:
        cached = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
        _, notes = to_responses(
            [{"role": "user", "content": [cached]}],
            top_k=3,
            metadata={"user_id": "u"},
            service_tier="auto",
            context_management={},
        )
        assert notes == [
            "`top_k` dropped",
            "`metadata` dropped",
            "`service_tier` dropped",
            "`context_management` dropped",
            "`cache_control` dropped",
        ]

    def test_the_request_is_left_as_it_was(self) -> None:
        body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "stop_sequences": ["a"]}
        before = repr(body)
        messages_request_to_responses(body)
        assert repr(body) == before

    @pytest.mark.parametrize("message", ["x", {"role": "tool", "content": "x"}, {"role": "user", "content": ["x"]}])
    def test_a_message_that_is_none_is_refused(self, message: Any) -> None:
        with pytest.raises(ConversionError):
            messages_request_to_responses({"messages": [message]})


class TestToMessages:
    def test_instructions_and_leading_system_messages_become_the_system(self) -> None:
        given = [
            {"role": "developer", "content": [{"type": "input_text", "text": "b"}]},
            {"role": "user", "content": "q"},
            {"role": "system", "content": "late"},
        ]
        body, notes = to_messages(given, instructions="a")
        assert body["system"] == "a\n\nb"
        assert [block["text"] for block in body["messages"][0]["content"]] == ["q", "late"]
        assert notes == ["input[2]: system message in the middle sent as the user's"]

    def test_a_string_is_the_user(self) -> None:
        assert to_messages("q")[0]["messages"] == [{"role": "user", "content": [{"type": "text", "text": "q"}]}]

    def test_a_missing_limit_is_set_and_noted(self) -> None:
        body, notes = responses_request_to_messages({"input": "q"})
        assert body["max_tokens"] == 8192
        assert "`max_tokens` set to 8192" in notes[0]

    def test_calls_and_answers_alternate_roles(self) -> None:
        body, _ = to_messages(
            [
                {"role": "user", "content": "q"},
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
                {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "text"},
                {"type": "function_call_output", "call_id": "c1", "output": "[tool error] no"},
                {"type": "custom_tool_call_output", "call_id": "c2", "output": "fine"},
            ]
        )
        assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
        assert body["messages"][1]["content"] == [
            {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
            {"type": "tool_use", "id": "c2", "name": "g", "input": {"input": "text"}},
        ]
        assert body["messages"][2]["content"] == [
            {"type": "tool_result", "tool_use_id": "c1", "content": "no", "is_error": True},
            {"type": "tool_result", "tool_use_id": "c2", "content": "fine"},
        ]

    def test_files_and_images(self) -> None:
        parts = [
            {"type": "input_image", "image_url": "data:image/png;base64,QQ=="},
            {"type": "input_image", "image_url": "https://x"},
            {"type": "input_image", "file_id": "f"},
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QQ=="},
            {"type": "input_file", "file_url": "https://x"},
        ]
        body, _ = to_messages([{"role": "user", "content": parts}])
        assert [block["source"]["type"] for block in body["messages"][0]["content"]] == [
            "base64",
            "url",
            "file",
            "base64",
            "url",
        ]

    @pytest.mark.parametrize("kind", ["input_audio", "input_video"])
    def test_audio_and_video_are_refused(self, kind: str) -> None:
        with pytest.raises(ConversionError, match=kind):
            to_messages([{"role": "user", "content": [{"type": kind}]}])

    @pytest.mark.parametrize("name", ["previous_response_id", "conversation", "prompt", "background"])
    def test_stored_conversations_are_refused(self, name: str) -> None:
        with pytest.raises(ConversionError, match=name):
            to_messages("q", **{name: "x"})

    def test_reasoning_without_a_signature_is_dropped(self) -> None:
        item = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]}
        body, notes = to_messages([item])
        assert body["messages"] == []
        assert notes == ["input[0]: reasoning without a signature dropped"]

    def test_tools_are_flattened_and_hosted_ones_dropped(self) -> None:
        function = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
        body, notes = to_messages(
            "q",
            tools=[
                function,
                {"type": "custom", "name": "g"},
                {"type": "namespace", "name": "n", "tools": [function]},
                {"type": "web_search"},
            ],
            tool_choice="required",
            parallel_tool_calls=False,
        )
        assert [tool["name"] for tool in body["tools"]] == ["f", "g", "n__f"]
        assert body["tools"][1]["input_schema"]["required"] == ["input"]
        assert body["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
        assert notes == ["tool of type `web_search` dropped: the backend does not run it"]

    def test_allowed_tools_leave_only_those(self) -> None:
        tools = [{"type": "function", "name": name, "parameters": None, "strict": None} for name in "fg"]
        choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
        body, _ = to_messages("q", tools=tools, tool_choice=choice)
        assert [tool["name"] for tool in body["tools"]] == ["g"]
        assert body["tool_choice"] == {"type": "any"}

    def test_effort_becomes_thinking_within_the_limit(self) -> None:
        body, notes = to_messages("q", reasoning={"effort": "high"}, temperature=0.3)
        assert body["thinking"] == {"type": "enabled", "budget_tokens": 16384}
        assert "temperature" not in body
        assert notes == ["`temperature` dropped: thinking excludes it"]
        small, _ = to_messages("q", reasoning={"effort": "high"}, max_output_tokens=3000)
        assert small["thinking"]["budget_tokens"] == 1976
        tiny, notes = to_messages("q", reasoning={"effort": "high"}, max_output_tokens=500)
        assert "thinking" not in tiny
        assert len(notes) == 1

    def test_stop_format_and_user(self) -> None:
        schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
        body, _ = to_messages(
            "q", metadata={"extra_body": '{"stop": "END", "top_k": 4}'}, text={"format": schema}, user="u"
        )
        assert body["stop_sequences"] == ["END"]
        assert body["top_k"] == 4
        assert body["output_config"] == {"format": {"type": "json_schema", "schema": {"type": "object"}}}
        assert body["metadata"] == {"user_id": "u"}

    def test_empty_text_is_left_out(self) -> None:
        body, _ = to_messages([{"role": "user", "content": "q"}, {"role": "assistant", "content": ""}])
        assert len(body["messages"]) == 1


@pytest.mark.parametrize(
    ("fields", "notes"),
    [
        ({"top_k": 4, "foo": 1, "speed": "fast"}, ["`top_k` dropped", "`foo` dropped", "`speed` dropped"]),
        ({"foo": None}, []),
        ({"stream": True, "stop_sequences": ["x"], "system": "s", "temperature": 1, "top_p": 1}, []),
        ({"thinking": {"type": "adaptive"}}, ["`thinking` adaptive: left to the model's default"]),
        ({"thinking": {"type": "disabled"}}, ["`thinking` disabled: left to the model's default"]),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 2048}, "output_config": {"effort": "max"}},
            ["`thinking.budget_tokens` dropped: `output_config.effort` says how much"],
        ),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "any"}},
            [
                "tools[0] of type `web_search_20250305` dropped: only the provider can run it",
                "`tool_choice` dropped: all tools were dropped",
            ],
        ),
    ],
)
def test_every_field_that_is_not_carried_is_noted(fields: dict[str, Any], notes: list[str]) -> None:
    body, said = messages_request_to_responses({"model": "m", "max_tokens": 5, "messages": [], **fields})
    assert said == notes
    assert "tool_choice" not in body


@pytest.mark.parametrize("inside_result", [False, True])
def test_what_a_document_says_beside_its_content_is_noted(inside_result: bool) -> None:
    text = {"type": "document", "title": "T", "context": "C", "source": {"type": "text", "data": "x"}}
    pdf = {"type": "document", "title": "T", "source": {"type": "base64", "media_type": "application/pdf", "data": "x"}}
    found = {"type": "search_result", "title": "T", "source": "s", "content": [], "citations": {"enabled": True}}
    blocks = [text, pdf, found]
    where = "messages[0].content"
    if inside_result:
        blocks, where = (
            [{"type": "tool_result", "tool_use_id": "t", "content": blocks}],
            "messages[0].content[0].content",
        )
    _, notes = messages_request_to_responses({"messages": [{"role": "user", "content": blocks}]})
    assert notes == [
        f"{where}[0]: `context` dropped",
        f"{where}[0]: `title` dropped",
        f"{where}[2]: `citations` dropped",
    ]


def test_what_a_tool_says_beyond_the_other_dialects_is_noted_once() -> None:
    tool = {"name": "f", "input_schema": {}, "defer_loading": True, "input_examples": [{}], "cache_control": None}
    tools = [tool, {**tool, "type": "custom", "name": "g"}, {"type": "bash_20250124", "name": "bash", "timeout": 1}]
    body, notes = messages_request_to_responses({"messages": [], "tools": tools})
    assert notes[:2] == ["`defer_loading` of tools dropped", "`input_examples` of tools dropped"]
    assert len(notes) == 4, "the hosted tool, and the mark for the cache"
    assert [set(tool) for tool in body["tools"]] == [{"type", "name", "parameters", "strict"}] * 2

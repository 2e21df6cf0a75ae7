"""Chat Completions chunks: every row of the table of section 3.2."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from .conftest import Feed


def delta(value: Any, **choice: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": value, **choice}]}


def calls(*entries: dict[str, Any]) -> dict[str, Any]:
    return delta({"tool_calls": list(entries)})


def message_of(feed: Feed, *events: Any) -> dict[str, Any]:
    response = feed("chat", *events, "[DONE]").response
    assert response is not None
    message: dict[str, Any] = response["choices"][0]["message"]
    return message


def call_list(feed: Feed, *events: Any) -> list[tuple[str | None, str | None, str]]:
    found = message_of(feed, *events)["tool_calls"]
    return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in found]


def test_identity_takes_the_last_non_empty_and_created_the_first_that_is_not_zero(feed: Feed) -> None:
    result = feed(
        "chat",
        {"id": "", "created": 0, "model": "a", "choices": [{"index": 0, "delta": {"content": "x"}}]},
        {"id": "i", "created": 5, "model": "", "choices": []},
        {"id": "j", "created": 9, "model": "b", "object": "chat.completion.chunk", "obfuscation": "zzz"},
    )
    assert result.response is not None
    assert {key: result.response[key] for key in ("id", "created", "model", "object")} == {
        "id": "j",
        "created": 5,
        "model": "b",
        "object": "chat.completion",
    }
    assert "obfuscation" not in result.response


def test_usage_is_cumulative_and_nulls_do_not_overwrite(feed: Feed) -> None:
    result = feed(
        "chat",
        {**delta({"content": "x"}), "usage": {"prompt_tokens": 5, "completion_tokens": 1, "d": {"cached_tokens": 3}}},
        {"usage": {"prompt_tokens": None, "completion_tokens": 2, "d": {"cached_tokens": None}}, "choices": None},
        {"choices": [], "usage": None},
    )
    assert result.response is not None
    assert result.response["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "d": {"cached_tokens": 3}}


def test_groq_usage_counts_when_the_usual_one_never_came(feed: Feed) -> None:
    result = feed(
        "chat", delta({"content": "x"}), {"choices": [], "x_groq": {"id": "r", "usage": {"prompt_tokens": 1}}}
    )
    assert result.response is not None
    assert result.response["usage"] == {"prompt_tokens": 1}
    assert result.response["x_groq"]["id"] == "r"


def test_choices_without_index_are_kept_by_position(feed: Feed) -> None:
    event = {"choices": [{"delta": {"content": "a"}}, {"index": None, "delta": {"content": "b"}}, "junk"]}
    result = feed("chat", event, event)
    assert result.response is not None
    assert [choice["message"]["content"] for choice in result.response["choices"]] == ["aa", "bb"]
    assert result.problem_counts == {"choice_not_object": 2}


def test_no_text_at_all_is_null_and_empty_side_texts_are_absent(feed: Feed) -> None:
    message = message_of(feed, delta({"role": "assistant", "content": "", "refusal": "", "reasoning": ""}))
    assert message == {"role": "assistant", "content": None}


def test_list_content_merges_consecutive_parts_of_one_type(feed: Feed) -> None:
    def thinking(text: str) -> dict[str, Any]:
        return delta({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]})

    message = message_of(feed, thinking("a"), thinking("b"), delta({"content": "x"}), delta({"content": "y"}))
    assert message["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "ab"}]},
        {"type": "text", "text": "xy"},
    ]


def test_text_before_list_content_becomes_a_part_and_images_stay_apart(feed: Feed) -> None:
    image = {"type": "image_url", "image_url": {"url": "u"}}
    message = message_of(feed, delta({"content": "a"}), delta({"content": [image]}), delta({"content": [image]}))
    assert message["content"] == [{"type": "text", "text": "a"}, image, image]


def test_reasoning_keys_are_two_buffers(feed: Feed) -> None:
    message = message_of(
        feed, delta({"reasoning": "a", "reasoning_content": "1"}), delta({"reasoning": "b"}), delta({"content": "x"})
    )
    assert (message["reasoning"], message["reasoning_content"]) == ("ab", "1")


def test_reasoning_details_match_by_type_and_index(feed: Feed) -> None:
    message = message_of(
        feed,
        delta({"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "a", "signature": None}]}),
        delta({"reasoning_details": [{"type": "reasoning.encrypted", "index": 0, "data": "E"}]}),
        delta({"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "b", "signature": "s"}]}),
        delta({"reasoning_details": [{"type": "reasoning.text", "index": 1, "text": "c"}]}),
    )
    assert message["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 0, "data": "E"},
        {"type": "reasoning.text", "index": 1, "text": "c"},
    ]


def test_audio_data_is_joined_as_bytes(feed: Feed) -> None:
    pieces = [b"a", b"bc", b"defg"]
    events = [delta({"audio": {"data": base64.b64encode(piece).decode()}}) for piece in pieces]
    assert base64.b64decode(message_of(feed, *events)["audio"]["data"]) == b"abcdefg"
    assert message_of(feed, delta({"audio": {"data": "??"}}), delta({"audio": {"data": "!"}}))["audio"]["data"] == "??!"


def test_unknown_keys_follow_the_generic_merge(feed: Feed) -> None:
    message = message_of(
        feed,
        delta({"annotations": [1], "x": "a", "y": {"id": "1", "t": "p"}, "obfuscation": "zz"}),
        delta({"annotations": [2], "x": "b", "y": {"id": "2", "t": "q"}, "z": None}),
    )
    assert message == {
        "role": "assistant",
        "content": None,
        "annotations": [1, 2],
        "x": "ab",
        "y": {"id": "2", "t": "pq"},
    }


def test_choice_keys_lists_extend_others_take_the_last(feed: Feed) -> None:
    result = feed(
        "chat",
        delta({"content": "x"}, token_ids=[1], stop_reason="a", logprobs={"content": [1], "refusal": None}),
        delta({}, token_ids=[2], stop_reason="b", finish_reason="", logprobs=None),
        delta({}, finish_reason="length", stop_reason=None, logprobs={"content": [2], "refusal": None}),
    )
    assert result.response is not None
    choice = result.response["choices"][0]
    assert (choice["token_ids"], choice["stop_reason"], choice["finish_reason"]) == ([1, 2], "b", "length")
    assert choice["logprobs"] == {"content": [1, 2]}
    assert result.terminal == "clean_eof"


def test_logprobs_that_are_all_null_are_omitted(feed: Feed) -> None:
    result = feed("chat", delta({"content": "x"}, logprobs={"content": None, "refusal": None}))
    assert result.response is not None
    assert "logprobs" not in result.response["choices"][0]


def test_a_message_replaces_and_later_deltas_continue_it(feed: Feed) -> None:
    whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}]}
    assert message_of(feed, delta({"content": "x"}), whole, delta({})) == {"role": "assistant", "content": "whole"}
    assert message_of(feed, whole, delta({"content": "!"}))["content"] == "whole!"


class TestToolCalls:
    def test_one_name_per_index_and_pieces_in_turn(self, feed: Feed) -> None:
        assert call_list(
            feed,
            calls({"index": 1, "id": "b", "function": {"name": "g", "arguments": "{"}}),
            calls({"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}),
            calls(
                {"index": 1, "id": "", "function": {"arguments": "}"}}, {"index": 0, "function": {"arguments": "[]"}}
            ),
        ) == [("b", "g", "{}"), ("a", "f", "[]")]

    def test_another_id_without_a_name_continues(self, feed: Feed) -> None:
        assert call_list(
            feed,
            calls({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}),
            calls({"index": 0, "id": "b", "function": {"arguments": "}"}}),
        ) == [("b", "f", "{}")]

    def test_every_call_with_index_zero(self, feed: Feed) -> None:
        events = [calls({"index": 0, "id": name, "function": {"name": name, "arguments": "{}"}}) for name in "abc"]
        assert call_list(feed, *events) == [(name, name, "{}") for name in "abc"]

    @pytest.mark.parametrize(("first", "calls_expected"), [("{}", 2), ("", 1), ('{"a', 1)])
    def test_an_id_that_comes_late_belongs_to_a_call_whose_arguments_are_open(
        self, feed: Feed, first: str, calls_expected: int
    ) -> None:
        found = call_list(
            feed,
            calls({"index": 0, "function": {"name": "f", "arguments": first}}),
            calls({"index": 0, "id": "late", "function": {"name": "f", "arguments": "{}"}}),
        )
        assert [call[0] for call in found] == [None, "late"][-calls_expected:]

    def test_without_index_the_id_finds_the_call(self, feed: Feed) -> None:
        assert call_list(
            feed,
            calls({"id": "a", "function": {"name": "f", "arguments": "{"}}),
            calls({"id": "b", "index": None, "function": {"name": "g", "arguments": "["}}),
            calls({"id": "a", "function": {"arguments": "}"}}),
            calls({"id": "b", "function": {"arguments": "]"}}),
        ) == [("a", "f", "{}"), ("b", "g", "[]")]

    def test_without_index_and_id_a_name_after_complete_arguments_is_a_new_call(self, feed: Feed) -> None:
        assert call_list(
            feed,
            calls({"function": {"name": "f", "arguments": '{"a": "}'}}),
            calls({"function": {"arguments": '\\"{"'}}),
            calls({"function": {"arguments": "}"}}),
            calls({"function": {"name": "g", "arguments": "{}"}}),
            calls({"function": {"name": "h"}}, {"function": {"name": "i"}}),
        ) == [(None, "f", '{"a": "}\\"{"}'), (None, "g", "{}"), (None, "h", ""), (None, "i", "")]

    def test_a_null_index_beside_an_integer_harms_nothing(self, feed: Feed) -> None:
        assert call_list(
            feed,
            calls({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}),
            calls({"index": None, "function": {"arguments": "}"}}),
        ) == [("a", "f", "{}")]

    def test_a_name_in_pieces_grows_until_arguments_come(self, feed: Feed) -> None:
        assert call_list(
            feed,
            calls({"index": 0, "id": "a", "function": {"name": "get_"}}),
            calls({"index": 0, "function": {"name": "time"}}),
            calls({"index": 0, "function": {"name": "get_time", "arguments": "{"}}),
            calls({"index": 0, "function": {"name": "other", "arguments": "}"}}),
        ) == [("a", "get_time", "{}")]

    def test_object_arguments_are_dumped_compactly(self, feed: Feed) -> None:
        assert call_list(feed, calls({"id": "a", "function": {"name": "f", "arguments": {"x": ["é"]}}})) == [
            ("a", "f", '{"x":["é"]}')
        ]

    def test_custom_calls_and_provider_keys_are_kept(self, feed: Feed) -> None:
        message = message_of(
            feed,
            calls({"index": 0, "id": "a", "type": "custom", "custom": {"name": "sh", "input": "ls "}}),
            calls({"index": 0, "custom": {"input": "-l"}, "extra_content": {"google": {"thought_signature": "S"}}}),
        )
        assert message["tool_calls"] == [
            {
                "id": "a",
                "type": "custom",
                "custom": {"name": "sh", "input": "ls -l"},
                "extra_content": {"google": {"thought_signature": "S"}},
            }
        ]

    def test_legacy_function_calls_are_joined(self, feed: Feed) -> None:
        message = message_of(
            feed,
            delta({"function_call": {"name": "ge", "arguments": ""}}),
            delta({"function_call": {"name": "t", "arguments": "{"}}),
            delta({"function_call": {"arguments": "}"}}),
        )
        assert message["function_call"] == {"name": "get", "arguments": "{}"}

    def test_unparsable_arguments_are_a_problem_and_kept(self, feed: Feed) -> None:
        result = feed("chat", calls({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}), "[DONE]")
        assert result.problems == ["args_unparsable"]


class TestEnds:
    @pytest.mark.parametrize(
        ("event", "error", "category"),
        [
            ({"error": {"message": "m", "code": 504}}, {"message": "m", "code": 504}, "timeout"),
            ({"error": "boom"}, {"message": "boom"}, "upstream_error"),
            ({"error": {}}, {}, "upstream_error"),
            ({"error": ""}, {"message": ""}, "upstream_error"),
            ({"error": False}, {"message": "False"}, "upstream_error"),
            (
                {"object": "error", "message": "m", "code": 429},
                {"object": "error", "message": "m", "code": 429},
                "rate_limit",
            ),
            (b'error: {"code":401,"message":"m"}\n\n', {"code": 401, "message": "m"}, "auth"),
            (b"error: no json\n\n", {"message": "no json"}, "upstream_error"),
            (
                b'event: error\ndata: {"message":"m","type":"overloaded"}\n\n',
                {"message": "m", "type": "overloaded"},
                "overloaded",
            ),
            (b"event: error\ndata: Bad gateway\n\n", {"message": "Bad gateway"}, "upstream_error"),
            (
                b'data: {"type":"error","error":{"code":"content_filter"}}\n\n',
                {"code": "content_filter"},
                "content_filter",
            ),
        ],
    )
    def test_errors_end_the_stream_and_keep_what_came(self, feed: Feed, event: Any, error: Any, category: str) -> None:
        result = feed("chat", delta({"content": "x"}), event, "[DONE]")
        assert (result.terminal, result.stream_error, result.error_category) == ("error", error, category)
        assert result.response is not None
        assert result.response["choices"][0]["message"]["content"] == "x"

    def test_openrouter_error_chunks_keep_their_choice(self, feed: Feed) -> None:
        error = {"code": 502, "message": "m", "metadata": {"error_type": "provider_overloaded"}}
        result = feed("chat", {**delta({"content": "x"}, finish_reason="error"), "error": error}, "[DONE]")
        assert (result.terminal, result.stream_error, result.error_category) == ("error", error, "overloaded")
        assert result.response is not None
        assert result.response["choices"][0]["finish_reason"] == "error"
        assert "error" not in result.response

    def test_a_finish_reason_error_is_an_error(self, feed: Feed) -> None:
        result = feed("chat", delta({"content": "x"}, finish_reason="error"), "[DONE]")
        assert (result.terminal, result.error_category) == ("error", "upstream_error")

    def test_an_error_that_comes_after_a_finish_reason_error_says_what_it_was(self, feed: Feed) -> None:
        error = {"code": 429, "message": "m"}
        result = feed("chat", delta({"content": "x"}, finish_reason="error"), {"error": error}, "[DONE]")
        assert (result.terminal, result.stream_error, result.error_category) == ("error", error, "rate_limit")

    @pytest.mark.parametrize("wrap", [lambda error: {"error": error}, lambda error: {"object": "error", **error}])
    def test_of_two_errors_the_first_is_kept_with_its_category(self, feed: Feed, wrap: Any) -> None:
        first, second = {"code": 429, "message": "m"}, {"code": 504, "message": "n"}
        result = feed("chat", delta({"content": "x"}), wrap(first), wrap(second), "[DONE]")
        assert (result.stream_error, result.error_category) == (wrap(first).get("error", wrap(first)), "rate_limit")

    def test_a_null_error_is_none(self, feed: Feed) -> None:
        assert feed("chat", {**delta({"content": "x"}), "error": None}, "[DONE]").terminal == "complete"

    def test_without_any_choice_there_is_no_response(self, feed: Feed) -> None:
        result = feed("chat", {"choices": [], "usage": {"prompt_tokens": 1}}, "[DONE]")
        assert (result.response, result.error_category) == (None, "capture_parse_error")

    def test_a_clean_end_needs_every_finish_reason(self, feed: Feed) -> None:
        both = {"choices": [{"index": 0, "finish_reason": "stop"}, {"index": 1, "delta": {"content": "x"}}]}
        assert feed("chat", both).error_category == "stream_truncated"

    def test_an_empty_body_is_truncated(self, feed: Feed) -> None:
        assert feed("chat").error_category == "stream_truncated"


class TestFirsts:
    def test_comments_and_role_chunks_are_no_content(self, feed: Feed) -> None:
        from nemo_gym.dialects import make_accumulator

        accumulator = make_accumulator("chat")
        accumulator.feed(b": keep-alive\n\n")
        assert (accumulator.first_event_seen, accumulator.first_content_seen) == (False, False)
        accumulator.feed(b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n')
        assert (accumulator.first_event_seen, accumulator.first_content_seen) == (True, False)
        accumulator.feed(b'data: {"choices":[{"index":0,"delta":{"reasoning":"x"}}]}\n\n')
        assert accumulator.first_content_seen

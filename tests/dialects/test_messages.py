"""Anthropic Messages events: every row of the table of section 3.3."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Feed

START = {
    "type": "message_start",
    "message": {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "c",
        "content": [],
        "stop_reason": None,
        "container": {"id": "k"},
        "usage": {"input_tokens": 5, "output_tokens": 1, "cache_creation": {"ephemeral_5m_input_tokens": 2}},
    },
}
STOP = {"type": "message_stop"}


def start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int | None, kind: str, **keys: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **keys}}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def end(reason: str | None = "end_turn", **usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}


def blocks(feed: Feed, *events: Any) -> list[dict[str, Any]]:
    response = feed("messages", START, *events, end(), STOP).response
    assert response is not None
    content: list[dict[str, Any]] = response["content"]
    return content


def test_the_whole_start_is_copied_and_usage_is_cumulative(feed: Feed) -> None:
    usage = {"output_tokens": 9, "input_tokens": None, "cache_creation": {"ephemeral_5m_input_tokens": None, "x": 1}}
    result = feed("messages", START, end(**usage), STOP)
    assert result.response is not None
    assert result.response["container"] == {"id": "k"}
    assert result.response["usage"] == {
        "input_tokens": 5,
        "output_tokens": 9,
        "cache_creation": {"ephemeral_5m_input_tokens": 2, "x": 1},
    }


def test_signature_and_thinking_are_joined(feed: Feed) -> None:
    found = blocks(
        feed,
        start(0, type="thinking", thinking=""),
        delta(0, "thinking_delta", thinking="a"),
        delta(0, "thinking_delta", thinking="b"),
        delta(0, "signature_delta", signature="S"),
        delta(0, "signature_delta", signature="T"),
    )
    assert found == [{"type": "thinking", "thinking": "ab", "signature": "ST"}]


def test_citations_append_to_null(feed: Feed) -> None:
    found = blocks(
        feed,
        start(0, type="text", text="", citations=None),
        delta(0, "citations_delta", citation={"n": 1}),
        delta(0, "text_delta", text="x"),
        delta(0, "citations_delta", citation={"n": 2}),
    )
    assert found == [{"type": "text", "text": "x", "citations": [{"n": 1}, {"n": 2}]}]


@pytest.mark.parametrize("kind", ["tool_use", "server_tool_use", "mcp_tool_use"])
def test_streamed_input_of_any_block_is_parsed_and_overrides_the_start(feed: Feed, kind: str) -> None:
    found = blocks(
        feed,
        start(0, type=kind, id="t", input={"old": 1}),
        delta(0, "input_json_delta", partial_json=""),
        delta(0, "input_json_delta", partial_json='{"a":'),
        delta(0, "input_json_delta", partial_json="1}"),
        stop(0),
    )
    assert found[0]["input"] == {"a": 1}


def test_an_empty_buffer_leaves_the_start_input(feed: Feed) -> None:
    assert blocks(
        feed, start(0, type="tool_use", input={"a": 1}), delta(0, "input_json_delta", partial_json=""), stop(0)
    ) == [{"type": "tool_use", "input": {"a": 1}}]


def test_input_cut_by_the_end_of_the_body_is_kept_raw(feed: Feed) -> None:
    result = feed(
        "messages", START, start(0, type="tool_use", input={}), delta(0, "input_json_delta", partial_json='{"a')
    )
    assert result.response is not None
    assert result.response["content"][0]["input"] == {"_raw": '{"a'}
    assert (result.error_category, result.problems) == ("stream_truncated", ["args_unparsable"])


def test_unknown_deltas_merge_and_are_counted_but_compaction_is_known(feed: Feed) -> None:
    result = feed(
        "messages",
        START,
        start(0, type="compaction", content=None),
        delta(0, "compaction_delta", content="a"),
        delta(0, "compaction_delta", content="b"),
        delta(0, "odd_delta", list=[1]),
        delta(0, "odd_delta", list=[2]),
        STOP,
    )
    assert result.response is not None
    assert result.response["content"] == [{"type": "compaction", "content": "ab", "list": [1, 2]}]
    assert result.unknown_events == 2


def test_deltas_without_a_start_make_their_block(feed: Feed) -> None:
    result = feed(
        "messages",
        delta(2, "text_delta", text="t"),
        delta(0, "signature_delta", signature="s"),
        delta(1, "input_json_delta", partial_json="{}"),
        stop(1),
        end(),
        STOP,
    )
    assert result.response == {
        "type": "message",
        "role": "assistant",
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "content": [
            {"type": "thinking", "signature": "s"},
            {"type": "tool_use", "input": {}},
            {"type": "text", "text": "t"},
        ],
    }
    assert result.problem_counts == {"message_start_missing": 1, "block_start_missing": 3}


def test_blocks_that_share_an_index_are_kept_apart(feed: Feed) -> None:
    result = feed(
        "messages",
        START,
        start(0, type="text", text=""),
        delta(0, "text_delta", text="a"),
        stop(0),
        start(0, type="text", text=""),
        delta(0, "text_delta", text="b"),
        STOP,
    )
    assert result.response is not None
    assert [block["text"] for block in result.response["content"]] == ["a", "b"]
    assert result.problems == ["index_reused"]


def test_message_delta_copies_every_key(feed: Feed) -> None:
    event = {
        "type": "message_delta",
        "delta": {"stop_reason": "refusal", "stop_details": {"c": 1}, "container": None},
        "context_management": {"applied_edits": []},
    }
    result = feed("messages", START, event, STOP)
    assert result.response is not None
    assert result.response["stop_details"] == {"c": 1}
    assert result.response["context_management"] == {"applied_edits": []}
    assert result.response["container"] == {"id": "k"}


@pytest.mark.parametrize(
    ("events", "terminal", "category"),
    [
        ([end(), STOP], "complete", None),
        ([end(), STOP, "[DONE]"], "complete", None),
        ([end()], "clean_eof", None),
        ([end(), "[DONE]"], "clean_eof", None),
        ([end(None)], None, "stream_truncated"),
        (["[DONE]"], None, "stream_truncated"),
        ([b"event: message_stop\ndata: {}\n\n"], "complete", None),
        ([b"event: message_stop\n\n"], "complete", None),
        ([{"type": "error", "error": {"type": "rate_limit_error"}}], "error", "rate_limit"),
        ([{"type": "error", "error": {"type": "timeout_error"}}], "error", "timeout"),
        ([{"error": {"type": "api_error", "message": "m"}}], "error", "upstream_error"),
        ([b'event: error\ndata: {"type":"overloaded_error"}\n\n'], "error", "overloaded"),
        ([{"type": "error", "error": {"type": "overloaded_error"}}, end(), STOP], "error", "overloaded"),
        ([{"error": {"type": "api_error"}}, STOP, "[DONE]"], "error", "upstream_error"),
        ([end(), STOP, {"type": "error", "error": {"type": "overloaded_error"}}], "error", "overloaded"),
    ],
)
def test_ends(feed: Feed, events: list[Any], terminal: str | None, category: str | None) -> None:
    result = feed("messages", START, start(0, type="text", text="x"), *events)
    assert (result.terminal, result.error_category) == (terminal, category)
    assert result.response is not None
    assert result.response["content"] == [{"type": "text", "text": "x"}]


def test_usage_that_is_no_object_is_a_problem(feed: Feed) -> None:
    result = feed("messages", START, {**end(), "usage": [7]}, STOP)
    assert (result.terminal, result.problems) == ("complete", ["usage_not_object"])


def test_ping_is_ignored_and_is_no_content(feed: Feed) -> None:
    result = feed("messages", {"type": "ping"}, START)
    assert (result.unknown_events, result.first_event_seen, result.first_content_seen) == (0, True, False)

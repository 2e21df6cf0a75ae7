"""Responses events: every row of the table of section 3.4. Streams are cut before the end, so that deltas count."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from .conftest import Feed

BASE = {"id": "r", "object": "response", "status": "in_progress", "output": []}
CREATED = {"type": "response.created", "response": BASE}


def event(kind: str, index: int | None = 0, **keys: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "output_index": index, **keys}


def added(index: int | None = 0, **item: Any) -> dict[str, Any]:
    return event("output_item.added", index, item=item)


def items(feed: Feed, *events: Any) -> list[dict[str, Any]]:
    response = feed("responses", CREATED, *events).response
    assert response is not None
    assert response["status"] == "in_progress"
    output: list[dict[str, Any]] = response["output"]
    return output


def test_text_logprobs_and_annotations(feed: Feed) -> None:
    found = items(
        feed,
        added(type="message", id="m", content=[]),
        event("content_part.added", content_index=0, part={"type": "output_text", "text": "", "annotations": []}),
        event("output_text.delta", content_index=0, delta="a", logprobs=[1], obfuscation="zz"),
        event("output_text.delta", content_index=0, delta="b", logprobs=[2]),
        event("output_text.annotation.added", content_index=0, annotation_index=0, annotation={"n": 1}),
        event("output_text.annotation.added", content_index=0, annotation_index=7, annotation={"n": 2}),
        event("output_text.annotation.added", content_index=0, annotation_index=0, annotation={"n": 3}),
        event("refusal.delta", content_index=1, delta="no"),
        event("refusal.done", content_index=1, refusal="no!"),
    )
    text = {"type": "output_text", "text": "ab", "annotations": [{"n": 3}, {"n": 2}], "logprobs": [1, 2]}
    assert found == [{"type": "message", "id": "m", "content": [text, {"type": "refusal", "refusal": "no!"}]}]


def test_done_is_authoritative(feed: Feed) -> None:
    assert items(
        feed,
        added(type="message", content=[]),
        event("output_text.delta", content_index=0, delta="x"),
        event("output_text.done", content_index=0, text="y", logprobs=[]),
    ) == [{"type": "message", "content": [{"type": "output_text", "text": "y"}]}]
    assert items(
        feed,
        added(type="message", id="a", content=[]),
        event("output_text.delta", content_index=0, delta="x"),
        event("output_item.done", item={"type": "message", "id": "b", "content": []}),
    ) == [{"type": "message", "id": "b", "content": []}]


@pytest.mark.parametrize(
    ("family", "key", "kind"),
    [
        ("function_call_arguments", "arguments", "function_call"),
        ("mcp_call_arguments", "arguments", "mcp_call"),
        ("custom_tool_call_input", "input", "custom_tool_call"),
        ("code_interpreter_call_code", "code", "code_interpreter_call"),
    ],
)
def test_item_texts_append_and_are_set_by_done(feed: Feed, family: str, key: str, kind: str) -> None:
    started = added(type=kind, id="i", **{key: ""})
    deltas = [event(f"{family}.delta", delta="[1"), event(f"{family}.delta", delta="]")]
    assert items(feed, started, *deltas) == [{"type": kind, "id": "i", key: "[1]"}]
    done = event(f"{family}.done", name="n", **{key: "[2]"})
    assert items(feed, started, *deltas, done) == [{"type": kind, "id": "i", key: "[2]", "name": "n"}]
    assert items(feed, event(f"{family}.delta", item_id="j", delta="[]")) == [{"type": kind, "id": "j", key: "[]"}]


def test_summary_parts_by_index(feed: Feed) -> None:
    assert items(
        feed,
        added(type="reasoning", summary=[]),
        event("reasoning_summary_part.added", summary_index=0, part={"type": "summary_text", "text": ""}),
        event("reasoning_summary_text.delta", summary_index=0, delta="a"),
        event("reasoning_summary_text.delta", summary_index=1, delta="b"),
        event("reasoning_summary_text.done", summary_index=0, text="A"),
        event("reasoning_summary_part.done", summary_index=1, part={"type": "summary_text", "text": "B"}),
    ) == [{"type": "reasoning", "summary": [{"type": "summary_text", "text": t} for t in "AB"]}]


def reasoning(kind: str, index: int, **keys: Any) -> dict[str, Any]:
    return event(f"reasoning_{kind}", content_index=index, **keys)


def test_a_content_index_raised_with_each_token_is_one_text(feed: Feed) -> None:
    tokens = [reasoning("text.delta", index, delta=text) for index, text in enumerate("abc")]
    whole = [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "abc"}]}]
    assert items(feed, added(type="reasoning"), *tokens) == whole
    opened = reasoning("part.added", 0, part={"type": "reasoning_text", "text": ""})
    assert items(feed, added(type="reasoning"), opened, *tokens) == whole
    assert items(feed, added(type="reasoning"), *tokens, reasoning("text.done", 2, text="abc")) == whole


def test_reasoning_parts_that_were_opened_or_finished_stay_apart(feed: Feed) -> None:
    parts = [reasoning("part.added", index, part={"type": "reasoning_text", "text": ""}) for index in (0, 1)]
    both = [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": text} for text in "ab"]}]
    a, b = reasoning("text.delta", 0, delta="a"), reasoning("text.delta", 1, delta="b")
    assert items(feed, added(type="reasoning"), parts[0], a, parts[1], b) == both
    assert items(feed, added(type="reasoning"), a, reasoning("text.done", 0, text="a"), b) == both


def test_image_previews_leave_only_their_size(feed: Feed) -> None:
    assert items(
        feed,
        added(type="image_generation_call", id="g"),
        event("image_generation_call.generating"),
        event("image_generation_call.partial_image", partial_image_b64="A" * 400, partial_image_index=0),
        event("image_generation_call.partial_image", partial_image_b64="A" * 800, partial_image_index=1),
    ) == [
        {
            "type": "image_generation_call",
            "id": "g",
            "status": "generating",
            "partial_image_b64": "<800 base64 characters>",
        }
    ]


@pytest.mark.parametrize(
    "kind",
    [
        "web_search_call.searching",
        "file_search_call.completed",
        "code_interpreter_call.interpreting",
        "mcp_call.failed",
        "mcp_list_tools.in_progress",
        "image_generation_call.completed",
    ],
)
def test_progress_sets_the_status_of_the_item(feed: Feed, kind: str) -> None:
    family, status = kind.split(".")
    assert items(feed, added(type=family), event(kind)) == [{"type": family, "status": status}]


def test_audio_is_joined_as_bytes(feed: Feed) -> None:
    deltas = [{"type": "response.audio.delta", "delta": base64.b64encode(piece).decode()} for piece in (b"a", b"bc")]
    words = [{"type": "response.audio.transcript.delta", "delta": word} for word in ("hi ", "you")]
    response = feed("responses", CREATED, *deltas, *words).response
    assert response is not None
    assert response["audio"] == {"data": base64.b64encode(b"abc").decode(), "transcript": "hi you"}


def test_items_are_found_by_index_then_id_then_recency(feed: Feed) -> None:
    assert [
        item["arguments"]
        for item in items(
            feed,
            added(1, type="function_call", id="b", arguments=""),
            added(0, type="function_call", id="a", arguments=""),
            event("function_call_arguments.delta", 1, item_id="rotated", delta="1"),
            event("function_call_arguments.delta", None, item_id="b", delta="2"),
            event("function_call_arguments.delta", 0, delta="3"),
            event("function_call_arguments.delta", None, delta="4"),
        )
    ] == ["34", "12"]


def test_items_that_share_an_index_are_kept_apart(feed: Feed) -> None:
    result = feed(
        "responses",
        added(0, type="function_call", id="a", arguments=""),
        event("function_call_arguments.delta", 0, item_id="a", delta="1"),
        added(0, type="function_call", id="b", arguments=""),
        event("function_call_arguments.delta", 0, item_id="b", delta="2"),
        event("output_item.done", 0, item={"type": "function_call", "id": "a", "arguments": "[1]"}),
    )
    assert result.response is not None
    assert [item["arguments"] for item in result.response["output"]] == ["[1]", "2"]
    assert "index_reused" in result.problems


def terminal(kind: str, **envelope: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "response": {"id": "r", "object": "response", **envelope}}


@pytest.mark.parametrize(
    ("event_", "end", "category"),
    [
        (terminal("completed", status="completed"), "complete", None),
        (terminal("completed", status="incomplete"), "incomplete", "incomplete"),
        (terminal("completed", status="failed", error={"code": "rate_limit_exceeded"}), "error", "rate_limit"),
        (terminal("completed", status=["odd"]), "complete", None),
        (terminal("done", status="completed"), "complete", None),
        (terminal("incomplete", incomplete_details={"reason": "content_filter"}), "incomplete", "incomplete"),
        (terminal("failed", error={"code": "server_error"}), "error", "upstream_error"),
        (terminal("failed", error={"code": "invalid_prompt"}), "error", "client_error"),
        (terminal("cancelled", status="cancelled"), "error", "cancelled"),
        ({"type": "error", "code": "504", "message": "m", "param": None}, "error", "timeout"),
        ({"type": "error", "error": {"type": "overloaded_error"}}, "error", "overloaded"),
        ({"error": {"code": "context_length_exceeded"}}, "error", "context_length_exceeded"),
    ],
)
def test_ends(feed: Feed, event_: dict[str, Any], end: str, category: str | None) -> None:
    result = feed("responses", CREATED, added(type="message", content=[]), event_, "[DONE]")
    assert (result.terminal, result.error_category, result.terminal_seen) == (end, category, True)
    assert result.response is not None
    assert result.response["output"] == [{"type": "message", "content": []}]


def test_an_empty_final_output_does_not_hide_the_items(feed: Feed) -> None:
    item = {"type": "message", "content": []}
    for final in (terminal("completed", output=[], status="completed"), terminal("completed", status="completed")):
        result = feed("responses", CREATED, event("output_item.done", item=item), final)
        assert result.response is not None
        assert result.response["output"] == [item]


def test_a_terminal_event_without_an_envelope_sets_the_status(feed: Feed) -> None:
    result = feed("responses", CREATED, {"type": "response.incomplete"})
    assert result.response == {**BASE, "status": "incomplete"}
    bare = feed("responses", event("output_item.done", item={"type": "message"}), {"type": "response.completed"})
    assert bare.response == {"object": "response", "status": "completed", "output": [{"type": "message"}]}


@pytest.mark.parametrize("envelope", [None, {}, [1], "x"])
def test_an_envelope_that_holds_nothing_counts_as_none(feed: Feed, envelope: Any) -> None:
    result = feed("responses", CREATED, {"type": "response.completed", "response": envelope})
    assert (result.response, result.terminal) == ({**BASE, "status": "completed"}, "complete")


@pytest.mark.parametrize(
    "family",
    [
        "content_part",
        "reasoning_part",
        "reasoning_summary_part",
        "output_text",
        "refusal",
        "reasoning_text",
        "reasoning_summary_text",
        "function_call_arguments",
        "custom_tool_call_input",
    ],
)
def test_an_unknown_event_of_a_known_family_makes_no_item(feed: Feed, family: str) -> None:
    odd = event(f"{family}.later", content_index=0, delta="x", part={"type": "output_text", "text": "x"})
    result = feed("responses", CREATED, odd, terminal("completed", status="completed"))
    assert result.response is not None
    assert result.response.get("output", []) == []
    assert result.problem_counts == {"unknown_event": 1}


def test_annotations_stand_where_their_index_says(feed: Feed) -> None:
    def annotation(place: int | None, name: str) -> dict[str, Any]:
        return event("output_text.annotation.added", content_index=0, annotation_index=place, annotation=name)

    part = {"type": "output_text", "text": "", "annotations": ["zero"]}
    found = items(
        feed,
        added(type="message", id="m", content=[]),
        event("content_part.added", content_index=0, part=part),
        annotation(3, "three"),
        annotation(1, "one"),
        annotation(3, "three again"),
        annotation(None, "last"),
        annotation(2, "two"),
    )
    assert found[0]["content"][0]["annotations"] == ["zero", "one", "two", "three again", "last"]


@pytest.mark.parametrize("closing", [("text",), ("part",), ("text", "part")])
@pytest.mark.parametrize("opened", [True, False])
def test_reasoning_whose_index_rises_with_each_token_is_one_text(
    feed: Feed, opened: bool, closing: tuple[str, ...]
) -> None:
    part = {"type": "reasoning_text", "text": ""}
    opening = [event("reasoning_part.added", content_index=0, part=part)] if opened else []
    ends = {
        "text": event("reasoning_text.done", content_index=3, text="abc"),
        "part": event("reasoning_part.done", content_index=3, part={**part, "text": "abc"}),
    }
    deltas = [event("reasoning_text.delta", content_index=place, delta=text) for place, text in enumerate("abc")]
    found = items(feed, added(type="reasoning", id="r"), *opening, *deltas, *(ends[name] for name in closing))
    assert found[0]["content"] == [{"type": "reasoning_text", "text": "abc"}]


def test_of_two_terminal_events_the_last_wins(feed: Feed) -> None:
    result = feed("responses", terminal("failed", status="failed"), terminal("completed", status="completed"))
    assert (result.terminal, result.error_category) == ("complete", None)


def test_error_then_failed_keeps_the_error_body_and_its_category(feed: Feed) -> None:
    result = feed("responses", CREATED, {"type": "error", "code": "rate_limit_exceeded"}, terminal("failed"))
    assert result.stream_error == {"type": "error", "code": "rate_limit_exceeded"}
    assert (result.terminal, result.error_category) == ("error", "rate_limit")


def test_sequence_gaps_and_unknown_events_are_notes(feed: Feed) -> None:
    events = [{"type": "response.new_thing.delta", "sequence_number": n, "delta": "x"} for n in (0, 1, 3)]
    result = feed("responses", *events, {"type": "keepalive"})
    assert result.problem_counts == {"unknown_event": 3, "sequence_gap": 1}


def test_an_index_far_beyond_the_end_costs_nothing(feed: Feed) -> None:
    assert items(feed, added(type="message"), event("output_text.delta", content_index=10**12, delta="x")) == [
        {"type": "message", "content": [{"type": "output_text", "text": "x"}]}
    ]


def test_a_whole_response_as_one_untyped_event(feed: Feed) -> None:
    whole = {"id": "r", "object": "response", "status": "completed", "output": []}
    result = feed("responses", whole)
    assert (result.response, result.terminal) == (whole, "complete")

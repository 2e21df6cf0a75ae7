"""Converted streams: what they end with is what the finished answer converts to, however the bytes are cut."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.dialects import conversion, make_accumulator
from nemo_gym.dialects.conversion import Mint, StreamConverter, replay_events
from nemo_gym.dialects.conversion.think_cutter import ThinkCutter

MINT = Mint(random_hex=lambda: "0", now=lambda: 1.0)
DIALECTS = ("responses", "chat", "messages")
_EMPTY_IS_NONE = ("logprobs", "citations", "content")
PAIRS = [(source, target) for source, target in itertools.product(DIALECTS, DIALECTS) if source != target]

# Surrogates cannot be sent, and a think tag inside a text is its own test.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), min_size=1, max_size=12)
arguments = st.one_of(
    st.dictionaries(texts, st.one_of(st.integers(0, 9), texts), max_size=2).map(json.dumps),
    st.just("{}"),
    st.sampled_from(['{"a', "[1]", "null", '"x"', "12", "not json", ""]),
)


@st.composite
def answers(draw: st.DrawFn, dialect: str) -> dict[str, Any]:
    """A Response in the order in which models answer: reasoning, text, calls; with what `dialect` can carry."""
    output: list[dict[str, Any]] = []
    if draw(st.booleans()):
        parts = draw(st.lists(texts, min_size=1, max_size=2 if dialect == "responses" else 1))
        item: dict[str, Any] = {"type": "reasoning", "id": "rs_0", "summary": [text_part(text) for text in parts]}
        if dialect == "responses" and draw(st.booleans()):
            item["content"] = [{"type": "reasoning_text", "text": draw(texts)}]
        if dialect != "chat" and draw(st.booleans()):
            item["encrypted_content"] = "signed"
        output.append(item)
    if draw(st.booleans()):
        part = {"type": "output_text", "text": draw(texts), "annotations": []}
        annotated = draw(st.booleans())
        if annotated:
            note = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
            part["annotations"] = [note]
        parts = [part]
        if dialect == "chat" and not annotated and draw(st.booleans()):
            parts.append({"type": "refusal", "refusal": draw(texts)})
        output.append({"type": "message", "id": "msg_0", "role": "assistant", "status": "completed", "content": parts})
    # A chat stream that is made of a finished answer tells annotations last, so that only text may come before them.
    late = dialect == "chat" and bool(output) and any(part.get("annotations") for part in output[-1].get("content", ()))
    for number in range(0 if late else draw(st.integers(0, 3))):
        call = {"type": "function_call", "id": f"c{number}", "call_id": f"c{number}", "name": f"f{number}"}
        output.append({**call, "arguments": draw(arguments), "status": "completed"})
    cut = draw(st.booleans())
    for item in output:
        if item["type"] == "message" and cut:
            item["status"] = "incomplete"
    return {
        "id": "resp_0",
        "object": "response",
        "created_at": 1,
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "model": "m",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 5,
            "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 1},
            "total_tokens": 8,
        },
    }


def text_part(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


def said_in(dialect: str, response: dict[str, Any]) -> dict[str, Any]:
    if dialect == "chat":
        return conversion.responses_to_chat_response(response, requested_model=None, mint=MINT)[0]
    if dialect == "messages":
        return conversion.responses_to_messages_response(response, requested_model=None, mint=MINT)[0]
    return response


def canonical(dialect: str, answer: dict[str, Any]) -> dict[str, Any]:
    if dialect == "chat":
        return conversion.chat_response_to_responses(answer, request={}, mint=MINT)[0]
    if dialect == "messages":
        return conversion.messages_response_to_responses(answer, request={}, mint=MINT)[0]
    return answer


def split_deltas(events: list[bytes]) -> list[bytes]:
    """Every text of a delta in pieces of one or two characters, as a model would send it."""
    pieces: list[bytes] = []
    for event in events:
        head, _, payload = event.rpartition(b"data: ")
        if payload.strip() == b"[DONE]":
            pieces.append(event)
            continue
        data = json.loads(payload)
        holder, key = text_of_delta(data)
        if holder is None or len(holder[key]) < 2:
            pieces.append(event)
            continue
        text = holder[key]
        for start in range(0, len(text), 2):
            holder[key] = text[start : start + 2]
            pieces.append(head + b"data: " + json.dumps(data).encode() + b"\n\n")
    return pieces


def text_of_delta(data: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    kind = str(data.get("type"))
    if kind.startswith("response.") and kind.endswith(".delta"):
        return data, "delta"
    if kind == "content_block_delta":
        delta = data["delta"]
        key = next((key for key in ("text", "thinking", "partial_json") if key in delta), "")
        return (delta, key) if key else (None, "")
    for choice in data.get("choices") or ():
        for key in ("content", "reasoning_content", "refusal"):
            if isinstance(choice["delta"].get(key), str):
                return choice["delta"], key
    return None, ""


def accumulated(dialect: str, stream: bytes) -> dict[str, Any]:
    accumulator = make_accumulator(dialect)
    accumulator.feed(stream)
    accumulator.finish()
    assert accumulator.terminal in ("complete", "incomplete"), (accumulator.terminal, accumulator.stream_error)
    assert accumulator.problems in ([], ["args_unparsable"])
    return accumulator.response


def compared(dialect: str, answer: Any) -> Any:
    """An answer without the ids that a conversion makes up, with arguments as values: their spelling may differ."""
    if isinstance(answer, list):
        return [compared(dialect, item) for item in answer]
    if not isinstance(answer, dict):
        return answer
    plain = {}
    for key, value in answer.items():
        if key == "arguments" and isinstance(value, str):
            value = as_value(value)
            if isinstance(value, dict) and set(value) == {"_raw"}:
                value = as_value(value["_raw"])
        elif key == "created_at" or value is None or (key in _EMPTY_IS_NONE and not value):
            continue
        plain[key] = compared(dialect, value)
    return plain


def as_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.parametrize(("source", "target"), PAIRS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_converted_stream_ends_with_what_the_finished_answer_converts_to(source, target, data) -> None:
    response = data.draw(answers(source))
    events = split_deltas(list(replay_events(source, said_in(source, response), include_usage=True)))
    stream = b"".join(events)
    size = data.draw(st.integers(1, 400))
    converter = StreamConverter(source, target, requested_model=None, include_usage=True, mint=MINT)
    converted = b"".join(converter.feed(stream[at : at + size]) for at in range(0, len(stream), size))
    converted += converter.finish()
    expected = said_in(target, canonical(source, accumulated(source, stream)))
    assert compared(target, accumulated(target, converted)) == compared(target, expected)
    if target == "responses":
        check_order(converted)


def check_order(stream: bytes) -> None:
    """The order of contract 5.6: numbers from 0, an item opens before its parts and closes before the next."""
    events = [json.loads(block.partition(b"data: ")[2]) for block in stream.split(b"\n\n") if block]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    opened: list[int] = []
    for event in events[2:-1]:
        if event["type"] == "response.output_item.added":
            opened.append(event["output_index"])
        else:
            assert opened[-1] == event["output_index"], "an event belongs to the item that is open"
    assert opened == list(range(len(opened)))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_each_delta_is_passed_on_before_the_next_arrives(source, target) -> None:
    part = {"type": "output_text", "text": "one two three", "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
    response = {"id": "r", "object": "response", "status": "completed", "model": "m", "output": [message]}
    converter = StreamConverter(source, target, mint=MINT)
    for event in split_deltas(list(replay_events(source, said_in(source, response)))):
        sent = converter.feed(event)
        payload = event.rpartition(b"data: ")[2]
        holder, key = (None, "") if b"[DONE]" in payload else text_of_delta(json.loads(payload))
        if holder and holder[key]:
            assert json.dumps(holder[key]).encode() in sent


def chunk(**delta: Any) -> bytes:
    return (
        b"data: " + json.dumps({"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"
    )


FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def output_of(*chunks: bytes, **options: Any) -> list[dict[str, Any]]:
    converter = StreamConverter("chat", "responses", mint=MINT, **options)
    stream = b"".join(map(converter.feed, chunks)) + converter.finish()
    return accumulated("responses", stream)["output"]


def test_parallel_calls_whose_pieces_alternate_come_one_after_the_other() -> None:
    def call(index: int, arguments: str, **more: Any) -> bytes:
        function = {"arguments": arguments, **({"name": more["id"]} if more else {})}
        return chunk(tool_calls=[{"index": index, "function": function, **more}])

    calls = (call(0, '{"a"', id="x"), call(1, '{"b"', id="y"), call(0, ":1}"), call(1, ":2}"))
    output = output_of(*calls, FINISH)
    assert [(item["call_id"], item["arguments"]) for item in output] == [("x", '{"a":1}'), ("y", '{"b":2}')]
    converter = StreamConverter("chat", "messages", mint=MINT)
    stream = b"".join(map(converter.feed, (*calls, FINISH)))
    blocks = accumulated("messages", stream)["content"]
    assert [block["input"] for block in blocks] == [{"a": 1}, {"b": 2}]


def _call(name: str, text: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": text}, **more}


@pytest.mark.parametrize(
    ("deltas", "message", "text", "calls"),
    [
        ([{"content": "who"}], {"content": "whole"}, "whole", []),
        ([{"content": "whole"}], {"content": "whole"}, "whole", []),
        ([], {"content": "whole"}, "whole", []),
        ([{"refusal": "no"}], {"content": None, "refusal": "no"}, "", []),
        ([{"reasoning": "hm"}, {"content": "a"}], {"reasoning": "hm", "content": "ab"}, "ab", []),
        ([{"tool_calls": [_call("f", "{}", index=0, id="x")]}], {"content": "a"}, "a", ["f {}"]),
        ([{"tool_calls": [_call("f", '{"a":', index=0, id="x")]}], {"tool_calls": [_call("f", '{"a":1}', id="x")]}, "",
         ['f {"a":1}']),
        ([{"tool_calls": [_call("f", "{}", index=0, id="x")]}],
         {"tool_calls": [_call("f", "{}", id="x"), _call("g", "{}", id="y")]}, "", ["f {}", "g {}"]),
        ([{"tool_calls": [_call("f", "{}"), _call("f", "{}")]}], {"tool_calls": [_call("f", "{}"), _call("f", "{}")]},
         "", ["f {}", "f {}"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("then", [None, "!"])
@pytest.mark.parametrize("target", ["responses", "messages"])
def test_a_whole_message_behind_deltas_is_told_once(
    deltas: list[Any], message: Any, text: str, calls: list[str], then: str | None, target: Any
) -> None:
    """What was told is not told again, no call is run twice, and the stream has its end."""
    whole = {"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": None}]}
    chunks = [*(chunk(**delta) for delta in deltas), b"data: " + json.dumps(whole).encode() + b"\n\n"]
    chunks += [chunk(content=then)] if then else []
    converter = StreamConverter("chat", target, mint=MINT)
    stream = b"".join(map(converter.feed, [*chunks, FINISH])) + converter.finish()
    result = make_accumulator(target)
    result.feed(stream)
    result.finish()
    assert (result.terminal, result.problems) == ("complete", [])
    found: list[tuple[str, str]] = []
    for event in (json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: ")):
        delta = event.get("delta")
        if event["type"] == "response.output_text.delta":
            found.append(("text", delta))
        elif event["type"] == "content_block_delta" and delta["type"] == "text_delta":
            found.append(("text", delta["text"]))
    refused = "".join(value for value in [message.get("refusal")] if value) if target == "messages" else ""
    assert "".join(value for _, value in found) == refused + text + (then or "")
    assert tool_calls_of_stream(target, result.response) == calls


def tool_calls_of_stream(target: str, response: Any) -> list[str]:
    """Each call as name and arguments, in order."""
    if target == "messages":
        blocks = [block for block in response["content"] if block["type"] == "tool_use"]
        return [f"{block['name']} {json.dumps(block['input'], separators=(',', ':'))}" for block in blocks]
    return [f"{item['name']} {item['arguments']}" for item in response["output"] if item["type"] == "function_call"]


@pytest.mark.parametrize("target", ["responses", "chat"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_messages_blocks_that_alternate_are_told_one_after_the_other(target: Any, data: st.DataObject) -> None:
    """Whatever order the events of several blocks come in, no input becomes text and no text input."""
    blocks: list[list[dict[str, Any]]] = []
    for index, kind in enumerate(data.draw(st.lists(st.sampled_from(["text", "tool_use"]), min_size=1, max_size=4))):
        own = {"text": f"<{index}"} if kind == "text" else {"id": f"u{index}", "name": "f", "input": {}}
        pieces = [f"{index}", ">"] if kind == "text" else ['{"n":', f"{index}}}"]
        name = "text" if kind == "text" else "partial_json"
        deltas = [{"type": "text_delta" if kind == "text" else "input_json_delta", name: piece} for piece in pieces]
        blocks.append(
            [
                {"type": "content_block_start", "index": index, "content_block": {"type": kind, **own}},
                *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
                {"type": "content_block_stop", "index": index},
            ]
        )
    order = data.draw(st.permutations([index for index, events in enumerate(blocks) for _ in events]))
    queues = [iter(events) for events in blocks]
    events = [
        {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": []}},
        *(next(queues[index]) for index in order),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    converter = StreamConverter("messages", target, mint=MINT)
    stream = b"".join(converter.feed(b"data: " + json.dumps(event).encode() + b"\n\n") for event in events)
    answer = accumulated(target, stream + converter.finish())
    begun = list(dict.fromkeys(order))
    texts_told = "".join(f"<{index}{index}>" for index in begun if blocks[index][0]["content_block"]["type"] == "text")
    inputs = [f'{{"n":{index}}}' for index in begun if blocks[index][0]["content_block"]["type"] == "tool_use"]
    if target == "chat":
        said = answer["choices"][0]["message"]
        assert said["content"] == (texts_told or None)
        assert [call["function"]["arguments"] for call in said.get("tool_calls") or []] == inputs
    else:
        parts = [part for item in answer["output"] if item["type"] == "message" for part in item["content"]]
        assert "".join(sorted("".join(part["text"] for part in parts))) == "".join(sorted(texts_told))
        found = [item["arguments"] for item in answer["output"] if item["type"] == "function_call"]
        assert sorted(found) == sorted(inputs)


def test_text_after_calls_stays_in_the_order_in_which_it_came() -> None:
    call = {"index": 0, "id": "x", "function": {"name": "f", "arguments": "{}"}}
    output = output_of(chunk(content="a"), chunk(tool_calls=[call]), chunk(content="b"), FINISH)
    assert [item["type"] for item in output] == ["message", "function_call", "message"]


@pytest.mark.parametrize(
    "content",
    [
        "<think>a</think>b",
        "<think>a</think><think>c</think>b",
        "<think>never closed",
        "a</think>b",
        "<thin",
        "<think></think>x",
    ],
)
def test_think_tags_are_cut_as_in_finished_text(content: str) -> None:
    chunks = [chunk(content=content[at : at + 3]) for at in range(0, len(content), 3)]
    message = {"role": "assistant", "content": content}
    whole = {"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    expected = canonical("chat", whole)["output"]
    assert compared("responses", output_of(*chunks, FINISH)) == compared("responses", expected)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "<", "/think>", "a"]), max_size=12),
    st.integers(1, 5),
)
def test_the_cutter_agrees_with_the_rule_of_finished_text(words: list[str], size: int) -> None:
    from nemo_gym.dialects.conversion.reasoning_items import cut_think_tags

    text = "".join(words)
    cutter = ThinkCutter()
    pieces = [piece for at in range(0, len(text), size) for piece in cutter.feed(text[at : at + size])]
    pieces += cutter.finish()
    thoughts, rest = cut_think_tags(text)
    assert [piece.text for piece in pieces if piece.kind == "reasoning"] == thoughts
    assert "".join(piece.text for piece in pieces if piece.kind == "text") == rest


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("how", ["cut", "garbage", "error", "empty"])
def test_a_stream_that_ends_badly_says_so_in_the_clients_dialect(source, target, how) -> None:
    part = {"type": "output_text", "text": "hello", "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
    response = {"id": "r", "object": "response", "status": "completed", "model": "m", "output": [message]}
    events = list(replay_events(source, said_in(source, response)))
    stream = {
        "cut": b"".join(events[:-2]) if source == "chat" else b"".join(events[:-1]),
        "garbage": b"<html>\n\n\xff\xfe{\n\ndata: {]\n\ndata: 3\n\n",
        "error": b"".join(events[:3])
        + b'event: error\ndata: {"type":"error","error":{"message":"boom","type":"api_error"}}\n\n',
        "empty": b"",
    }[how]
    if source == "chat" and how == "cut":
        stream = b"".join(events[:-2])
    if source == "messages" and how == "cut":
        stream = b"".join(events[:-2])
    converter = StreamConverter(source, target, mint=MINT)
    accumulator = make_accumulator(target)
    accumulator.feed(converter.feed(stream) + converter.finish())
    accumulator.finish()
    assert accumulator.terminal == "error"
    assert accumulator.stream_error or accumulator.response["error"]
    if how == "error":
        assert "boom" in json.dumps(accumulator.stream_error or accumulator.response["error"])


def test_only_finished_items_make_a_whole_answer() -> None:
    """Some Responses servers send created, each finished item, completed, and nothing between."""
    item = {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": '{"a":1}'}
    response = {"id": "r", "object": "response", "status": "completed", "model": "m", "output": [item]}
    events = [
        {"type": "response.created", "response": {**response, "output": [], "status": "in_progress"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    for target, read in (
        ("chat", lambda answer: json.loads(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])),
        ("messages", lambda answer: answer["content"][0]["input"]),
    ):
        converter = StreamConverter("responses", target, mint=MINT)
        assert read(accumulated(target, converter.feed(stream))) == {"a": 1}


def test_namespaces_and_custom_tools_are_mapped_back_while_streaming() -> None:
    request = {
        "tools": [
            {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "f"}]},
            {"type": "custom", "name": "patch"},
        ]
    }
    blocks = [
        {"type": "tool_use", "id": "a", "name": "ns__f", "input": {"x": 1}},
        {"type": "tool_use", "id": "b", "name": "patch", "input": {"input": 'say "hi"'}},
    ]
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": blocks,
        "stop_reason": "tool_use",
    }
    converter = StreamConverter("messages", "responses", request=request, client_request=request, mint=MINT)
    stream = b"".join(map(converter.feed, replay_events("messages", message))) + converter.finish()
    first, second = accumulated("responses", stream)["output"]
    assert (first["namespace"], first["name"], first["arguments"]) == ("ns", "f", '{"x":1}')
    assert (second["type"], second["input"]) == ("custom_tool_call", 'say "hi"')
    back = StreamConverter("responses", "messages", mint=MINT)
    content = accumulated("messages", back.feed(stream) + back.finish())["content"]
    assert content == blocks


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled"])
@pytest.mark.parametrize("kind", ["completed", "incomplete"])
@pytest.mark.parametrize("target", ["chat", "messages"])
def test_a_terminal_event_whose_response_holds_an_error_ends_the_stream_in_it(target, kind, status) -> None:
    response = {
        "id": "r",
        "object": "response",
        "status": status,
        "output": [],
        "error": {"code": "c", "message": "no"},
    }
    converter = StreamConverter("responses", target, mint=MINT)
    event = {"type": f"response.{kind}", "response": response}
    sent = converter.feed(b"data: " + json.dumps(event).encode() + b"\n\n") + converter.finish()
    accumulator = make_accumulator(target)
    accumulator.feed(sent)
    accumulator.finish()
    assert accumulator.terminal == "error"
    assert accumulator.stream_error is not None
    assert accumulator.stream_error["message"] == "no"

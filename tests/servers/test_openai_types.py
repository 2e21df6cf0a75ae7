"""The types of `nemo_gym.openai_utils`: which class a value gets, what is refused, and what a dump keeps."""

from __future__ import annotations

import contextlib
import copy
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai.types.chat as sdk_chat
import openai.types.responses as sdk
import pytest
from fastapi import FastAPI
from pydantic import BaseModel, ValidationError

from nemo_gym import openai_utils as types

TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
TEXT = {"type": "output_text", "text": "hi", "annotations": []}


def params(items: Any, **settings: Any) -> types.NeMoGymResponseCreateParamsNonStreaming:
    return types.NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": items, **settings})


def response(output: list[Any], **more: Any) -> types.NeMoGymResponse:
    return types.NeMoGymResponse.model_validate(
        {
            "id": "resp_1",
            "created_at": 1,
            "model": "m",
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            **more,
        }
    )


@pytest.mark.parametrize(
    ("item", "name"),
    [
        ({"role": "user", "content": "x"}, "NeMoGymEasyInputMessage"),
        ({"role": "assistant", "content": "x", "type": "message"}, "NeMoGymEasyInputMessage"),
        ({"role": "developer", "content": "x"}, "NeMoGymEasyInputMessage"),
        ({"role": "user", "content": [{"type": "input_text", "text": "x"}]}, "NeMoGymEasyInputMessage"),
        (
            {"role": "user", "content": [{"type": "input_text", "text": "x"}], "status": "completed"},
            "NeMoGymMessage",
        ),
        ({"role": "assistant", "id": "m", "content": [TEXT], "type": "message"}, "NeMoGymResponseOutputMessage"),
        (
            {"role": "assistant", "id": "m", "content": [{"type": "refusal", "refusal": "no"}]},
            "NeMoGymResponseOutputMessage",
        ),
        ({"role": "assistant", "id": "m", "content": []}, "NeMoGymResponseOutputMessage"),
        (
            {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
            "NeMoGymResponseFunctionToolCall",
        ),
        ({"name": "f", "arguments": "{}", "call_id": "c"}, "NeMoGymResponseFunctionToolCall"),
        ({"type": "function_call_output", "call_id": "c", "output": "1"}, "NeMoGymFunctionCallOutput"),
        ({"call_id": "c", "output": "1"}, "NeMoGymFunctionCallOutput"),
        ({"type": "reasoning", "id": "r", "summary": []}, "NeMoGymResponseReasoningItem"),
        ({"id": "r", "summary": []}, "NeMoGymResponseReasoningItem"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "x"}, "ResponseCustomToolCall"),
        ({"type": "custom_tool_call_output", "call_id": "c", "output": "x"}, "ResponseCustomToolCallOutput"),
        ({"type": "compaction", "encrypted_content": "e"}, "ResponseCompactionItemParam"),
        ({"type": "item_reference", "id": "x"}, "ItemReference"),
        ({"role": "user", "content": "x", **TOKENS}, "NeMoGymEasyInputMessageForTraining"),
        ({"role": "user", "content": [], "status": "completed", **TOKENS}, "NeMoGymMessageForTraining"),
        ({"role": "assistant", "id": "m", "content": [TEXT], **TOKENS}, "NeMoGymResponseOutputMessageForTraining"),
        (
            {"name": "f", "arguments": "{}", "call_id": "c", **TOKENS},
            "NeMoGymResponseFunctionToolCallForTraining",
        ),
        ({"type": "reasoning", "id": "r", "summary": [], **TOKENS}, "NeMoGymResponseReasoningItemForTraining"),
    ],
)
def test_an_input_item_gets_the_class_of_its_kind(item: dict[str, Any], name: str) -> None:
    (built,) = params([item]).input
    assert type(built).__name__ == name


@pytest.mark.parametrize(
    "item",
    [
        {"role": "tool", "content": "x", "tool_call_id": "c"},
        {"foo": 1},
        {"type": "made_up"},
        {"type": "message", "role": "owner", "content": "x"},
        "text",
    ],
)
def test_an_unknown_item_is_refused_and_named(item: Any) -> None:
    with pytest.raises(ValidationError, match=r"unknown|JSON object is needed") as caught:
        params([item])
    if isinstance(item, dict) and "role" in item:
        assert f"role `{item['role']}`" in str(caught.value)


def test_some_but_not_all_token_fields_are_refused() -> None:
    with pytest.raises(ValidationError, match="generation_log_probs"):
        params([{"role": "user", "content": "x", "prompt_token_ids": [1], "generation_token_ids": [2]}])


def test_null_token_fields_are_absent() -> None:
    (item,) = params([{"role": "user", "content": "x", **dict.fromkeys(TOKENS)}]).input
    assert type(item) is types.NeMoGymEasyInputMessage


def test_built_items_are_taken_as_they_are() -> None:
    item = types.NeMoGymEasyInputMessage(role="user", content="x")
    (kept,) = params([item]).input
    assert kept is item


def test_sdk_items_become_ours() -> None:
    message = sdk.ResponseOutputMessage(
        id="m",
        content=[sdk.ResponseOutputText(text="hi", annotations=[], type="output_text")],
        role="assistant",
        status="completed",
        type="message",
    )
    (built,) = params([message]).input
    assert type(built) is types.NeMoGymResponseOutputMessage


def test_replayed_items_are_normalised() -> None:
    tool = {"type": "function", "name": "f", "parameters": {}, "strict": False, "defer_loading": None}
    shot = {"type": "computer_screenshot", "image_url": "data:,"}
    built = params(
        [
            {"type": "additional_tools", "role": "system", "tools": [tool]},
            {"type": "computer_call_output", "call_id": "c", "output": shot, "status": "failed"},
        ],
        tools=[tool],
    )
    dumped = built.model_dump(exclude_unset=True)
    assert dumped["input"][0]["role"] == "developer"
    assert dumped["input"][0]["tools"][0]["defer_loading"] is False
    assert "status" not in dumped["input"][1]
    assert dumped["tools"][0]["defer_loading"] is False


def test_a_dump_without_unset_fields_can_be_read_again() -> None:
    items = [
        types.NeMoGymEasyInputMessage(role="user", content="x"),
        types.NeMoGymResponseOutputMessage(
            id="m", content=[types.NeMoGymResponseOutputText(text="hi", annotations=[])]
        ),
        types.NeMoGymResponseFunctionToolCall(name="f", arguments="{}", call_id="c"),
        types.NeMoGymFunctionCallOutput(call_id="c", output="1"),
        types.NeMoGymResponseReasoningItem(id="r", summary=[types.NeMoGymSummary(text="s")]),
    ]
    for again in (
        params(params(items).model_dump(exclude_unset=True)["input"]).input,
        response(response(items).model_dump(exclude_unset=True)["output"]).output,
    ):
        assert again == items


def test_unknown_keys_of_items_are_kept() -> None:
    (item,) = params([{"name": "f", "arguments": "{}", "call_id": "c", "extra_content": {"sig": "x"}}]).input
    assert item.model_dump()["extra_content"] == {"sig": "x"}


def test_reasoning_status_is_dropped() -> None:
    (item,) = params([{"type": "reasoning", "id": "r", "summary": [], "status": None}]).input
    assert "status" not in item.model_dump()


class TestParams:
    def test_defaults(self) -> None:
        built = params([])
        assert (built.parallel_tool_calls, built.tool_choice, built.tools) == (True, "auto", [])
        assert built.model_dump(exclude_unset=True) == {"input": []}
        assert all(
            value is None
            for name, value in built.model_dump().items()
            if name not in ("input", "parallel_tool_calls", "tool_choice", "tools")
        )

    def test_null_tools_of_old_recordings_are_absent(self) -> None:
        built = params("x", tools=None, tool_choice=None, parallel_tool_calls=None)
        assert (built.parallel_tool_calls, built.tool_choice, built.tools) == (True, "auto", [])

    @pytest.mark.parametrize(
        "settings",
        [
            {"unknown": 1},
            {"stream": True},
            {"metadata": {"a": 1}},
            {"tools": [{"type": "function", "name": "f", "strict": True}]},
            {"tools": [{"type": "function", "name": "f", "parameters": {}}]},
            {"tools": [{"name": "f"}]},
            {"tool_choice": "sometimes"},
        ],
    )
    def test_bad_settings_are_refused(self, settings: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            params("x", **settings)

    def test_numbers_in_strings_are_read(self) -> None:
        assert params("x", temperature="0.5", max_output_tokens="7").temperature == 0.5

    def test_a_copy_takes_another_input(self) -> None:
        base = params([], temperature=0)
        copy = base.model_copy(deep=True)
        copy.input = [types.NeMoGymEasyInputMessage(role="user", content="x")]
        assert base.input == []
        assert copy.model_dump(exclude_unset=True)["input"][0]["content"] == "x"

    @pytest.mark.parametrize("part", [{"type": "input_video"}, {"type": "input_video", "video": ""}])
    def test_a_video_has_one_source(self, part: dict[str, Any]) -> None:
        with pytest.raises(ValidationError, match="exactly one"):
            params([{"role": "user", "content": [part]}])

    def test_every_kind_of_part_is_read(self) -> None:
        parts = [
            {"type": "input_text", "text": "x"},
            {"type": "input_image", "image_url": "data:,"},
            {"type": "input_file", "file_data": "data:,", "filename": "a.pdf"},
            {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
            {"type": "input_video", "video_url": "http://localhost/v"},
        ]
        (item,) = params([{"role": "user", "content": parts}]).input
        assert [part.type for part in item.content] == [part["type"] for part in parts]


class TestResponse:
    def test_it_is_an_sdk_response_and_keeps_unknown_keys(self) -> None:
        built = response([], env_id="e1")
        assert isinstance(built, sdk.Response)
        assert built.env_id == "e1"  # type: ignore[attr-defined]

    def test_a_whole_trajectory_may_be_the_output(self) -> None:
        output = [
            {"type": "message", "role": "user", "content": "q"},
            {"type": "message", "role": "user", "content": [], "status": "completed"},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
            {"type": "function_call_output", "call_id": "c", "output": "1", "id": "fo", "status": "completed"},
        ]
        assert [type(item).__name__ for item in response(output).output] == [
            "NeMoGymEasyInputMessage",
            "NeMoGymMessage",
            "NeMoGymFunctionCallOutput",
            "ResponseFunctionToolCallOutputItem",
        ]

    def test_an_output_item_must_carry_its_type(self) -> None:
        with pytest.raises(ValidationError, match="unknown output item"):
            response([{"call_id": "c", "output": "1"}])

    def test_output_text_joins_what_the_model_wrote(self) -> None:
        output = [
            {"type": "message", "role": "user", "content": "question"},
            {"type": "message", "role": "assistant", "content": "a"},
            {
                "type": "message",
                "role": "assistant",
                "id": "m",
                "content": [TEXT, {"type": "refusal", "refusal": "no"}, TEXT],
            },
        ]
        assert response(output).output_text == "ahihi"

    def test_it_travels_through_a_nested_model_and_json(self) -> None:
        class Verify(BaseModel):
            response: types.NeMoGymResponse

        whole = Verify(response=response([{"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}]))
        again = Verify.model_validate_json(whole.model_dump_json(exclude_unset=True))
        assert again == whole

    def test_hosted_items_are_the_sdk_classes(self) -> None:
        item = {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "x"}
        assert isinstance(response([item]).output[0], sdk.ResponseCustomToolCall)


class TestUsage:
    def usage(self, cached: int | None = 1, reasoning: int | None = 2) -> types.NeMoGymResponseUsage:
        return types.NeMoGymResponseUsage(
            input_tokens=10,
            output_tokens=5,
            total_tokens=15,
            input_tokens_details=types.NeMoGymResponseInputTokensDetails(cached_tokens=cached),
            output_tokens_details=types.NeMoGymResponseOutputTokensDetails(reasoning_tokens=reasoning),
        )

    def test_a_sum_adds_counts(self) -> None:
        total = types.accumulate_response_usage(self.usage(), self.usage())
        assert total is not None
        assert isinstance(total, sdk.ResponseUsage)
        assert (total.input_tokens, total.output_tokens, total.total_tokens) == (20, 10, 30)
        assert total.input_tokens_details.cached_tokens == 2

    def test_one_unknown_makes_the_sum_unknown(self) -> None:
        total = types.NeMoGymResponseUsage.sum_from_list([self.usage(), self.usage(cached=None, reasoning=None)])
        assert total.input_tokens_details.cached_tokens is None
        assert total.output_tokens_details.reasoning_tokens is None

    def test_none_is_neutral(self) -> None:
        assert types.accumulate_response_usage(None, None) is None
        assert types.accumulate_response_usage(None, self.usage()) == self.usage()
        assert types.accumulate_response_usage(self.usage(), None) == self.usage()

    def test_missing_details_are_unknown(self) -> None:
        built = types.NeMoGymResponseUsage.model_validate({"input_tokens": 1, "output_tokens": 1, "total_tokens": 2})
        assert built.input_tokens_details.cached_tokens is None


class TestChat:
    def completion(self, message: dict[str, Any], finish: str | None = "stop") -> types.NeMoGymChatCompletion:
        return types.NeMoGymChatCompletion.model_validate(
            {
                "id": "c",
                "created": 1,
                "model": "m",
                "object": "chat.completion",
                "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}],
            }
        )

    def test_it_is_an_sdk_completion(self) -> None:
        built = self.completion({"content": "x", "reasoning_content": "r"})
        assert isinstance(built, sdk_chat.ChatCompletion)
        assert type(built.choices[0]) is types.NeMoGymChoice
        assert built.choices[0].message.reasoning_content == "r"

    def test_token_ids_choose_the_training_message(self) -> None:
        built = self.completion({"content": "x", **TOKENS})
        assert type(built.choices[0].message) is types.NeMoGymChatCompletionMessageForTraining
        with pytest.raises(ValidationError, match="incomplete"):
            self.completion({"content": "x", "prompt_token_ids": [1]})

    @pytest.mark.parametrize("finish", ["abort", None, "stop"])
    def test_any_finish_reason_is_read(self, finish: str | None) -> None:
        assert self.completion({"content": "x"}, finish).choices[0].finish_reason == finish

    def test_tool_calls_are_typed(self) -> None:
        calls = [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "b", "type": "custom", "custom": {"name": "g", "input": "x"}},
        ]
        built = self.completion({"content": None, "tool_calls": calls}).choices[0].message.tool_calls
        assert built is not None
        assert [call.type for call in built] == ["function", "custom"]
        assert built[0].function.arguments == "{}"  # type: ignore[union-attr]

    def test_a_request_keeps_reasoning_and_drops_a_redundant_name(self) -> None:
        call = {"id": "a", "type": "function", "name": "f", "function": {"name": "f", "arguments": "{}"}}
        built = types.NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(
            {
                "messages": [
                    {"role": "user", "content": [{"type": "video_url", "video_url": {"url": "data:,"}}]},
                    {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [call], **TOKENS},
                    {"role": "tool", "tool_call_id": "a", "content": "1"},
                ],
                "chat_template_kwargs": {"enable_thinking": False},
                "audio": {"format": "anything"},
            }
        )
        assert built.parallel_tool_calls is True
        assert "name" not in built.messages[1]["tool_calls"][0]
        assert built.messages[1]["reasoning_content"] == "r"

    @pytest.mark.parametrize(
        "bad",
        [
            {"messages": [{"role": "owner", "content": "x"}]},
            {"messages": [{"role": "user"}]},
            {"messages": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]},
            {"messages": [{"role": "tool", "content": "x"}]},
            {"messages": [], "stream": True},
            {"messages": [], "unknown": 1},
            {},
        ],
    )
    def test_bad_requests_are_refused(self, bad: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            types.NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(bad)


def test_every_training_class_is_reachable_from_its_base() -> None:
    assert len(types.RESPONSES_TO_TRAIN) == 5
    for base, training in types.RESPONSES_TO_TRAIN.items():
        assert issubclass(training, base)
        assert types.training_variant_of(base) is training
    with pytest.raises(NotImplementedError):
        types.training_variant_of(types.NeMoGymFunctionCallOutput)


def test_importing_the_door_pulls_in_no_server_framework() -> None:
    code = (
        "import sys, nemo_gym.openai_utils; print([m for m in ('fastapi', 'uvicorn', 'omegaconf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_door_lists_its_names_sorted() -> None:
    import nemo_gym.servers.openai_types as package

    assert all(hasattr(types, name) for name in package.__all__)
    assert set(types.__all__) == set(package.__all__)


STRANGE: list[Any] = [None, 0, 1.5, True, "x", [], {}, [1], {"type": []}, {"type": {}}, [{"type": []}], [None], [{}]]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return ([path] if path else []) + [place for key, item in entries for place in places(item, (*path, key))]


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("cls", "body"),
    [
        (
            types.NeMoGymResponseCreateParamsNonStreaming,
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
                    {"type": "message", "role": "assistant", "id": "m", "content": [TEXT], **TOKENS},
                    {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "x"}]},
                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                    {"call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
                    {"type": "additional_tools", "role": "developer", "tools": []},
                ],
                "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True}],
                "tool_choice": {"type": "function", "name": "f"},
            },
        ),
        (
            types.NeMoGymResponse,
            {
                "id": "r",
                "created_at": 1,
                "model": "m",
                "output": [
                    {"type": "message", "role": "assistant", "id": "m", "content": [TEXT]},
                    {"type": "function_call_output", "id": "o", "status": "completed", "call_id": "c", "output": "x"},
                ],
                "parallel_tool_calls": True,
                "tool_choice": "auto",
                "tools": [],
                "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "input_tokens_details": {}},
            },
        ),
        (
            types.NeMoGymChatCompletionCreateParamsNonStreaming,
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "x"}]},
                    {"role": "assistant", "content": None, "tool_calls": [CALL]},
                    {"role": "tool", "tool_call_id": "a", "content": "x"},
                ],
                "tools": [],
            },
        ),
        (
            types.NeMoGymChatCompletion,
            {
                "id": "c",
                "created": 1,
                "model": "m",
                "choices": [
                    {"index": 0, "finish_reason": "stop", "message": {"content": "x", "tool_calls": [CALL], **TOKENS}}
                ],
            },
        ),
    ],
)
def test_a_strange_value_is_a_validation_error_and_nothing_else(cls: type[BaseModel], body: dict[str, Any]) -> None:
    cls.model_validate(body)
    for path in places(body):
        for strange in STRANGE:
            changed = copy.deepcopy(body)
            target: Any = changed
            for key in path[:-1]:
                target = target[key]
            target[path[-1]] = strange
            with contextlib.suppress(ValidationError):
                cls.model_validate(changed).model_dump_json()


async def test_a_server_reads_answers_and_documents_them() -> None:
    app = FastAPI()

    @app.post("/responses")
    async def respond(body: types.NeMoGymResponseCreateParamsNonStreaming) -> types.NeMoGymResponse:
        answered = [*body.input, types.NeMoGymFunctionCallOutput(call_id="c", output="1")]
        return response(answered, seen=len(body.input))

    async with serving(app) as call:
        status, good = await call("/responses", {"input": [{"role": "user", "content": "x"}]})
        assert (status, good["seen"]) == (200, 1)
        assert [item["type"] for item in good["output"]] == ["message", "function_call_output"]
        status, bad = await call("/responses", {"input": [{"role": "tool", "content": "secret words"}]})
        assert status == 422
        assert "unknown input item: role `tool`" in str(bad)
        status, document = await call("/openapi.json", None)
        assert status == 200
        assert "NeMoGymResponse" in document["components"]["schemas"]


@contextlib.asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[Callable[[str, Any], Awaitable[tuple[int, Any]]]]:
    """Call the app without a network; a body makes it a POST."""

    async def call(path: str, body: Any) -> tuple[int, Any]:
        sent: list[Any] = []
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET" if body is None else "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "scheme": "http",
            "root_path": "",
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

        async def send(event: Any) -> None:
            sent.append(event)

        await app(scope, receive, send)
        content = b"".join(event.get("body", b"") for event in sent[1:])
        return sent[0]["status"], json.loads(content)

    yield call

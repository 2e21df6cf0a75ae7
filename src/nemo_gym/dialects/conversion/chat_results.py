"""Answers between Chat and Responses."""

from __future__ import annotations

from typing import Any

from nemo_gym.dialects.conversion.arguments import arguments_text, free_input
from nemo_gym.dialects.conversion.chat_tools import chat_call
from nemo_gym.dialects.conversion.citations import annotations_from_chat, chat_annotations
from nemo_gym.dialects.conversion.envelope import (
    error_of_failed,
    error_said_in,
    failed_response,
    is_error,
    is_failed,
    message_item,
    response_envelope,
)
from nemo_gym.dialects.conversion.fields import token_fields_of
from nemo_gym.dialects.conversion.mint import SYSTEM_MINT, Mint
from nemo_gym.dialects.conversion.namespaces import custom_tool_names, flatten_call, restore_namespaces
from nemo_gym.dialects.conversion.parts import output_text
from nemo_gym.dialects.conversion.reasoning_items import cut_think_tags, reasoning_item, reasoning_texts, text_of
from nemo_gym.dialects.conversion.refusal import ConversionError, Notes
from nemo_gym.dialects.conversion.shapes import as_list, as_object, as_text, objects
from nemo_gym.dialects.conversion.usages import chat_usage, usage_from_chat
from nemo_gym.dialects.usage import usage_of
from nemo_gym.records.codec import JsonObject

_KNOWN_FINISHES = ("stop", "length", "content_filter", "tool_calls", "function_call")
_KEPT = ("system_fingerprint", "citations", "search_results")
"""Keys of a completion that are kept on the Response under the same name."""


def chat_response_to_responses(
    completion: JsonObject, *, request: JsonObject, think_tags: bool | None = None, mint: Mint = SYSTEM_MINT
) -> tuple[JsonObject, Notes]:
    """Return the Response of a chat completion's first choice, and what was lost.

    `request` is the Responses request that was answered (or {}). `think_tags` says whether closed `<think>` blocks are
    cut out of the text into reasoning; None does so unless the backend sent reasoning in a field of its own, since a
    model may write the tag literally. Raises ConversionError when token ids are incomplete.
    """
    notes: Notes = []
    model = completion.get("model")
    choices = objects(completion.get("choices"))
    if is_error("chat", completion):
        return failed_response(request, completion["error"], mint=mint, model=model), notes
    if len(choices) > 1:
        notes.append(f"{len(choices) - 1} further choices dropped")
    choice = next((one for one in choices if one.get("index") == 0), choices[0] if choices else {})
    native = choice.get("finish_reason")
    if native not in _KNOWN_FINISHES:
        notes.append(f"finish reason `{native}` is unknown: taken as completed")
    finish = native if native in ("length", "content_filter") else "stop"
    output = _OutputReader(custom_tool_names(request), finish, think_tags, mint, notes).items(choice)
    response = response_envelope(
        request,
        output,
        mint=mint,
        response_id=None,
        created_at=completion.get("created"),
        model=model,
        finish=finish,
        usage=usage_from_chat(usage_of(completion), notes),
    )
    response["native_finish_reason"] = native
    response.update({name: completion[name] for name in _KEPT if completion.get(name) is not None})
    return restore_namespaces(response, request=request), notes


class _OutputReader:
    """Reads one choice into items: reasoning, message, calls."""

    def __init__(self, custom: set[str], finish: str, think_tags: bool | None, mint: Mint, notes: Notes) -> None:
        self._custom = custom
        self._finish, self._think_tags, self._mint, self._notes = finish, think_tags, mint, notes

    def items(self, choice: JsonObject) -> list[JsonObject]:
        message = as_object(choice.get("message"))
        text, thoughts = _split_content(message.get("content"))
        direct = text_of(message.get("reasoning_content") or message.get("reasoning"))
        if direct:
            thoughts = [direct, *thoughts]
        if self._think_tags or (self._think_tags is None and not thoughts):
            cut, text = cut_think_tags(text)
            thoughts = [*thoughts, *cut]
        items: list[JsonObject] = []
        if thoughts or message.get("reasoning_details"):
            item = reasoning_item(self._mint.new_id("rs"), thoughts)
            if message.get("reasoning_details"):
                item["reasoning_details"] = message["reasoning_details"]
            items.append(item)
        parts = self._parts(text, message, choice)
        calls = [self._call(call) for call in _calls_of(message)]
        if not parts and not calls and not items:
            parts = [output_text("")]
        if parts:
            items.append(message_item(self._mint.new_id("msg"), parts, finish=self._finish))
        items.extend(calls)
        try:
            items[-1].update(token_fields_of(message))
        except ValueError as error:
            raise ConversionError(f"choices[0].message: {error}") from error
        return items

    def _parts(self, text: str, message: JsonObject, choice: JsonObject) -> list[JsonObject]:
        audio = message.get("audio")
        if isinstance(audio, dict):
            self._notes.append("`audio` dropped; its transcript is kept as text")
            text = text or as_text(audio.get("transcript"))
        parts: list[JsonObject] = []
        if text:
            part = output_text(text, annotations_from_chat(message.get("annotations")))
            logprobs = as_object(choice.get("logprobs")).get("content")
            if logprobs:
                part["logprobs"] = logprobs
            parts.append(part)
        if message.get("refusal"):
            parts.append({"type": "refusal", "refusal": message["refusal"]})
        return parts

    def _call(self, call: JsonObject) -> JsonObject:
        call_id = call.get("id")
        if not call_id:
            call_id = self._mint.new_id("call")
            self._notes.append("a tool call without an id got one")
        item: JsonObject = {"id": call_id, "call_id": call_id, "status": "completed"}
        custom, function = call.get("custom"), as_object(call.get("function"))
        if isinstance(custom, dict):
            item.update(type="custom_tool_call", name=custom.get("name"), input=as_text(custom.get("input")))
        elif as_text(function.get("name")) in self._custom:
            text = free_input(arguments_text(function.get("arguments")))
            item.update(type="custom_tool_call", name=function["name"], input=text)
        else:
            arguments = arguments_text(function.get("arguments"))
            item.update(type="function_call", name=function.get("name"), arguments=arguments)
        if call.get("extra_content") is not None:
            item["extra_content"] = call["extra_content"]
        return item


def _split_content(content: Any) -> tuple[str, list[str]]:
    """Return the text and the thinking of content that is a string, or a list with thinking parts."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else "", []
    thoughts = [
        text_of(part.get("thinking")) for part in content if isinstance(part, dict) and part.get("type") == "thinking"
    ]
    texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "".join(texts), [thought for thought in thoughts if thought]


def _calls_of(message: JsonObject) -> list[JsonObject]:
    calls = objects(message.get("tool_calls"))
    if not calls and isinstance(message.get("function_call"), dict):
        return [{"id": None, "function": message["function_call"]}]
    return calls


def responses_to_chat_response(
    response: JsonObject, *, requested_model: str | None, mint: Mint = SYSTEM_MINT
) -> tuple[JsonObject, Notes]:
    """Return the chat completion of a Response, and what was lost.

    A failed Response becomes OpenAI's error object (key `error`). `requested_model` None takes the Response's.
    """
    notes: Notes = []
    if is_failed(response):
        return error_said_in("chat", error_of_failed(response)), notes
    writer = _MessageWriter(notes)
    for index, item in enumerate(objects(response.get("output"))):
        writer.add(flatten_call(item), index)
    choice: JsonObject = {"index": 0, "message": writer.message(), "finish_reason": _finish(response, writer)}
    choice["logprobs"] = {"content": writer.logprobs, "refusal": None} if writer.logprobs else None
    created = response.get("created_at")
    completion: JsonObject = {
        "id": response.get("id") or mint.new_id("chatcmpl"),
        "object": "chat.completion",
        "created": int(created if isinstance(created, int | float) else mint.now()),
        "model": requested_model or as_text(response.get("model")),
        "choices": [choice],
        "usage": chat_usage(response.get("usage")),
    }
    completion.update({name: response[name] for name in (*_KEPT, "service_tier") if response.get(name) is not None})
    return completion, notes


def _finish(response: JsonObject, writer: _MessageWriter) -> str:
    reason = as_object(response.get("incomplete_details")).get("reason")
    if reason == "max_output_tokens":
        return "length"
    if reason == "content_filter":
        return "content_filter"
    return "tool_calls" if writer.calls else "stop"


class _MessageWriter:
    """Builds the assistant's message of output items."""

    def __init__(self, notes: Notes) -> None:
        self.calls: list[JsonObject] = []
        self.logprobs: list[Any] = []
        self._notes = notes
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusals: list[str] = []
        self._annotations: list[JsonObject] = []
        self._extra: JsonObject = {}

    def add(self, item: JsonObject, index: int) -> None:
        kind = item.get("type")
        if kind == "message":
            self._add_message(item)
        elif kind == "reasoning":
            self._reasoning.extend(reasoning_texts(item))
            if item.get("reasoning_details") is not None:
                self._extra["reasoning_details"] = item["reasoning_details"]
            elif item.get("encrypted_content"):
                self._notes.append(f"output[{index}]: encrypted reasoning dropped")
        elif kind in ("function_call", "custom_tool_call"):
            self.calls.append(chat_call(item))
        else:
            self._notes.append(f"output[{index}] of type `{kind}` dropped")
        try:
            self._extra.update(token_fields_of(item))
        except ValueError as error:
            raise ConversionError(f"output[{index}]: {error}") from error

    def _add_message(self, item: JsonObject) -> None:
        content = item.get("content")
        for part in objects(content if isinstance(content, list) else [{"type": "output_text", "text": content}]):
            if part.get("type") == "refusal":
                self._refusals.append(as_text(part.get("refusal")))
                continue
            offset = sum(map(len, self._text))
            self._text.append(as_text(part.get("text")))
            self._annotations.extend(
                shifted_annotation(note, offset) for note in chat_annotations(part.get("annotations"))
            )
            self.logprobs.extend(as_list(part.get("logprobs")))

    def message(self) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": "".join(self._text) if self._text else None}
        message["refusal"] = "".join(self._refusals) if self._refusals else None
        if self._reasoning:
            message["reasoning_content"] = "\n".join(self._reasoning)
        if self._annotations:
            message["annotations"] = self._annotations
        if self.calls:
            message["tool_calls"] = self.calls
        return {**message, **self._extra}


def shifted_annotation(annotation: JsonObject, offset: int) -> JsonObject:
    """Return an annotation whose character range counts from the start of the joined text."""
    inner = annotation.get("url_citation")
    if not offset or not isinstance(inner, dict):
        return annotation
    moved = {key: inner[key] + offset for key in ("start_index", "end_index") if isinstance(inner.get(key), int)}
    return {**annotation, "url_citation": {**inner, **moved}}

"""A finished chat completion as chunks."""

from __future__ import annotations

from collections.abc import Iterator

from nemo_gym.dialects.conversion.envelope import is_error
from nemo_gym.dialects.conversion.replay_frames import DONE, plain_event
from nemo_gym.dialects.conversion.shapes import as_object, objects
from nemo_gym.records.codec import JsonObject

_NOT_IN_CHUNKS = ("choices", "usage", "object")
_TEXT_KEYS = ("reasoning_content", "reasoning", "content", "refusal")
"""In the order in which they are sent; a delta each."""

_OWN_DELTAS = ("role", "tool_calls", *_TEXT_KEYS)
_OWN_CHOICE_KEYS = ("index", "message", "logprobs", "finish_reason")


def chat_events(completion: JsonObject, *, include_usage: bool) -> Iterator[bytes]:
    """Yield each choice's role, reasoning, content, refusal, calls and finish, the usage if asked for, and `[DONE]`.

    An error object is sent alone, without `[DONE]`.
    """
    if is_error("chat", completion):
        yield plain_event({"error": completion["error"]})
        return
    base = {key: value for key, value in completion.items() if key not in _NOT_IN_CHUNKS}
    base["object"] = "chat.completion.chunk"
    for choice in objects(completion.get("choices")):
        for part in _choice_parts(choice):
            yield plain_event({**base, "choices": [{"index": choice.get("index", 0), **part}]})
    if include_usage:
        yield plain_event({**base, "choices": [], "usage": completion.get("usage")})
    yield DONE


def _choice_parts(choice: JsonObject) -> Iterator[JsonObject]:
    message, logprobs = as_object(choice.get("message")), choice.get("logprobs")
    yield _delta({"role": message.get("role") or "assistant", "content": None})
    for key in _TEXT_KEYS:
        if message.get(key) is None:
            continue
        part = _delta({key: message[key]})
        if key == "content" and logprobs:
            part["logprobs"], logprobs = logprobs, None
        yield part
    calls = objects(message.get("tool_calls"))
    if calls:
        yield _delta({"tool_calls": [{"index": index, **call} for index, call in enumerate(calls)]})
    others = {key: value for key, value in message.items() if key not in _OWN_DELTAS and value is not None}
    if others:
        yield _delta(others)
    last = _delta({}, finish=choice.get("finish_reason"))
    if logprobs:
        last["logprobs"] = logprobs
    yield {**last, **{key: value for key, value in choice.items() if key not in _OWN_CHOICE_KEYS}}


def _delta(delta: JsonObject, *, finish: str | None = None) -> JsonObject:
    return {"delta": delta, "logprobs": None, "finish_reason": finish}

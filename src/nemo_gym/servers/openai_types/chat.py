"""Chat Completions: the answer, and the request that makes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

from openai.types.chat import ChatCompletion, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_message_custom_tool_call import ChatCompletionMessageCustomToolCall
from openai.types.chat.chat_completion_message_function_tool_call import ChatCompletionMessageFunctionToolCall
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from nemo_gym.servers.openai_types.choice import Chosen, ItemClass, kind_of, unknown_kind
from nemo_gym.servers.openai_types.items import TOKEN_FIELDS, TokenIDLogProbMixin


class NeMoGymChatCompletionMessageToolCall(ChatCompletionMessageFunctionToolCall):
    """A function call in an assistant message."""

    type: Literal["function"] = "function"


def _choose_tool_call(call: dict[str, Any]) -> ItemClass:
    kind = kind_of(call) or ("custom" if "custom" in call else "function")
    call["type"] = kind
    if kind == "function":
        return NeMoGymChatCompletionMessageToolCall
    if kind == "custom":
        return ChatCompletionMessageCustomToolCall
    raise unknown_kind("tool call", call)


def _tool_call_classes() -> tuple[ItemClass, ...]:
    return (NeMoGymChatCompletionMessageToolCall, ChatCompletionMessageCustomToolCall)


NeMoGymChatCompletionMessageToolCallUnion: TypeAlias = Annotated[
    NeMoGymChatCompletionMessageToolCall | ChatCompletionMessageCustomToolCall,
    Chosen(_choose_tool_call, keep=_tool_call_classes),
]


class NeMoGymChatCompletionMessage(ChatCompletionMessage):
    """The assistant's message of an answer; providers' own keys, reasoning among them, are kept."""

    role: Literal["assistant"] = "assistant"
    tool_calls: list[NeMoGymChatCompletionMessageToolCallUnion] | None = None  # type: ignore[assignment]
    reasoning_content: str | None = None


class NeMoGymChatCompletionMessageForTraining(NeMoGymChatCompletionMessage, TokenIDLogProbMixin):
    """`NeMoGymChatCompletionMessage` with token ids."""


def _choose_message(message: dict[str, Any]) -> ItemClass:
    given = [name for name in TOKEN_FIELDS if message.get(name) is not None]
    if len(given) == len(TOKEN_FIELDS):
        return NeMoGymChatCompletionMessageForTraining
    if given:
        raise ValueError(f"token ids are incomplete: only {', '.join(given)}")
    for name in TOKEN_FIELDS:
        message.pop(name, None)
    return NeMoGymChatCompletionMessage


def _message_classes() -> tuple[ItemClass, ...]:
    return (NeMoGymChatCompletionMessage,)


class NeMoGymChoice(Choice):
    """One choice. `finish_reason` is what the provider said, which need not be in OpenAI's list."""

    finish_reason: str | None  # type: ignore[assignment]
    index: int = 0
    message: Annotated[NeMoGymChatCompletionMessage, Chosen(_choose_message, keep=_message_classes)]


class NeMoGymChatCompletion(ChatCompletion):
    """The SDK's `ChatCompletion`, its choices typed; unknown keys are kept and readable as attributes."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[NeMoGymChoice]  # type: ignore[assignment]


class NeMoGymChatCompletionSystemMessageParam(TypedDict, total=False):
    """A system message of a request."""

    role: Literal["system"]
    content: str | list[dict[str, Any]]
    name: str


class NeMoGymChatCompletionDeveloperMessageParam(TypedDict, total=False):
    """A developer message of a request."""

    role: Literal["developer"]
    content: str | list[dict[str, Any]]
    name: str


class NeMoGymChatCompletionUserMessageParam(TypedDict, total=False):
    """A user message of a request."""

    role: Literal["user"]
    content: str | list[dict[str, Any]]
    name: str


class NeMoGymChatCompletionAssistantMessageParam(TypedDict, total=False):
    """An assistant message of a request; reasoning and token ids may be replayed."""

    role: Literal["assistant"]
    content: str | list[dict[str, Any]] | None
    name: str
    refusal: str | None
    tool_calls: list[dict[str, Any]]
    reasoning_content: str | None
    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float]


class NeMoGymChatCompletionToolMessageParam(TypedDict, total=False):
    """The answer to a tool call, in a request."""

    role: Literal["tool"]
    content: str | list[dict[str, Any]]
    tool_call_id: str


_TEXT_PARTS = ("text",)
_USER_PARTS = ("text", "image_url", "input_audio", "file", "video_url")
_ASSISTANT_PARTS = ("text", "refusal", "thinking", "reference")
_PARTS = {
    "system": _TEXT_PARTS,
    "developer": _TEXT_PARTS,
    "user": _USER_PARTS,
    "assistant": _ASSISTANT_PARTS,
    "tool": _USER_PARTS,
    "function": _TEXT_PARTS,
}


def _check_message(message: dict[str, Any]) -> dict[str, Any]:
    """Check role, content and calls of one message, and drop the outer `name` that some clients put on a call."""
    role = message.get("role")
    parts = _PARTS.get(role) if isinstance(role, str) else None
    if parts is None:
        raise unknown_kind("message", message)
    content = message.get("content")
    if content is None:
        if role not in ("assistant", "function"):
            raise ValueError(f"a {role} message needs `content`")
    elif isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") not in parts:
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise ValueError(f"content part `{kind}` is not allowed in a {role} message")
    elif not isinstance(content, str):
        raise ValueError(f"`content` of a {role} message must be a string or a list of parts")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise ValueError("a tool message needs `tool_call_id`")
    calls = message.get("tool_calls")
    if not calls:
        return message
    if role != "assistant" or not isinstance(calls, list):
        raise ValueError("`tool_calls` must be a list, in an assistant message")
    return {**message, "tool_calls": [_checked_call(call) for call in calls]}


def _checked_call(call: Any) -> dict[str, Any]:
    body = call.get(kind_of(call) or "function") if isinstance(call, dict) else None
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        raise ValueError("a tool call needs an `id` and a `function` (or `custom`) object with a `name`")
    return {key: value for key, value in call.items() if key != "name"}


_message_check: Callable[[dict[str, Any]], dict[str, Any]] = _check_message
NeMoGymChatCompletionMessageParam: TypeAlias = Annotated[dict[str, Any], AfterValidator(_message_check)]
"""A message of a chat request: a plain dict, its role, content parts and tool calls checked."""


class NeMoGymChatCompletionCreateParamsNonStreaming(BaseModel):
    """A request for one `ChatCompletion`, not streamed. Unknown top-level keys are refused."""

    model_config = ConfigDict(extra="forbid")

    messages: list[NeMoGymChatCompletionMessageParam]
    model: str | None = None
    audio: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    frequency_penalty: float | None = None
    function_call: str | dict[str, Any] | None = None
    functions: list[dict[str, Any]] | None = None
    logit_bias: dict[str, int] | None = None
    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    metadata: dict[str, str] | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    moderation: dict[str, Any] | None = None
    n: int | None = None
    output_config: dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    prediction: dict[str, Any] | None = None
    presence_penalty: float | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None
    safety_identifier: str | None = None
    seed: int | None = None
    service_tier: str | None = None
    stop: str | list[str] | None = None
    store: bool | None = None
    stream_options: dict[str, Any] | None = None
    temperature: float | None = None
    thinking: dict[str, Any] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    top_logprobs: int | None = None
    top_p: float | None = None
    user: str | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    web_search_options: dict[str, Any] | None = None
    stream: Literal[False] | None = Field(default=None)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("parallel_tool_calls", ...) is None:
            return {key: item for key, item in value.items() if key != "parallel_tool_calls"}
        return value

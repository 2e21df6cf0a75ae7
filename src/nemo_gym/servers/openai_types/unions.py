"""Which class an item of `input` or `output` gets."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, TypeAlias

from openai import BaseModel as SDKModel
from openai.types.responses.response_function_tool_call_output_item import ResponseFunctionToolCallOutputItem
from openai.types.responses.response_input_item import ResponseInputItem
from openai.types.responses.response_output_item import ResponseOutputItem
from pydantic_core import PydanticCustomError

from nemo_gym.servers.openai_types.choice import Chosen, ItemClass, classes_by_type, unknown_kind
from nemo_gym.servers.openai_types.items import (
    RESPONSES_TO_TRAIN,
    TOKEN_FIELDS,
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymMessage,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseReasoningItem,
)

_INPUT_ROLES = ("user", "system", "developer")
_ROLES = (*_INPUT_ROLES, "assistant")
_OWN_BY_TYPE: dict[str, ItemClass] = {
    "function_call": NeMoGymResponseFunctionToolCall,
    "function_call_output": NeMoGymFunctionCallOutput,
    "reasoning": NeMoGymResponseReasoningItem,
}


def normalise_tool(tool: Any) -> Any:
    """Return `tool` with a null `defer_loading` as false, which is what providers accept on replay."""
    if isinstance(tool, dict) and "defer_loading" in tool and tool["defer_loading"] is None:
        return {**tool, "defer_loading": False}
    return tool


def _normalise_replayed(item: dict[str, Any]) -> None:
    """Turn, in place, what a model produced into what may be given to a model."""
    if item.get("type") == "additional_tools":
        item["role"] = "developer"
    if item.get("type") == "computer_call_output" and item.get("status") == "failed":
        del item["status"]
    if isinstance(item.get("tools"), list):
        item["tools"] = [normalise_tool(tool) for tool in item["tools"]]


def _kind_of_untyped(item: dict[str, Any]) -> str | None:
    if item.get("role") in _ROLES and "content" in item:
        return "message"
    if "call_id" in item and "name" in item and "arguments" in item:
        return "function_call"
    if "call_id" in item and "output" in item:
        return "function_call_output"
    if "id" in item and isinstance(item.get("summary"), list):
        return "reasoning"
    return "item_reference" if set(item) == {"id"} else None


def _message_class(item: dict[str, Any]) -> ItemClass:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise unknown_kind("message", item)
    if not isinstance(content, list):
        return NeMoGymEasyInputMessage
    if role in _INPUT_ROLES:
        return NeMoGymMessage if item.get("status") is not None else NeMoGymEasyInputMessage
    if not isinstance(item.get("id"), str):
        return NeMoGymEasyInputMessage
    first = content[0] if content else {"type": "output_text"}
    kind = first.get("type") if isinstance(first, dict) else getattr(first, "type", None)
    return NeMoGymResponseOutputMessage if kind in ("output_text", "refusal") else NeMoGymEasyInputMessage


def _with_tokens(cls: ItemClass, item: dict[str, Any]) -> ItemClass:
    """Return the training variant when all token fields are there; a part of them is an error."""
    given = [name for name in TOKEN_FIELDS if item.get(name) is not None]
    if not given:
        for name in TOKEN_FIELDS:
            item.pop(name, None)
        return cls
    if cls not in RESPONSES_TO_TRAIN:
        return cls
    if len(given) < len(TOKEN_FIELDS):
        missing = ", ".join(name for name in TOKEN_FIELDS if name not in given)
        raise PydanticCustomError("token_fields", "token ids are incomplete: missing {missing}", {"missing": missing})
    return RESPONSES_TO_TRAIN[cls]


@cache
def _input_classes() -> dict[str, ItemClass]:
    return {**classes_by_type(ResponseInputItem), **_OWN_BY_TYPE}


@cache
def _output_classes() -> dict[str, ItemClass]:
    return {**classes_by_type(ResponseOutputItem), **_OWN_BY_TYPE}


@cache
def _kept_on_input() -> tuple[ItemClass, ...]:
    messages = (NeMoGymEasyInputMessage, NeMoGymMessage, NeMoGymResponseOutputMessage)
    given = {cls for kind, cls in _input_classes().items() if kind != "message"}
    sdk = given - set(classes_by_type(ResponseOutputItem).values())  # those may need `_normalise_replayed`
    return (*messages, *_OWN_BY_TYPE.values(), *sdk)


@cache
def _kept_on_output() -> tuple[ItemClass, ...]:
    messages = (NeMoGymEasyInputMessage, NeMoGymMessage, NeMoGymResponseOutputMessage)
    sdk = {cls for kind, cls in _output_classes().items() if kind not in ("message", *_OWN_BY_TYPE)}
    return (*messages, *_OWN_BY_TYPE.values(), *sdk, ResponseFunctionToolCallOutputItem)


def _choose_input_item(item: dict[str, Any]) -> ItemClass:
    _normalise_replayed(item)
    kind = item.get("type") or _kind_of_untyped(item)
    if kind == "message":
        return _with_tokens(_message_class(item), item)
    cls = _input_classes().get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise unknown_kind("input item", item)
    return _with_tokens(cls, item)


def _choose_output_item(item: dict[str, Any]) -> ItemClass:
    kind = item.get("type")
    if kind == "message":
        return _with_tokens(_message_class(item), item)
    if kind == "function_call_output" and isinstance(item.get("id"), str) and item.get("status") is not None:
        return ResponseFunctionToolCallOutputItem
    cls = _output_classes().get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise unknown_kind("output item", item)
    return _with_tokens(cls, item)


NeMoGymResponseInputItem: TypeAlias = Annotated[
    NeMoGymEasyInputMessage
    | NeMoGymMessage
    | NeMoGymResponseOutputMessage
    | NeMoGymResponseFunctionToolCall
    | NeMoGymFunctionCallOutput
    | NeMoGymResponseReasoningItem
    | SDKModel,
    Chosen(_choose_input_item, keep=_kept_on_input),
]
"""An item of a request's `input`. Hosted and client-executed tool items are the SDK's classes of that type."""

NeMoGymResponseInput: TypeAlias = list[NeMoGymResponseInputItem]
"""A request's `input` as a list."""

NeMoGymResponseOutputItem: TypeAlias = Annotated[
    NeMoGymResponseOutputMessage
    | NeMoGymResponseFunctionToolCall
    | NeMoGymResponseReasoningItem
    | NeMoGymFunctionCallOutput
    | NeMoGymEasyInputMessage
    | NeMoGymMessage
    | SDKModel,
    Chosen(_choose_output_item, keep=_kept_on_output),
]
"""An item of a response's `output`: what a model writes, and the inputs that an agent adds to a whole trajectory."""

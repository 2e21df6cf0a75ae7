"""Items of a Responses conversation that this package reads and writes itself, and their training variants.

Hosted tool items keep the SDK's own classes (`unions.py`).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, model_validator

from nemo_gym.servers.openai_types.parts import (
    InputPart,
    ItemModel,
    MessagePart,
    NeMoGymReasoningText,
    NeMoGymSummary,
    OutputPart,
)

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]
Phase: TypeAlias = Literal["commentary", "final_answer"]


class NeMoGymEasyInputMessage(ItemModel):
    """A message of any role, its content a string or a list of parts."""

    content: str | list[MessagePart]
    role: Literal["user", "assistant", "system", "developer"]
    type: Literal["message"] = "message"
    phase: Phase | None = None


class NeMoGymMessage(ItemModel):
    """An input message that carries a status; never of the assistant."""

    content: list[InputPart]
    role: Literal["user", "system", "developer"]
    status: ItemStatus = "completed"
    type: Literal["message"] = "message"


class NeMoGymResponseOutputMessage(ItemModel):
    """A message that the model wrote."""

    id: str
    content: list[OutputPart]
    role: Literal["assistant"] = "assistant"
    status: ItemStatus = "completed"
    type: Literal["message"] = "message"
    phase: Phase | None = None

    def model_post_init(self, context: Any, /) -> None:
        """Mark `type` and `role` as set: without them the next reader cannot choose this class."""
        self.__pydantic_fields_set__.update(("type", "role"))


class NeMoGymResponseFunctionToolCall(ItemModel):
    """A function call of the model; `arguments` is JSON text, which the model may have got wrong."""

    arguments: str
    call_id: str
    name: str
    type: Literal["function_call"] = "function_call"
    id: str | None = None
    status: ItemStatus | None = None
    namespace: str | None = None


class NeMoGymFunctionCallOutput(ItemModel):
    """The answer to a function call."""

    call_id: str
    output: str | list[InputPart]
    type: Literal["function_call_output"] = "function_call_output"
    id: str | None = None
    status: ItemStatus | None = None


class NeMoGymResponseReasoningItem(ItemModel):
    """Reasoning of the model: its summary, its raw text when known, and the opaque form that is replayed.

    There is no status: providers send it as null and refuse the null on replay, so it is dropped on reading.
    """

    id: str
    summary: list[NeMoGymSummary]
    type: Literal["reasoning"] = "reasoning"
    encrypted_content: str | None = None
    content: list[NeMoGymReasoningText] | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_status(cls, value: Any) -> Any:
        if isinstance(value, dict) and "status" in value:
            return {key: item for key, item in value.items() if key != "status"}
        return value


class TokenIDLogProbMixin(BaseModel):
    """What training needs of a generated item: token ids of the prompt and of the generation, and log probabilities.

    `generation_token_ids` and `generation_log_probs` run in parallel. `routed_experts` is per token, layer and slot, or
    the provider's own encoding of it; None when not recorded.
    """

    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float]
    routed_experts: str | list[list[list[int]]] | None = None


TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
"""The three fields that make an item trainable: all of them, or none."""


class NeMoGymEasyInputMessageForTraining(NeMoGymEasyInputMessage, TokenIDLogProbMixin):
    """`NeMoGymEasyInputMessage` with token ids."""


class NeMoGymMessageForTraining(NeMoGymMessage, TokenIDLogProbMixin):
    """`NeMoGymMessage` with token ids."""


class NeMoGymResponseOutputMessageForTraining(NeMoGymResponseOutputMessage, TokenIDLogProbMixin):
    """`NeMoGymResponseOutputMessage` with token ids."""


class NeMoGymResponseFunctionToolCallForTraining(NeMoGymResponseFunctionToolCall, TokenIDLogProbMixin):
    """`NeMoGymResponseFunctionToolCall` with token ids."""


class NeMoGymResponseReasoningItemForTraining(NeMoGymResponseReasoningItem, TokenIDLogProbMixin):
    """`NeMoGymResponseReasoningItem` with token ids."""


RESPONSES_TO_TRAIN: dict[type[BaseModel], type[BaseModel]] = {
    NeMoGymEasyInputMessage: NeMoGymEasyInputMessageForTraining,
    NeMoGymMessage: NeMoGymMessageForTraining,
    NeMoGymResponseOutputMessage: NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseFunctionToolCall: NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseReasoningItem: NeMoGymResponseReasoningItemForTraining,
}
"""Item class -> the same item with token ids."""


def training_variant_of(cls: type[BaseModel]) -> type[BaseModel]:
    """Return the class that adds token ids to `cls`; raises NotImplementedError when items of `cls` have none."""
    if cls in RESPONSES_TO_TRAIN:
        return RESPONSES_TO_TRAIN[cls]
    if cls in RESPONSES_TO_TRAIN.values():
        return cls
    raise NotImplementedError(f"`{cls.__name__}` has no training variant")

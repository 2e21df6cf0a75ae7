"""Content parts: what a message, or a tool's answer, is made of."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, TypeAlias

from openai.types.responses import ResponseInputFile, ResponseInputImage, ResponseInputText
from openai.types.responses.response_input_audio import ResponseInputAudio
from pydantic import BaseModel, ConfigDict, model_validator

from nemo_gym.servers.openai_types.choice import Chosen, ItemClass, kind_of, unknown_kind


class ItemModel(BaseModel):
    """Base of our own wire classes: unknown keys are kept, and `type` is written even when it was not given.

    The kind has to survive a dump without unset fields, since the next server chooses the class by it.
    """

    model_config = ConfigDict(extra="allow", defer_build=False)

    def model_post_init(self, context: Any, /) -> None:
        """Mark `type` as set."""
        self.__pydantic_fields_set__.add("type")


class NeMoGymResponseOutputText(ItemModel):
    """Text of the model. `annotations` and `logprobs` are plain JSON; `logprobs` None means that none were recorded."""

    annotations: list[Any]
    text: str
    type: Literal["output_text"] = "output_text"
    logprobs: list[Any] | None = None


class NeMoGymResponseOutputRefusal(ItemModel):
    """The model's refusal, as text."""

    refusal: str
    type: Literal["refusal"] = "refusal"


class NeMoGymSummary(ItemModel):
    """One part of a reasoning summary."""

    text: str
    type: Literal["summary_text"] = "summary_text"


class NeMoGymReasoningText(ItemModel):
    """One part of raw reasoning."""

    text: str
    type: Literal["reasoning_text"] = "reasoning_text"


class NeMoGymResponseInputVideo(ItemModel):
    """A video for the model: exactly one of `video_url` and `video`, not empty."""

    type: Literal["input_video"] = "input_video"
    video_url: str | None = None
    video: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> NeMoGymResponseInputVideo:
        given = [value for value in (self.video_url, self.video) if value is not None]
        if len(given) != 1 or not given[0]:
            raise ValueError("`input_video` needs exactly one of `video_url` and `video`, and it must not be empty")
        return self


_INPUT_PARTS: dict[str, ItemClass] = {
    "input_text": ResponseInputText,
    "input_image": ResponseInputImage,
    "input_file": ResponseInputFile,
    "input_audio": ResponseInputAudio,
    "input_video": NeMoGymResponseInputVideo,
}
_OUTPUT_PARTS: dict[str, ItemClass] = {
    "output_text": NeMoGymResponseOutputText,
    "refusal": NeMoGymResponseOutputRefusal,
}


def _choose_input_part(part: dict[str, Any]) -> ItemClass:
    cls = _INPUT_PARTS.get(kind_of(part))
    if cls is None:
        raise unknown_kind("content part", part)
    if cls is ResponseInputImage:
        part.setdefault("detail", "auto")  # optional on the wire, required by the SDK's class
    return cls


def _choose_output_part(part: dict[str, Any]) -> ItemClass:
    cls = _OUTPUT_PARTS.get(kind_of(part))
    if cls is None:
        raise unknown_kind("content part of an assistant message", part)
    return cls


def _choose_message_part(part: dict[str, Any]) -> ItemClass:
    """Choose for a message without an id, where a client may replay what the assistant wrote."""
    if kind_of(part) in _OUTPUT_PARTS:
        if part["type"] == "output_text":
            part.setdefault("annotations", [])
        return _choose_output_part(part)
    return _choose_input_part(part)


@cache
def _input_classes() -> tuple[ItemClass, ...]:
    return tuple(_INPUT_PARTS.values())


@cache
def _output_classes() -> tuple[ItemClass, ...]:
    return tuple(_OUTPUT_PARTS.values())


@cache
def _message_classes() -> tuple[ItemClass, ...]:
    return (*_input_classes(), *_output_classes())


InputPart: TypeAlias = Annotated[
    ResponseInputText | ResponseInputImage | ResponseInputFile | ResponseInputAudio | NeMoGymResponseInputVideo,
    Chosen(_choose_input_part, keep=_input_classes),
]
"""A part of what is given to the model."""

OutputPart: TypeAlias = Annotated[
    NeMoGymResponseOutputText | NeMoGymResponseOutputRefusal,
    Chosen(_choose_output_part, keep=_output_classes),
]
"""A part of what the model wrote."""

MessagePart: TypeAlias = Annotated[
    ResponseInputText
    | ResponseInputImage
    | ResponseInputFile
    | ResponseInputAudio
    | NeMoGymResponseInputVideo
    | NeMoGymResponseOutputText
    | NeMoGymResponseOutputRefusal,
    Chosen(_choose_message_part, keep=_message_classes),
]
"""A part of an input message of any role."""

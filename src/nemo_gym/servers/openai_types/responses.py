"""`Response`, and the request that makes one."""

from __future__ import annotations

from typing import Any, Literal

from openai.types.responses import Response
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nemo_gym.servers.openai_types.unions import NeMoGymResponseInput, NeMoGymResponseOutputItem, normalise_tool
from nemo_gym.servers.openai_types.usage import NeMoGymResponseUsage

_NULL_IS_ABSENT = ("parallel_tool_calls", "tool_choice", "tools")


class NeMoGymResponse(Response):
    """The SDK's `Response`, its output typed by item; unknown keys are kept and readable as attributes.

    An agent may return a whole trajectory in `output`: model items, messages of the user, and tool answers.
    """

    object: Literal["response"] = "response"
    output: list[NeMoGymResponseOutputItem]  # type: ignore[assignment]  # our classes stand in for the SDK's
    usage: NeMoGymResponseUsage | None = None

    @property
    def output_text(self) -> str:
        """Every text that the model wrote, joined without a separator; string content counts as one text."""
        texts: list[str] = []
        for item in self.output:
            if getattr(item, "type", None) != "message" or getattr(item, "role", None) != "assistant":
                continue
            content = getattr(item, "content", None)
            if isinstance(content, str):
                texts.append(content)
            else:
                texts.extend(part.text for part in content or () if part.type == "output_text")
        return "".join(texts)


class NeMoGymResponseCreateParamsNonStreaming(BaseModel):
    """A request for one `Response`, not streamed. Unknown top-level keys are refused.

    Null `tools`, `tool_choice` and `parallel_tool_calls` mean that they are absent. Tools and other settings are plain
    JSON objects; what a setting may hold is for the model's provider to judge.
    """

    model_config = ConfigDict(extra="forbid")

    input: str | NeMoGymResponseInput
    background: bool | None = None
    include: list[str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    model: str | None = None
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    service_tier: str | None = None
    store: bool | None = None
    context_management: list[dict[str, Any]] | None = None
    conversation: str | dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    stream_options: dict[str, Any] | None = None
    temperature: float | None = None
    text: dict[str, Any] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = Field(default_factory=list)
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None
    stream: Literal[False] | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        if isinstance(value, dict) and any(value.get(key, ...) is None for key in _NULL_IS_ABSENT):
            return {key: item for key, item in value.items() if item is not None or key not in _NULL_IS_ABSENT}
        return value

    @field_validator("tools", mode="before")
    @classmethod
    def _tools_as_json(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        dumped = [tool.model_dump(exclude_unset=True) if isinstance(tool, BaseModel) else tool for tool in value]
        return [normalise_tool(tool) for tool in dumped]

    @field_validator("tools", mode="after")
    @classmethod
    def _check_tools(cls, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for index, tool in enumerate(value):
            kind = tool.get("type")
            if not isinstance(kind, str):
                raise ValueError(f"tool {index} has no `type`")
            if kind != "function":
                continue
            missing = [key for key in ("name", "parameters", "strict") if key not in tool]
            if missing:
                raise ValueError(f"function tool {index} lacks {', '.join(f'`{key}`' for key in missing)}")
            if not isinstance(tool["name"], str):
                raise ValueError(f"function tool {index}: `name` must be a string")
            if not isinstance(tool["parameters"], dict | None):
                raise ValueError(f"function tool {index}: `parameters` must be a JSON schema object or null")
        return value

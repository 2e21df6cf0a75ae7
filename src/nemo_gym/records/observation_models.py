"""The observation and trajectory schemas as pydantic models, for people who write agents (A21, A24).

They accept and refuse exactly what `records.evidence` accepts and refuses; a test compares the two. Unknown fields,
numbers out of range, NaN, and values of a neighbouring type are `ValidationError`, in construction and in assignment.
Times are UTC Unix seconds, durations milliseconds unless the name says otherwise; None means unknown, never zero.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator

from nemo_gym.records.conversation import checked_item

Measured: TypeAlias = Annotated[float, Field(ge=0)]
Count: TypeAlias = Annotated[int, Field(ge=0)]


class EvidenceModel(BaseModel):
    """Base of every model here: strict types, no unknown fields, finite numbers, validated on assignment."""

    model_config = ConfigDict(
        extra="forbid", strict=True, validate_assignment=True, allow_inf_nan=False, protected_namespaces=()
    )

    def __setattr__(self, name: str, value: Any) -> None:
        """Assign a value that fits; one that does not is refused, and what was there stays.

        Pydantic alone leaves a value in place when it fits its field and contradicts another one.
        """
        values, given = dict(self.__dict__), set(self.__pydantic_fields_set__)
        try:
            super().__setattr__(name, value)
        except ValidationError:
            self.__dict__.clear()
            self.__dict__.update(values)
            self.__pydantic_fields_set__.intersection_update(given)
            raise


def _conversation_item(item: object) -> dict[str, Any]:
    return checked_item(item.model_dump(mode="json") if isinstance(item, BaseModel) else item)


ConversationItem: TypeAlias = Annotated[
    Any,
    BeforeValidator(_conversation_item),
    WithJsonSchema({"type": "object", "description": "One item of the Responses API, as it is sent to a model."}),
]
"""One item of the Responses API, as an object or as a model of it (kept as an object)."""


class ModelServerRef(EvidenceModel):
    """Which model server of the run."""

    type: Literal["responses_api_models"] = Field(description="The kind of server; a constant.")
    name: str = Field(description="The model server's instance name in the configuration.")


def _server_reference(value: object) -> object:
    if isinstance(value, BaseModel) and not isinstance(value, ModelServerRef):
        return value.model_dump()
    return value


ServerReference: TypeAlias = Annotated[ModelServerRef, BeforeValidator(_server_reference)]
"""A `ModelServerRef`, also given as the reference that a server's configuration holds."""


class ModelCallRef(EvidenceModel):
    """Names one captured call, by `model_call_id` or by `model_ref` with `response_id`; all that is given must fit."""

    model_call_id: str | None = Field(
        default=None,
        description="The id in the answer's header `x-ng-model-call-id`; null if the other two name the call.",
    )
    model_ref: ServerReference | None = Field(
        default=None, description="The model server that answered; null if not given."
    )
    response_id: str | None = Field(default=None, description="The `id` of the response body; null if not given.")

    @model_validator(mode="after")
    def _names_a_call(self) -> Self:
        if not self.model_call_id and not (self.model_ref is not None and self.response_id):
            raise ValueError("a model call reference needs `model_call_id`, or `model_ref` with `response_id`")
        return self


class ObservationGap(EvidenceModel):
    """A fact that is missing, and why. The three fields together are its identity."""

    code: str = Field(description="What is missing, in lower snake case; unknown codes are legal and neutral.")
    invocation_id: str | None = Field(
        default=None, description="The invocation it is about; null for the whole rollout."
    )
    detail: str | None = Field(
        default=None, description="The one thing it is about, such as a tool-call id; null if the code says all."
    )


class AgentInvocation(EvidenceModel):
    """One conversation of the root agent or of a subagent."""

    kind: Literal["agent_invocation"] = Field(default="agent_invocation", description="Marks the record; a constant.")
    invocation_id: str = Field(description="Stable id, unique in the rollout.")
    parent_invocation_id: str | None = Field(
        default=None, description="The invocation that started this one, which may be unseen; null for a root."
    )
    spawned_by_tool_call_id: str | None = Field(
        default=None, description="The parent's tool call that started this one; null for a root, or if not known."
    )
    status: Literal["completed", "failed", "incomplete", "unknown"] = Field(
        default="unknown", description="How it ended as the harness reports it, never inferred from the reward."
    )
    duration_ms: Measured | None = Field(
        default=None, description="Measured duration, milliseconds, at least 0; null if not measured."
    )
    error_type: str | None = Field(
        default=None, description="Why it failed or stopped short, as a short name; null if it did not, or not known."
    )
    model_calls: list[ModelCallRef] = Field(
        default=[], description="The calls this invocation owns, helper calls included."
    )
    conversation: list[ConversationItem] = Field(
        default=[], description="Responses API items in order: what the model saw and produced, tool results included."
    )


class ToolCallObservation(EvidenceModel):
    """One execution interval of a tool, measured at a boundary that the agent owns."""

    kind: Literal["tool_call"] = Field(default="tool_call", description="Marks the record; a constant.")
    invocation_id: str = Field(description="The invocation whose conversation holds the call.")
    tool_call_id: str = Field(description="The `call_id` in that conversation.")
    sandbox_id: str | None = Field(
        default=None,
        description="The enclosing sandbox, which concurrent calls share; null if there is none, or not known.",
    )
    tool_name: str | None = Field(default=None, description="The tool's name; null if not known.")
    started_at: float | None = Field(default=None, description="Start, UTC Unix seconds; null if not measured.")
    completed_at: float | None = Field(
        default=None, description="End, UTC Unix seconds, not before `started_at`; null if not measured."
    )
    duration_ms: Measured | None = Field(
        default=None, description="Measured duration, milliseconds, at least 0; null if not measured."
    )
    timing_source: Literal["executor", "artifact", "harness"] | None = Field(
        default=None,
        description="executor: around the execution; harness: its events; artifact: a saved file; null: not timed.",
    )
    status: Literal["completed", "failed", "timeout", "cancelled", "incomplete", "unknown"] = Field(
        default="unknown", description="How the execution ended."
    )
    error_type: str | None = Field(
        default=None, description="Why it failed, as a short name; null if it did not, or not known."
    )

    @model_validator(mode="after")
    def _ends_after_it_starts(self) -> Self:
        if self.started_at is not None and self.completed_at is not None and self.completed_at < self.started_at:
            raise ValueError("`completed_at` is before `started_at`")
        return self


class ContextCompactionObservation(EvidenceModel):
    """One attempt of a harness to shorten its context."""

    kind: Literal["context_compaction"] = Field(
        default="context_compaction", description="Marks the record; a constant."
    )
    invocation_id: str = Field(description="The invocation whose context it is.")
    observed_at: float | None = Field(
        default=None, description="When it was seen, UTC Unix seconds; null if not known."
    )
    trigger: str | None = Field(
        default=None, description="Why it happened, in the harness's words (auto, manual, overflow); null if not known."
    )
    tokens_before: Count | None = Field(
        default=None, description="Context size before, tokens, in the harness's accounting; null if not known."
    )
    tokens_after: Count | None = Field(
        default=None, description="Context size after, tokens, maybe counted differently; null if not known."
    )
    outcome: Literal["completed", "failed", "aborted", "unknown"] = Field(
        default="unknown", description="How it ended."
    )
    summary: str | None = Field(
        default=None, description="The text that replaced the dropped items; null if not known."
    )
    first_kept_item_id: str | None = Field(
        default=None, description="Id of the first item that stayed; null if not known."
    )
    before_model_call: ModelCallRef | None = Field(
        default=None, description="This invocation's last call before it; null if there was none, or not known."
    )
    model_calls: list[ModelCallRef] = Field(
        default=[], description="Calls spent on it; the same invocation must own them."
    )
    after_model_call: ModelCallRef | None = Field(
        default=None, description="This invocation's first call after it; null if there was none, or not known."
    )


class SandboxObservation(EvidenceModel):
    """What a sandbox measured about one run inside it; never a configured limit, never split over tools."""

    kind: Literal["sandbox"] = Field(default="sandbox", description="Marks the record; a constant.")
    role: Literal["agent", "verifier", "environment"] = Field(description="What ran in it.")
    provider: str | None = Field(default=None, description="The sandbox provider; null if not known.")
    sandbox_id: str | None = Field(default=None, description="The provider's id of the sandbox; null if not known.")
    outcome: Literal["completed", "failed", "timeout", "oom", "sandbox_error", "cancelled", "unknown"] = Field(
        default="unknown", description="How the run ended."
    )
    exit_code: int | None = Field(
        default=None, description="The process's exit code; null if it has none, or not known."
    )
    wall_time_s: Measured | None = Field(default=None, description="Measured wall time, seconds; null if not measured.")
    cpu_time_s: Measured | None = Field(
        default=None, description="Measured CPU time, seconds, cumulative; null if not measured."
    )
    peak_memory_mib: Measured | None = Field(
        default=None, description="Measured high-water mark, MiB; null if not measured."
    )
    resource_usage_source: str | None = Field(
        default=None, description="What measured it, such as cgroup; null if nothing did."
    )
    error_type: str | None = Field(
        default=None, description="Why it failed, as a short name; null if it did not, or not known."
    )


Observation: TypeAlias = Annotated[
    AgentInvocation | ToolCallObservation | ContextCompactionObservation | SandboxObservation,
    Field(discriminator="kind"),
]


class AgentObservationBundle(EvidenceModel):
    """Everything one agent observed in one rollout: what it returns as `ng_agent_observations`."""

    source: str = Field(description="The adapter's name.")
    records: list[Observation] = Field(default=[], description="The observations; their order means nothing.")
    gaps: list[ObservationGap] = Field(default=[], description="What could not be observed.")

    @model_validator(mode="after")
    def _invocations_form_a_forest(self) -> Self:
        invocations = [record for record in self.records if isinstance(record, AgentInvocation)]
        _check_unique("invocation_id", [item.invocation_id for item in invocations])
        parents = {item.invocation_id: item.parent_invocation_id for item in invocations}
        for start, parent in parents.items():
            seen, node = {start}, parent
            while node is not None and node in parents:
                if node in seen:
                    raise ValueError(f"invocation `{node}` is its own ancestor")
                seen.add(node)
                node = parents[node]
        return self


class TrajectoryTokenStats(EvidenceModel):
    """Token counts of one call as its provider reported them."""

    prompt_tokens: Count | None = Field(
        default=None, description="Full prompt size, tokens, cached ones included; null if not reported."
    )
    completion_tokens: Count | None = Field(
        default=None, description="Generated tokens, reasoning included; null if not reported."
    )
    reasoning_tokens: Count | None = Field(
        default=None, description="The part of the completion that is reasoning, tokens; null if not reported."
    )
    total_tokens: Count | None = Field(default=None, description="Prompt and completion, tokens; null if not reported.")
    cached_tokens: Count | None = Field(
        default=None, description="The part of the prompt read from a cache, tokens; null if not reported."
    )


class TrajectoryResponseMetadata(EvidenceModel):
    """Where a call's answer came from and how it ended."""

    response_id: str | None = Field(default=None, description="The `id` of the response body; null if it has none.")
    model_ref: ServerReference | None = Field(
        default=None, description="The model server that answered; null if not known."
    )
    model: str | None = Field(
        default=None, description="The model's name in the response, else in the request; null if neither says it."
    )
    dialect: str | None = Field(
        default=None, description="The API shape: responses, chat or messages; null if not known."
    )
    status_code: int | None = Field(
        default=None, description="HTTP status that capture saw sent, else the exception's; null if neither."
    )
    response_status: str | None = Field(
        default=None, description="The response body's own `status`; null if it has none."
    )
    finish_reason: str | None = Field(
        default=None, description="Why generation stopped, in the provider's word; null if not known."
    )
    upstream_attempted: bool | None = Field(
        default=None, description="Whether the provider was called; null if not known."
    )
    response_source: Literal["upstream", "local"] | None = Field(
        default=None, description="Who made the answer; null if not known."
    )
    upstream_status_code: int | None = Field(
        default=None, description="HTTP status that the provider gave; null if it gave none."
    )
    local_response_reason: str | None = Field(
        default=None, description="Why the model server answered by itself; null if it did not."
    )
    error_category: str | None = Field(default=None, description="The kind of failure; null when the call worked.")
    latency_ttft_ms: Measured | None = Field(
        default=None, description="Time to the first streamed byte, milliseconds; null if not measured."
    )


class TrajectoryModelCall(EvidenceModel):
    """One exchange with a model, payloads included."""

    model_call_id: str | None = Field(default=None, description="The id that the model server made; null if not known.")
    started_at: float | None = Field(default=None, description="Start, UTC Unix seconds; null if not measured.")
    completed_at: float | None = Field(default=None, description="End, UTC Unix seconds; null if not measured.")
    duration_ms: Measured | None = Field(
        default=None, description="Duration by a monotonic clock, milliseconds; null if not measured."
    )
    request: Any = Field(default=None, description="Request body, text when it was no JSON object; null if not saved.")
    response: Any = Field(
        default=None,
        description="Response body, text when it was no JSON object; null if not saved, or there was none.",
    )
    response_metadata: TrajectoryResponseMetadata = Field(
        default_factory=TrajectoryResponseMetadata, description="Where the answer came from."
    )
    token_stats: TrajectoryTokenStats = Field(
        default_factory=TrajectoryTokenStats, description="Token counts, null where not reported."
    )


class TrajectoryTurn(EvidenceModel):
    """One semantic decision of an invocation, as its producer counts them."""

    invocation_id: str = Field(description="The invocation that decided.")
    task_id: str = Field(description="The trajectory's task id.")
    rollout_id: str = Field(description="The trajectory's rollout id.")
    turn_no: Annotated[int, Field(ge=1)] = Field(description="Number inside the invocation, from 1.")
    timestamp: float = Field(description="When the turn began, UTC Unix seconds.")
    question: Any = Field(default=None, description="What the model was asked; null if not known.")
    answer: Any = Field(default=None, description="What it answered, tool calls included; null if not known.")
    reasoning_content: Any = Field(default=None, description="The reasoning that was shown; null if none was.")
    resolved: bool | None = Field(
        default=None, description="Whether the task was solved after this turn; null if not known."
    )
    step_count: Count = Field(description="The producer's cumulative steps inside the invocation.")
    model_calls: list[ModelCallRef] = Field(default=[], description="The calls that this turn consists of.")


class TrajectoryToolCall(ToolCallObservation):
    """A tool call with the output that the model saw."""

    output: Any = Field(default=None, description="What the model saw as the result; null if not known.")


class TrajectoryRecord(EvidenceModel):
    """The joined evidence of one rollout: what a record holds as `ng_trajectory`."""

    schema_version: Literal["1.0"] = Field(default="1.0", description="Version of this schema.")
    task_id: str = Field(description="Which task.")
    rollout_id: str = Field(description="Which try of it, retry suffix included.")
    invocations: list[AgentInvocation] = Field(default=[], description="Root and subagent conversations.")
    turns: list[TrajectoryTurn] = Field(default=[], description="Semantic turns that a producer stated; never derived.")
    model_calls: list[TrajectoryModelCall] = Field(default=[], description="Every captured or produced call.")
    tool_calls: list[TrajectoryToolCall] = Field(default=[], description="Tool executions with outputs.")
    gaps: list[ObservationGap] = Field(default=[], description="What is missing, and why.")

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Self:
        _check_unique("invocation_id", [item.invocation_id for item in self.invocations])
        _check_unique("model_call_id", [call.model_call_id for call in self.model_calls if call.model_call_id])
        _check_unique("(invocation_id, turn_no)", [(turn.invocation_id, turn.turn_no) for turn in self.turns])
        for index, turn in enumerate(self.turns):
            if turn.task_id != self.task_id or turn.rollout_id != self.rollout_id:
                raise ValueError(f"turns[{index}] belongs to another task or rollout than its trajectory")
        return self


def _check_unique(what: str, values: list[Any]) -> None:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} `{value}` occurs twice")
        seen.add(value)


__all__ = [
    "AgentInvocation",
    "AgentObservationBundle",
    "ContextCompactionObservation",
    "ModelCallRef",
    "ModelServerRef",
    "ObservationGap",
    "SandboxObservation",
    "ToolCallObservation",
    "TrajectoryModelCall",
    "TrajectoryRecord",
    "TrajectoryResponseMetadata",
    "TrajectoryTokenStats",
    "TrajectoryToolCall",
    "TrajectoryTurn",
]

"""Evidence records as the core uses them: strict, immutable, cheap to make.

`AgentObservationBundle` is what an agent returns as `ng_agent_observations`; `TrajectoryRecord` is what collection
writes as `ng_trajectory` (A21, A24). Unknown fields, numbers out of range, NaN, and values of a neighbouring type (a
bool or a text for an int) are refused; `read` raises `ValidationError` and names the path of the bad value. Payloads
(`conversation` items, `request`, `response`, `question`, `answer`, `output`) are kept by reference, never copied.

`records.observation_models` holds the same schemas as pydantic models, with each field described, for people who write
agents. Times are UTC Unix seconds, durations milliseconds; None means unknown, never zero.
"""

from __future__ import annotations

import copy
import functools
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import ValidationError

from nemo_gym.records.codec import Encoded, JsonObject
from nemo_gym.records.conversation import checked_items

SCHEMA_VERSION: Literal["1.0"] = "1.0"

_LARGEST = 1.7976931348623157e308
Finite: TypeAlias = Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
"""Any number but NaN and the infinities: NaN fails every bound."""
Measured: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=_LARGEST)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]

InvocationStatus: TypeAlias = Literal["completed", "failed", "incomplete", "unknown"]
ToolStatus: TypeAlias = Literal["completed", "failed", "timeout", "cancelled", "incomplete", "unknown"]
TimingSource: TypeAlias = Literal["executor", "artifact", "harness"]
CompactionOutcome: TypeAlias = Literal["completed", "failed", "aborted", "unknown"]
SandboxRole: TypeAlias = Literal["agent", "verifier", "environment"]
SandboxOutcome: TypeAlias = Literal["completed", "failed", "timeout", "oom", "sandbox_error", "cancelled", "unknown"]


def says(text: str) -> msgspec.Meta:
    """Return what describes a field in the JSON Schema: its meaning, its unit, and what null means."""
    return msgspec.Meta(description=text)


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every evidence record.

    The small ones, which hold no payload and so no cycle, are left out of garbage collection (`gc=False`).
    """


class ModelServerRef(Evidence, frozen=True, kw_only=True, gc=False):
    """Which model server of the run."""

    type: Annotated[Literal["responses_api_models"], says("The kind of server; a constant.")]
    name: Annotated[str, says("The model server's instance name in the configuration.")]


class ModelCallRef(Evidence, frozen=True, kw_only=True, gc=False):
    """Names one captured call: by id, or by the exact pair of server and response id; all that is given must fit."""

    model_call_id: str | None = None
    model_ref: ModelServerRef | None = None
    response_id: str | None = None

    def __post_init__(self) -> None:
        if not self.model_call_id and not (self.model_ref is not None and self.response_id):
            raise ValueError("a model call reference needs `model_call_id`, or `model_ref` with `response_id`")


class ObservationGap(Evidence, frozen=True, kw_only=True, gc=False):
    """A fact that is missing, and why. The three fields together are its identity."""

    code: str
    invocation_id: str | None = None
    detail: str | None = None


class AgentInvocation(Evidence, frozen=True, kw_only=True, tag_field="kind", tag="agent_invocation"):
    """One conversation of the root agent or of a subagent."""

    invocation_id: str
    parent_invocation_id: str | None = None
    spawned_by_tool_call_id: str | None = None
    status: InvocationStatus = "unknown"
    duration_ms: Measured | None = None
    error_type: str | None = None
    model_calls: list[ModelCallRef] = []
    conversation: list[Any] = []

    def __post_init__(self) -> None:
        items = checked_items(self.conversation)
        if items is not self.conversation:
            msgspec.structs.force_setattr(self, "conversation", items)


class ToolCallObservation(Evidence, frozen=True, kw_only=True, tag_field="kind", tag="tool_call"):
    """One execution interval of a tool, measured at a boundary that the agent owns."""

    invocation_id: str
    tool_call_id: str
    sandbox_id: str | None = None
    tool_name: str | None = None
    started_at: Finite | None = None
    completed_at: Finite | None = None
    duration_ms: Measured | None = None
    timing_source: TimingSource | None = None
    status: ToolStatus = "unknown"
    error_type: str | None = None

    def __post_init__(self) -> None:
        started, completed = self.started_at, self.completed_at
        if started is not None and completed is not None and completed < started:
            raise ValueError("`completed_at` is before `started_at`")


class ContextCompactionObservation(Evidence, frozen=True, kw_only=True, tag_field="kind", tag="context_compaction"):
    """One attempt of a harness to shorten its context."""

    invocation_id: str
    observed_at: Finite | None = None
    trigger: str | None = None
    tokens_before: Count | None = None
    tokens_after: Count | None = None
    outcome: CompactionOutcome = "unknown"
    summary: str | None = None
    first_kept_item_id: str | None = None
    before_model_call: ModelCallRef | None = None
    model_calls: list[ModelCallRef] = []
    after_model_call: ModelCallRef | None = None


class SandboxObservation(Evidence, frozen=True, kw_only=True, tag_field="kind", tag="sandbox"):
    """What a sandbox measured about one run inside it; seconds and MiB."""

    role: SandboxRole
    provider: str | None = None
    sandbox_id: str | None = None
    outcome: SandboxOutcome = "unknown"
    exit_code: int | None = None
    wall_time_s: Measured | None = None
    cpu_time_s: Measured | None = None
    peak_memory_mib: Measured | None = None
    resource_usage_source: str | None = None
    error_type: str | None = None


Observation: TypeAlias = AgentInvocation | ToolCallObservation | ContextCompactionObservation | SandboxObservation


class AgentObservationBundle(Evidence, frozen=True, kw_only=True):
    """Everything one agent observed in one rollout. The order of `records` means nothing."""

    source: str
    records: list[Observation] = []
    gaps: list[ObservationGap] = []

    def __post_init__(self) -> None:
        invocations = [record for record in self.records if type(record) is AgentInvocation]
        _check_unique_invocations(invocations)
        _check_no_parent_cycle({item.invocation_id: item.parent_invocation_id for item in invocations})


class TrajectoryTokenStats(Evidence, frozen=True, kw_only=True, gc=False):
    """Token counts of one call; `prompt_tokens` is the full prompt, of which `cached_tokens` is a part."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    total_tokens: Count | None = None
    cached_tokens: Count | None = None


class TrajectoryResponseMetadata(Evidence, frozen=True, kw_only=True, gc=False):
    """Where a call's answer came from and how it ended."""

    response_id: str | None = None
    model_ref: ModelServerRef | None = None
    model: str | None = None
    dialect: str | None = None
    status_code: int | None = None
    response_status: str | None = None
    finish_reason: str | None = None
    upstream_attempted: bool | None = None
    response_source: Literal["upstream", "local"] | None = None
    upstream_status_code: int | None = None
    local_response_reason: str | None = None
    error_category: str | None = None
    latency_ttft_ms: Measured | None = None


class TrajectoryModelCall(Evidence, frozen=True, kw_only=True):
    """One exchange with a model, payloads included."""

    model_call_id: str | None = None
    started_at: Finite | None = None
    completed_at: Finite | None = None
    duration_ms: Measured | None = None
    request: Any = None
    response: Any = None
    response_metadata: TrajectoryResponseMetadata = TrajectoryResponseMetadata()
    token_stats: TrajectoryTokenStats = TrajectoryTokenStats()


class TrajectoryTurn(Evidence, frozen=True, kw_only=True):
    """One semantic decision of an invocation, as its producer counts them."""

    invocation_id: str
    task_id: str
    rollout_id: str
    turn_no: Annotated[int, msgspec.Meta(ge=1)]
    timestamp: Finite
    question: Any = None
    answer: Any = None
    reasoning_content: Any = None
    resolved: bool | None = None
    step_count: Count
    model_calls: list[ModelCallRef] = []


class TrajectoryToolCall(ToolCallObservation, frozen=True, kw_only=True):
    """A tool call with the output that the model saw."""

    output: Any = None


class TrajectoryRecord(Evidence, frozen=True, kw_only=True):
    """The joined evidence of one rollout."""

    schema_version: Literal["1.0"] = SCHEMA_VERSION
    task_id: str
    rollout_id: str
    invocations: list[AgentInvocation] = []
    turns: list[TrajectoryTurn] = []
    model_calls: list[TrajectoryModelCall] = []
    tool_calls: list[TrajectoryToolCall] = []
    gaps: list[ObservationGap] = []

    def __post_init__(self) -> None:
        _check_unique_invocations(self.invocations)
        call_ids = [call.model_call_id for call in self.model_calls if call.model_call_id]
        _check_unique("model_call_id", call_ids)
        _check_unique("(invocation_id, turn_no)", [(turn.invocation_id, turn.turn_no) for turn in self.turns])
        task_id, rollout_id = self.task_id, self.rollout_id
        for index, turn in enumerate(self.turns):
            if turn.task_id != task_id or turn.rollout_id != rollout_id:
                raise ValueError(f"turns[{index}] belongs to another task or rollout than its trajectory")


_EvidenceT = TypeVar("_EvidenceT", bound=Evidence)


def read(kind: type[_EvidenceT], data: object) -> _EvidenceT:
    """Return `data` (plain JSON values) as a record of `kind`; raises `ValidationError` naming the bad value's path."""
    return msgspec.convert(data, kind, strict=True)


_RefersT = TypeVar("_RefersT", AgentInvocation, ContextCompactionObservation, TrajectoryTurn)


def with_model_calls(record: _RefersT, refs: list[ModelCallRef]) -> _RefersT:
    """Return a copy of the record that refers to `refs`; what else it holds was checked when it was made."""
    copied = copy.copy(record)
    msgspec.structs.force_setattr(copied, "model_calls", refs)
    return copied


def dump(record: Evidence) -> JsonObject:
    """Return the record as a plain object: every field present, unknown ones null, payloads the same objects."""
    return _DUMPS[type(record)](record)


def dump_to_write(record: AgentObservationBundle | TrajectoryRecord) -> JsonObject:
    """Do what `dump` does for what is only going to be written: its lists of records are `codec.Encoded`.

    Not `gaps`, which is looked at also then, nor `model_calls`, whose bodies may be encoded already. A list that holds
    what only the codec can write (a lone surrogate, a value that is not JSON) is dumped.
    """
    out = _asdict(record)
    for name in _shape(type(record))[2]:
        values = out[name]
        if name in ("gaps", "model_calls"):
            out[name] = [_DUMPS[type(value)](value) for value in values]
            continue
        try:
            out[name] = Encoded(_encode(values))
        except (TypeError, ValueError, OverflowError, RecursionError):
            out[name] = [_DUMPS[type(value)](value) for value in values]
    return out


_encode = msgspec.json.Encoder().encode
_asdict: Callable[[Evidence], JsonObject] = msgspec.structs.asdict


class _Dumps(dict[type[Evidence], Callable[[Evidence], JsonObject]]):
    """What dumps a record of each class; made when the first one comes, since a rollout has a hundred records."""

    def __missing__(self, kind: type[Evidence]) -> Callable[[Evidence], JsonObject]:
        self[kind] = _dump_of(kind)
        return self[kind]


_DUMPS = _Dumps()


def _dump_of(kind: type[Evidence]) -> Callable[[Evidence], JsonObject]:
    tag, single, several = _shape(kind)
    if tag is None and not single and not several:
        return _asdict

    def dump_one(record: Evidence) -> JsonObject:
        out = _asdict(record) if tag is None else {"kind": tag, **_asdict(record)}
        for name in single:
            value = out[name]
            if value is not None:
                out[name] = _DUMPS[type(value)](value)
        for name in several:
            values = out[name]
            out[name] = [_DUMPS[type(value)](value) for value in values] if values else []
        return out

    return dump_one


@functools.cache
def _shape(kind: type[Evidence]) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    """Return the `kind` of a record class, its fields that hold one record, and those that hold lists of them."""
    tag = kind.__struct_config__.tag
    assert tag is None or isinstance(tag, str)
    holding = [field for field in msgspec.structs.fields(kind) if _holds_records(field.type)]
    several = tuple(field.name for field in holding if typing.get_origin(field.type) is list)
    return tag, tuple(field.name for field in holding if field.name not in several), several


def _holds_records(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, Evidence):
        return True
    return any(_holds_records(part) for part in typing.get_args(hint))


def _check_unique(what: str, values: Sequence[object]) -> None:
    if len(set(values)) == len(values):
        return
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} `{value}` occurs twice")
        seen.add(value)


def _check_unique_invocations(invocations: Sequence[AgentInvocation]) -> None:
    _check_unique("invocation_id", [item.invocation_id for item in invocations])


def _check_no_parent_cycle(parents: dict[str, str | None]) -> None:
    safe: set[str] = set()
    for start in parents:
        chain: dict[str, None] = {}
        node: str | None = start
        while node is not None and node in parents and node not in safe:
            if node in chain:
                raise ValueError(f"invocation `{node}` is its own ancestor")
            chain[node] = None
            node = parents[node]
        safe.update(chain)


__all__ = [
    "SCHEMA_VERSION",
    "AgentInvocation",
    "AgentObservationBundle",
    "ContextCompactionObservation",
    "Evidence",
    "ModelCallRef",
    "ModelServerRef",
    "Observation",
    "ObservationGap",
    "SandboxObservation",
    "ToolCallObservation",
    "TrajectoryModelCall",
    "TrajectoryRecord",
    "TrajectoryResponseMetadata",
    "TrajectoryTokenStats",
    "TrajectoryToolCall",
    "TrajectoryTurn",
    "ValidationError",
    "dump",
    "dump_to_write",
    "read",
    "says",
    "with_model_calls",
]

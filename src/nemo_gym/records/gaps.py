"""The gap codes that this package writes or reads: what each means, and what it makes unobservable.

A gap says that a fact is missing. Codes that are not listed here are legal everywhere and block nothing. `blocks` names
the inputs that a reader must treat as unobserved; `contradicts` marks evidence that disagrees with itself, which is a
finding and not merely missing (A8).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

GapScope: TypeAlias = Literal["rollout", "invocation"]
BlockedInput: TypeAlias = Literal["trajectory", "turns", "model_calls", "model_call_scope"]

REFERENCE_UNMATCHED = "model_call_reference_unmatched"
REFERENCE_AMBIGUOUS = "model_call_reference_ambiguous"
REFERENCE_CONFLICT = "model_call_reference_conflict"
REFERENCE_CODES = frozenset({REFERENCE_UNMATCHED, REFERENCE_AMBIGUOUS, REFERENCE_CONFLICT})
OWNERSHIP_UNAVAILABLE = "model_call_ownership_unavailable"
IDENTITY_DUPLICATE = "model_call_identity_duplicate"
CALL_FIELD_INVALID = "model_call_field_invalid"
CAPTURE_NO_RECORDS = "model_call_capture_no_records"
CAPTURE_RECORDS_UNREADABLE = "model_call_capture_records_unreadable"
CAPTURE_INCOMPLETE = "model_call_capture_incomplete"
CAPTURE_UNREADABLE = "model_call_capture_unreadable"
CAPTURE_GAP_INVALID = "model_call_capture_gap_invalid"
OBSERVATION_JOIN_FAILED = "agent_observation_join_failed"
OBSERVATIONS_INVALID = "agent_observations_invalid"
COMPACTION_MATCH_AMBIGUOUS = "compaction_model_call_match_ambiguous"
COMPACTION_REFERENCE_UNAVAILABLE = "compaction_model_call_reference_unavailable"
PRODUCER_INVALID = "producer_trajectory_invalid"
PRODUCER_IDENTITY_MISMATCH = "producer_trajectory_identity_mismatch"
TRAJECTORY_IDENTITY_INVALID = "trajectory_identity_invalid"
MODEL_CALLS_UNAVAILABLE = "model_calls_unavailable"
TURNS_UNAVAILABLE = "turns_unavailable"
CONVERSATION_UNAVAILABLE = "conversation_unavailable"
TURN_SCOPE_INCOMPLETE = "turn_model_call_scope_incomplete"
PROJECTION_FAILED = "trajectory_projection_failed"
TOOL_TIMING_INVALID = "tool_timing_invalid"
PAYLOADS_REDACTED = "multimodal_history_redacted"


@dataclass(frozen=True, slots=True, kw_only=True)
class GapSpec:
    """One gap code. `detail` is the shape of the gap's detail, with its parameters in braces; "" when it has none."""

    code: str
    meaning: str
    scope: GapScope = "rollout"
    blocks: frozenset[BlockedInput] = frozenset()
    contradicts: bool = False
    detail: str = ""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names in `detail`'s braces, in order."""
        return tuple(part.split("}")[0] for part in self.detail.split("{")[1:])


def _blocks(*inputs: BlockedInput) -> frozenset[BlockedInput]:
    return frozenset(inputs)


def _registry(specs: Iterable[GapSpec]) -> Mapping[str, GapSpec]:
    return MappingProxyType({spec.code: spec for spec in specs})


GAP_REGISTRY: Mapping[str, GapSpec] = _registry(
    (
        GapSpec(
            code=REFERENCE_UNMATCHED,
            meaning="A reference names no captured call, or contradicts the one that has its id.",
            scope="invocation",
            contradicts=True,
            detail="{place}{reference}",
        ),
        GapSpec(
            code=REFERENCE_AMBIGUOUS,
            meaning="A reference fits several captured calls.",
            scope="invocation",
            contradicts=True,
            detail="{place}{reference}",
        ),
        GapSpec(
            code=REFERENCE_CONFLICT,
            meaning="A reference names a call that another invocation owns.",
            scope="invocation",
            contradicts=True,
            detail="{place}{call}",
        ),
        GapSpec(
            code=OWNERSHIP_UNAVAILABLE,
            meaning="No invocation owns a captured call.",
            detail="capture:{call}:call_index={call_index}",
        ),
        GapSpec(
            code=IDENTITY_DUPLICATE,
            meaning="Two captured calls carry one id; the later one is kept without it.",
            detail="{call}",
        ),
        GapSpec(
            code=CALL_FIELD_INVALID,
            meaning="A captured value is not what its field may hold; the field is left unknown.",
            detail="call_index={call_index}:{field}",
        ),
        GapSpec(code=CAPTURE_NO_RECORDS, meaning="Nothing was captured for the rollout."),
        GapSpec(
            code=CAPTURE_RECORDS_UNREADABLE,
            meaning="Some captured lines cannot be read; the others are kept.",
            blocks=_blocks("model_calls"),
            detail="count={count}",
        ),
        GapSpec(
            code=CAPTURE_INCOMPLETE,
            meaning="At least one exchange could not be written.",
            blocks=_blocks("model_calls"),
        ),
        GapSpec(
            code=CAPTURE_UNREADABLE,
            meaning="The capture could not be read.",
            blocks=_blocks("model_calls"),
        ),
        GapSpec(code=CAPTURE_GAP_INVALID, meaning="An entry of the capture's gaps is no gap."),
        GapSpec(
            code=OBSERVATION_JOIN_FAILED, meaning="The observation bundle could not be joined; it is left as it was."
        ),
        GapSpec(
            code=OBSERVATIONS_INVALID,
            meaning="The observation bundle does not fit its schema and is not used.",
            detail="{error}",
        ),
        GapSpec(
            code=COMPACTION_MATCH_AMBIGUOUS,
            meaning="Several captured calls can have written a compaction's summary.",
            scope="invocation",
            detail="candidate_count={count}",
        ),
        GapSpec(
            code=COMPACTION_REFERENCE_UNAVAILABLE,
            meaning="The harness does not say which call wrote a compaction's summary.",
            scope="invocation",
        ),
        GapSpec(
            code=PRODUCER_INVALID,
            meaning="The agent's own trajectory does not fit its schema and is not used.",
            detail="{error}",
        ),
        GapSpec(
            code=PRODUCER_IDENTITY_MISMATCH,
            meaning="The agent's own trajectory names another task or rollout; the row's ids were put in.",
            detail="{fields}",
        ),
        GapSpec(code=TRAJECTORY_IDENTITY_INVALID, meaning="The row's `trajectory_identity` is unusable and ignored."),
        GapSpec(
            code=MODEL_CALLS_UNAVAILABLE,
            meaning="The trajectory has no model call.",
            blocks=_blocks("model_calls"),
        ),
        GapSpec(
            code=TURNS_UNAVAILABLE,
            meaning="No producer stated semantic turns; they are never inferred from calls.",
            blocks=_blocks("turns"),
        ),
        GapSpec(code=CONVERSATION_UNAVAILABLE, meaning="No invocation has a conversation."),
        GapSpec(
            code=TURN_SCOPE_INCOMPLETE,
            meaning="The producer's turns do not name every call that they made.",
            blocks=_blocks("model_call_scope"),
        ),
        GapSpec(
            code=PROJECTION_FAILED,
            meaning="The evidence could not be projected into a trajectory; attached payloads stay.",
            blocks=_blocks("trajectory"),
            detail="{error}",
        ),
        GapSpec(
            code=TOOL_TIMING_INVALID,
            meaning="A tool's end is before its start; the end is left unknown.",
            scope="invocation",
            detail="{tool_call}",
        ),
        GapSpec(code=PAYLOADS_REDACTED, meaning="The producer left images out; payload copies are not attached."),
    )
)
"""Gap code -> what it means."""


def blocked_inputs(codes: Iterable[str]) -> frozenset[BlockedInput]:
    """Return what a record with these gap codes cannot show; unknown codes block nothing."""
    blocked: set[BlockedInput] = set()
    for code in codes:
        spec = GAP_REGISTRY.get(code)
        if spec is not None:
            blocked |= spec.blocks
    return frozenset(blocked)

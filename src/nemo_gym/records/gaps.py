"""The gap codes that this package writes or reads: what each means, and what it makes unobservable.

A gap says that a fact is missing. Codes that are not listed here are legal everywhere and block nothing. `blocks` names
the inputs that a reader must treat as unobserved; `contradicts` marks evidence that disagrees with itself, which is a
finding and not merely missing (A8). The sentences are the one source of what people read about a code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

GapScope: TypeAlias = Literal["rollout", "invocation"]
BlockedInput: TypeAlias = Literal["trajectory", "turns", "model_calls", "model_call_scope"]
GapReporter: TypeAlias = Literal["agent", "capture", "join", "projection"]

REFERENCE_UNMATCHED = "model_call_reference_unmatched"
REFERENCE_AMBIGUOUS = "model_call_reference_ambiguous"
REFERENCE_CONFLICT = "model_call_reference_conflict"
REFERENCE_CODES = frozenset({REFERENCE_UNMATCHED, REFERENCE_AMBIGUOUS, REFERENCE_CONFLICT})
REFERENCE_UNAVAILABLE = "model_call_reference_unavailable"
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
OBSERVATIONS_NOT_REPORTED = "agent_observations_not_reported"
OBSERVATION_LINE_INVALID = "agent_observation_line_invalid"
COMPACTION_MATCH_AMBIGUOUS = "compaction_model_call_match_ambiguous"
COMPACTION_REFERENCE_UNAVAILABLE = "compaction_model_call_reference_unavailable"
PRODUCER_INVALID = "producer_trajectory_invalid"
PRODUCER_IDENTITY_MISMATCH = "producer_trajectory_identity_mismatch"
TRAJECTORY_IDENTITY_INVALID = "trajectory_identity_invalid"
MODEL_CALLS_UNAVAILABLE = "model_calls_unavailable"
TURNS_UNAVAILABLE = "turns_unavailable"
CONVERSATION_UNAVAILABLE = "conversation_unavailable"
RESOLUTION_UNAVAILABLE = "resolution_unavailable"
TURN_SCOPE_INCOMPLETE = "turn_model_call_scope_incomplete"
PROJECTION_FAILED = "trajectory_projection_failed"
TOOL_TIMING_INVALID = "tool_timing_invalid"
PAYLOADS_REDACTED = "multimodal_history_redacted"


@dataclass(frozen=True, slots=True, kw_only=True)
class GapSpec:
    """One gap code.

    `reported_by` is the step that writes it, and `when` the condition on which it does; `remedy` says what a reader can
    do about it; nobody need do anything when `needs_action` is False. `detail` is the shape of the gap's detail, with
    its parameters in braces; "" when it has none.
    """

    code: str
    meaning: str
    reported_by: GapReporter
    when: str
    remedy: str
    scope: GapScope = "rollout"
    blocks: frozenset[BlockedInput] = frozenset()
    contradicts: bool = False
    needs_action: bool = True
    detail: str = ""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names in `detail`'s braces, in order."""
        return tuple(part.split("}")[0] for part in self.detail.split("{")[1:])


GAP_PARAMETERS: Mapping[str, str] = MappingProxyType(
    {
        "call": "the call's `model_call_id`, else the id of its response, else `unknown`",
        "call_index": "the call's place in the capture, from 0",
        "calls": "the first ten missing `model_call_id`s, and how many more there are",
        "candidates": "how many captured calls fit",
        "count": "how many lines",
        "error": "the class of the error",
        "field": "the name of the field",
        "fields": "which ids differ: `task_id`, `rollout_id`, or both with a comma",
        "number": "which turn of the invocation the call was made for, from 1",
        "place": (
            "empty for a reference of the invocation itself; `model_calls:`, `before_model_call:` or "
            "`after_model_call:` for one of a compaction"
        ),
        "reason": "what is wrong, without the value that was given",
        "reference": "the reference's `model_call_id`, else its `response_id`",
        "tool_call": "the `tool_call_id`",
        "where": "`line` and its number, or what several lines together are about",
    }
)
"""Parameter of a detail -> what stands there."""


def _blocks(*inputs: BlockedInput) -> frozenset[BlockedInput]:
    return frozenset(inputs)


def _registry(specs: Iterable[GapSpec]) -> Mapping[str, GapSpec]:
    return MappingProxyType({spec.code: spec for spec in specs})


GAP_REGISTRY: Mapping[str, GapSpec] = _registry(
    (
        GapSpec(
            code=REFERENCE_UNMATCHED,
            meaning="A reference names no captured call, or contradicts the one that has its id.",
            reported_by="join",
            when=(
                "No captured call of the rollout has every identifier that the reference gives. The reference stays as "
                "it is and owns nothing."
            ),
            remedy=(
                "Take `model_call_id` from the header `x-ng-model-call-id` of the very answer, and send each call "
                "through the rollout's model URL so that it is captured. If the capture was incomplete, its own gap "
                "says so."
            ),
            scope="invocation",
            contradicts=True,
            detail="{place}{reference}",
        ),
        GapSpec(
            code=REFERENCE_AMBIGUOUS,
            meaning="A reference fits several captured calls.",
            reported_by="join",
            when=("Two or more captured calls have every identifier that the reference gives. None of them is taken."),
            remedy=(
                "Refer to calls by `model_call_id`, which the model server makes anew for each. A pair of `model_ref` "
                "and `response_id` is ambiguous when a provider gives two responses one id."
            ),
            scope="invocation",
            contradicts=True,
            detail="{place}{reference}",
        ),
        GapSpec(
            code=REFERENCE_CONFLICT,
            meaning="A reference names a call that another invocation owns.",
            reported_by="join",
            when=(
                "The reference means exactly one call, and an earlier invocation of the bundle owns it. The first "
                "owner keeps it."
            ),
            remedy=(
                "Let one conversation name each call: a subagent's calls belong to the subagent alone. Also compare "
                "the references with the invocation in the model URL and with the `x-session-id` header, which own "
                "calls too."
            ),
            scope="invocation",
            contradicts=True,
            detail="{place}{call}",
        ),
        GapSpec(
            code=REFERENCE_UNAVAILABLE,
            meaning="The agent made a call and cannot name it.",
            reported_by="agent",
            when=(
                "`simple_agent` writes it when an answer has neither the header `x-ng-model-call-id` nor a response "
                "id, as when the model server could not be reached."
            ),
            remedy=(
                "Call the model through a model server of the run. Naming the invocation in the model URL gives a call "
                "its owner even when it is never answered."
            ),
            scope="invocation",
            detail="turn:{number}",
        ),
        GapSpec(
            code=OWNERSHIP_UNAVAILABLE,
            meaning="No invocation owns a captured call.",
            reported_by="join",
            when=(
                "The agent returned observations, and none of its invocations names the call: by a reference, in the "
                "model URL, or as `x-session-id`. With an invocation, and the detail `model_calls:{call}`: a "
                "compaction names a call that no invocation owns."
            ),
            remedy=(
                "Make calls inside `rollout_context(rollout_id, invocation)`, or list each call in the `model_calls` "
                "of the invocation that made it, helper calls included. Until then `ng_perf` leaves out its tokens."
            ),
            detail="capture:{call}:call_index={call_index}",
        ),
        GapSpec(
            code=IDENTITY_DUPLICATE,
            meaning="Two captured calls carry one id; the later one is kept without it.",
            reported_by="projection",
            when="An earlier captured call of the rollout has the same `model_call_id`.",
            remedy=(
                "Model servers never repeat an id, so a line was copied: look at the file with `gym capture show`. "
                "Keep captures of two runs in two directories."
            ),
            detail="{call}",
        ),
        GapSpec(
            code=CALL_FIELD_INVALID,
            meaning="A captured value is not what its field may hold; the field is left unknown.",
            reported_by="projection",
            when="A field of a captured call has another type than the trajectory's, or is out of its range.",
            remedy=(
                "The rest of the call is there. `ng_model_call_capture` and `gym capture show` still have the value as "
                "it was written; look at what wrote the line."
            ),
            detail="call_index={call_index}:{field}",
        ),
        GapSpec(
            code=CAPTURE_NO_RECORDS,
            meaning="Nothing was captured for the rollout.",
            reported_by="capture",
            when=(
                "No capture directory has a line for the rollout, nor a sign that one is missing. Unless the agent "
                "states calls itself, `model_calls_unavailable` stands beside it."
            ),
            remedy=(
                "Let the agent call the model at `/ng-rollout/<rollout>/v1`: a provider's own URL is never captured. "
                "Model servers and collector need one `model_call_capture_dir`; `gym capture ls DIR` shows what is "
                "there."
            ),
        ),
        GapSpec(
            code=CAPTURE_RECORDS_UNREADABLE,
            meaning="Some captured lines cannot be read; the others are kept.",
            reported_by="capture",
            when="A complete line of the rollout's capture is no exchange: cut by a crash, or damaged since.",
            remedy=(
                "`gym capture check DIR` names file and line. The damaged calls are lost; collect the rollout again if "
                "you need them."
            ),
            blocks=_blocks("model_calls"),
            detail="count={count}",
        ),
        GapSpec(
            code=CAPTURE_INCOMPLETE,
            meaning="At least one exchange is known to be missing from the capture.",
            reported_by="capture",
            when=(
                "The marker `<rollout>.capture.incomplete` names a call that has no line, or a call began and its "
                "server died, or it was still being served when the capture was read. Without a detail the marker "
                "does not say which."
            ),
            remedy=(
                "`gym capture check DIR` says which calls, and why: a full disk, missing rights, a killed server. "
                "Remove the cause and collect the rollout again."
            ),
            blocks=_blocks("model_calls"),
            detail="calls={calls}",
        ),
        GapSpec(
            code=CAPTURE_UNREADABLE,
            meaning="The capture could not be read.",
            reported_by="capture",
            when="The operating system refused the file, or a sealed file is damaged.",
            remedy=(
                "Look at the rights and the disk of the capture directory; files belong to the user who ran the model "
                "server. `gym capture check DIR` says what is wrong with a file."
            ),
            blocks=_blocks("model_calls"),
        ),
        GapSpec(
            code=CAPTURE_GAP_INVALID,
            meaning="An entry of the capture's gaps is no gap.",
            reported_by="projection",
            when="`ng_model_call_capture.gaps` holds an entry that is no object of `code`, `invocation_id`, `detail`.",
            remedy="Collection writes only gaps there: look for what changed the record before it was projected.",
        ),
        GapSpec(
            code=OBSERVATION_JOIN_FAILED,
            meaning="The observation bundle could not be joined; it is left as it was.",
            reported_by="join",
            when="`ng_agent_observations` does not fit its schema, so that its references could not be looked up.",
            remedy=(
                "Build the bundle with `AgentObservationBundle`, or check it with `.model_validate(bundle)`: the error "
                "names the field."
            ),
        ),
        GapSpec(
            code=OBSERVATIONS_INVALID,
            meaning="The observation bundle does not fit its schema and is not used.",
            reported_by="projection",
            when=(
                "An unknown field, a wrong type, an invocation id that occurs twice, or an invocation that is its own "
                "ancestor. Invocations and tools of the bundle are then missing from the trajectory."
            ),
            remedy=(
                "Build the bundle with `AgentObservationBundle`, or check it with `.model_validate(bundle)`: the error "
                "names the field."
            ),
            detail="{error}",
        ),
        GapSpec(
            code=OBSERVATIONS_NOT_REPORTED,
            meaning="The agent's program reported nothing about itself; its captured calls are all that is known.",
            reported_by="agent",
            when="`command_agent` writes it when a program's report file holds no observation and no turn.",
            remedy=(
                "Let the program append lines to the file that `GYM_REPORT_FILE` names, see [what it may report]"
                "(../write-an-agent.md#you-have-a-program-already). One that holds a single conversation can be given "
                "the setting `invocation` (`+<agent>.responses_api_agents.command_agent.invocation=root`, with the "
                "agent's name in the run), so that its calls have an owner."
            ),
        ),
        GapSpec(
            code=OBSERVATION_LINE_INVALID,
            meaning="A line of the program's report does not fit its schema and is not used.",
            reported_by="agent",
            when=(
                "`command_agent` writes it for a line that is no JSON, was cut, or does not fit its kind. The other "
                "lines are used. After fifty such lines one gap counts the rest."
            ),
            remedy=(
                "The detail says which line and what is wrong with it; "
                "[the schemas](../schemas/agent-observation-bundle.json) say what each kind may hold. "
                "A `conversation` holds items of the Responses API, also when the program speaks another one: "
                "tool results are `function_call_output` items, no messages of the role `tool`."
            ),
            detail="{where}: {reason}",
        ),
        GapSpec(
            code=COMPACTION_MATCH_AMBIGUOUS,
            meaning="Several captured calls can have written a compaction's summary.",
            reported_by="join",
            when=(
                "The source is `claude_code`, whose compactions do not name their call. The saved summary equals the "
                "answer of several unowned calls, or two compactions want one call. None is taken."
            ),
            remedy="Nothing is wrong with the calls: they stay in the trajectory without an owner. Nothing to do.",
            scope="invocation",
            detail="candidate_count={candidates}",
            needs_action=False,
        ),
        GapSpec(
            code=COMPACTION_REFERENCE_UNAVAILABLE,
            meaning="The harness does not say which call wrote a compaction's summary.",
            reported_by="agent",
            when=(
                "An adapter writes it beside a compaction without `model_calls`. Collection takes it back when it "
                "finds the calls of all compactions of that invocation (source `claude_code`)."
            ),
            remedy="List the summary's call in the compaction's `model_calls`, and in those of its invocation.",
            scope="invocation",
        ),
        GapSpec(
            code=PRODUCER_INVALID,
            meaning="The agent's own trajectory does not fit its schema and is not used.",
            reported_by="projection",
            when=(
                "An unknown field, a wrong type, an id that occurs twice, a turn of another task, or an unknown "
                "`schema_version`. The agent's turns are then lost, which `turns_unavailable` says too."
            ),
            remedy=(
                "Build it with `TrajectoryRecord`, or check it with `read_trajectory(value)`: the error names the "
                "field."
            ),
            detail="{error}",
        ),
        GapSpec(
            code=PRODUCER_IDENTITY_MISMATCH,
            meaning="The agent's own trajectory names another task or rollout; the row's ids were put in.",
            reported_by="projection",
            when="`task_id` or `rollout_id` of the agent's trajectory differs from what collection derives of the row.",
            remedy="Take both ids from `trajectory_identity_of(row)`.",
            detail="{fields}",
        ),
        GapSpec(
            code=TRAJECTORY_IDENTITY_INVALID,
            meaning="The row's `trajectory_identity` is unusable and ignored.",
            reported_by="projection",
            when="It is no object with `task_id` and `rollout_id`, both text that is not blank.",
            remedy="Give both as text, or leave the key out: the ids then come from the row's own keys.",
        ),
        GapSpec(
            code=MODEL_CALLS_UNAVAILABLE,
            meaning="The trajectory has no model call.",
            reported_by="projection",
            when="Nothing was captured, and the agent's own trajectory holds no call.",
            remedy=(
                "Run with `+observability_enabled=true +model_call_capture_dir=DIR`, for the model servers and the "
                "collector, and let the agent call the model under the rollout's URL."
            ),
            blocks=_blocks("model_calls"),
        ),
        GapSpec(
            code=TURNS_UNAVAILABLE,
            meaning="No producer stated semantic turns; they are never inferred from calls.",
            reported_by="projection",
            when=(
                "The agent returned no `ng_trajectory`, or an invalid one. A valid one without turns is a statement: "
                "no turn was completed."
            ),
            remedy=(
                "Let the agent return a trajectory with its turns. Without them `ng_perf` falls back to one turn per "
                "owned call."
            ),
            blocks=_blocks("turns"),
        ),
        GapSpec(
            code=CONVERSATION_UNAVAILABLE,
            meaning="No invocation has a conversation.",
            reported_by="projection",
            when="Every `conversation` is empty, or there is no invocation.",
            remedy=(
                "Put the items that the model saw and produced into the invocation's `conversation`, results of tools "
                "included: they are where a tool call's output comes from."
            ),
        ),
        GapSpec(
            code=RESOLUTION_UNAVAILABLE,
            meaning="It is not known whether the last turn solved the task.",
            reported_by="agent",
            when=(
                "`simple_agent` writes it when the verifier's answer has no `resolved` that is true or false, or when "
                "there is no turn."
            ),
            remedy="Let `verify` return `resolved` beside the reward, where the environment can tell.",
            scope="invocation",
            needs_action=False,
        ),
        GapSpec(
            code=TURN_SCOPE_INCOMPLETE,
            meaning="The producer's turns do not name every call that they made.",
            reported_by="agent",
            when="An agent writes it when it knows that its turns made calls which it could not note.",
            remedy="Name every call of a turn in its `model_calls`, failed tries included.",
            blocks=_blocks("model_call_scope"),
        ),
        GapSpec(
            code=PROJECTION_FAILED,
            meaning="The evidence could not be projected into a trajectory; attached payloads stay.",
            reported_by="projection",
            when="`ng_model_call_capture` is no object with a list of calls.",
            remedy=(
                "Collection writes that key itself and always in this shape: look for what changed the record before "
                "it was projected."
            ),
            blocks=_blocks("trajectory"),
            detail="{error}",
        ),
        GapSpec(
            code=TOOL_TIMING_INVALID,
            meaning="A tool's end is before its start; the end is left unknown.",
            reported_by="projection",
            when="The agent's trajectory and its bundle give one execution times that do not fit together.",
            remedy="Take start and end of an execution from one clock, and state them once: best in the bundle.",
            scope="invocation",
            detail="{tool_call}",
        ),
        GapSpec(
            code=PAYLOADS_REDACTED,
            meaning="The producer left images out; payload copies are not attached.",
            reported_by="agent",
            when=(
                "An agent writes it when it took images out of what it returned. Collection then leaves request and "
                "response bodies of the captured calls off the record."
            ),
            remedy="The bodies are in the capture directory: `gym capture show CALL DIR`.",
            needs_action=False,
        ),
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

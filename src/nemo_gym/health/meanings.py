"""What people read about each check: the sentences of the pages and of the viewer, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckMeaning:
    """One check in words.

    `looks_at` is what is compared; `finds` what a finding means, `passes` what makes none, `unobserved` what keeps the
    check from being made. `remedy` says what to do about a finding. `detail` and `locator` name each key of a finding
    and what stands there.
    """

    looks_at: str
    finds: str
    passes: str
    unobserved: str
    remedy: str
    detail: Mapping[str, str]
    locator: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


_NO_OWNED_CALL = "the model calls were not observed, or no reference finds one"
_OWNED = "Every call that a reference of a turn or of an invocation finds, each once."
_CALL = MappingProxyType({"call_id": "its `model_call_id`, else the id of its response, else its position from 0"})

CHECK_MEANINGS: Mapping[str, CheckMeaning] = MappingProxyType(
    {
        "check_execution_error": CheckMeaning(
            looks_at="The other checks while they run over a record.",
            finds="Another check raised. That check is then unobserved, and the others go on.",
            passes="every check came to an end",
            unobserved="the line cannot be read",
            remedy="The check has a defect, not the record: report it, with the record.",
            detail={
                "reason": "what happened",
                "failed_check": "the check that raised",
                "error": "the class of the error",
            },
        ),
        "record_unreadable": CheckMeaning(
            looks_at="The line itself, its identity keys, and whether `ng_trajectory` fits its schema.",
            finds=(
                "The line is no JSON object, or a part of it that is there cannot be used: an invalid trajectory, an "
                "identity of a wrong type, a key that stands twice."
            ),
            passes="the line and each of these parts that is there can be read",
            unobserved="never",
            remedy=(
                "Open the file at that line. A line that a kill cut off is dropped, and its rollout run again, by "
                "`gym eval run ... --resume`; an invalid trajectory comes from a tool that changed the record."
            ),
            detail={"reason": "what is wrong with it", "error": "the class of the error"},
            locator={
                "source_file": "the rollouts file, for a line that is no record",
                "line": "the line in it, from 1",
            },
        ),
        "rollout_duplicate_identity": CheckMeaning(
            looks_at="Task, rollout and stage of all records of one run; two shards may hold the same ones.",
            finds="Several records of one run share task, rollout and stage. Every copy has the finding.",
            passes="no other record of the run has the same three",
            unobserved="the line cannot be read",
            remedy=(
                "Two runs were appended to one file, or a shard was copied into it. Keep one record of each rollout; "
                "give shards names of their own."
            ),
            detail={"duplicate_count": "how many records share the identity, this one included"},
        ),
        "rollout_missing_agent_turns": CheckMeaning(
            looks_at="The turns that the agent stated.",
            finds="The agent stated its turns, and none has content, a tool call or a model call.",
            passes="a turn has an answer, reasoning, a tool call, or names a model call",
            unobserved="the agent stated no turns",
            remedy=(
                "Let the agent put what it decided into `answer`, and the call it came from into `model_calls`. A "
                "rollout whose first model call failed has no turn, and this finding is then right."
            ),
            detail={"reason": "what is missing"},
        ),
        "rollout_ended_on_failed_model_call": CheckMeaning(
            looks_at="Every call of the trajectory, owned or not, one model server at a time, in order of start.",
            finds=(
                "The last call to a model server failed. Last is by start; when outcomes are mixed and a start is "
                "unknown nothing is said."
            ),
            passes="the last call to each model server was answered; one that failed and was tried again is no defect",
            unobserved="the model calls were not observed, or there is none",
            remedy=(
                "See why in `error_category`, and the whole call with `gym capture show CALL DIR`. A rollout that "
                "ended because its model failed says little about the model: mask it, or run it again."
            ),
            detail={
                "model_ref": "the model server as `type/name`, null if not known",
                "status": "the HTTP status that capture saw sent, else the exception's, null if neither",
                "error_category": "the kind of failure, null if not known",
                "observed_calls": "calls to that server",
                "successful_calls": "those of them that succeeded",
            },
            locator=_CALL,
        ),
        "agent_turn_hollow": CheckMeaning(
            looks_at="Each turn that the agent stated.",
            finds="A turn has neither answer nor reasoning, and calls no tool.",
            passes="each turn has an answer with content, or reasoning, or a tool call; reasoning alone is enough",
            unobserved="the agent stated no turns",
            remedy=(
                "Look at the turn's call: either the model answered with nothing, or the agent did not note the "
                "answer. An empty answer is worth a look at the token limit and at the chat template."
            ),
            detail={"reason": "what is missing"},
            locator={"turn": "its `turn_no`"},
        ),
        "model_call_zero_completion_tokens": CheckMeaning(
            looks_at=_OWNED + " Failed attempts and refused contexts are left out.",
            finds="A call that was answered is said to have produced no token.",
            passes="no such call has 0 completion tokens; unknown is not 0",
            unobserved=_NO_OWNED_CALL,
            remedy=(
                "Either the model answered with nothing, or its provider writes 0 for what it does not count. See the "
                "usage in the call's response."
            ),
            detail={"completion_tokens": "always 0"},
            locator=_CALL,
        ),
        "model_call_missing_token_counts": CheckMeaning(
            looks_at=_OWNED,
            finds=(
                "A call that was answered has no prompt or no completion count. A failed attempt and a refused context "
                "owe none."
            ),
            passes="each such call has both counts",
            unobserved=_NO_OWNED_CALL,
            remedy=(
                "Let the provider report usage. Gym's model servers ask for it in a Chat stream; a proxy in between "
                "may drop it. A stream that was cut has none."
            ),
            detail={"missing": "`prompt_tokens`, `completion_tokens`, or both"},
            locator=_CALL,
        ),
        "trajectory_capture_mismatch": CheckMeaning(
            looks_at="Every reference of turns and invocations, matched to the calls again, and the join's gaps.",
            finds=(
                "A reference and the capture contradict each other: no call fits it, several do, or another invocation "
                "owns it."
            ),
            passes="each reference finds exactly one call, and no two invocations claim one",
            unobserved="the model calls were not observed, or there is neither a reference nor a contradiction",
            remedy=(
                "Take `model_call_id` from the header `x-ng-model-call-id` of each answer; the page of the gap says "
                "more."
            ),
            detail={
                "kind": ("`missing_captured_call`, `duplicated_captured_call` or `conflicting_call_ownership`"),
                "count": "how many calls fit, when several do",
                "observation_gap": "the gap that it was read from, when only a gap says it",
                "invocation_id": "that gap's invocation",
            },
            locator={"call_id": "what the reference or the gap names; `unknown` when it names nothing"},
        ),
        "model_call_failed": CheckMeaning(
            looks_at="Nothing any more.",
            finds=(
                "Never: a call that failed and was retried is no defect of the evidence. The summary counts it. The id "
                "is accepted where checks are ignored."
            ),
            passes="always",
            unobserved="never",
            remedy=(
                "Read `run.stats.model_call_errors` of `quality_summary.json` for failed calls, and "
                "`rollout_ended_on_failed_model_call` for rollouts that ended on one."
            ),
            detail={},
        ),
        "rollout_token_count_mismatch": CheckMeaning(
            looks_at="The record's `response.usage`, and the counts of every owned call.",
            finds=(
                "The usage that the agent reports is not the sum over the calls it owns. Failed attempts add nothing."
            ),
            passes="prompt and completion tokens are both equal to the sums",
            unobserved="a reference does not find exactly one call, a count is unknown, or the agent reports no usage",
            remedy=(
                "Add up every finished response, also those of subagents and compactions, and nothing else; leave the "
                "usage out when one response has none. A call that no invocation owns is missing from the sum: look "
                "for its gap."
            ),
            detail={
                "transcript_prompt": "prompt tokens that the agent reports",
                "transcript_completion": "completion tokens that the agent reports",
                "capture_prompt": "prompt tokens of the owned calls",
                "capture_completion": "completion tokens of the owned calls",
            },
        ),
        "model_call_runaway_generation": CheckMeaning(
            looks_at=_OWNED + " Those that ended for `length`, `max_output_tokens` or `max_tokens`.",
            finds="A call ran into its token limit and shows nothing for it.",
            passes="each call that ran into its limit shows text, reasoning or a tool call",
            unobserved=_NO_OWNED_CALL + ", or the response of a call that ran into its limit was not saved",
            remedy=(
                "The tokens went where nobody sees them: raise the limit, ask the provider for the reasoning, or look "
                "for a chat template that hides it."
            ),
            detail={"finish_reason": "why the call ended, in the provider's word"},
            locator=_CALL,
        ),
        "task_consistently_unhealthy": CheckMeaning(
            looks_at="The verdicts of a task's repeats; copies of one repeat that disagree count as unobserved.",
            finds="Every repeat of the task that has a verdict is unhealthy.",
            passes="one repeat is healthy",
            unobserved="fewer than two repeats have a verdict",
            remedy=(
                "What is wrong is likely the task or its environment, not chance: read the findings of one of its "
                "repeats."
            ),
            detail={},
        ),
        "task_no_successful_model_calls": CheckMeaning(
            looks_at="The calls that the turns of a task's repeats name.",
            finds="No turn of any repeat names a call that succeeded.",
            passes="a turn of one repeat names a call that succeeded",
            unobserved="a repeat does not know the calls of its turns completely",
            remedy=(
                "See how the calls failed with `gym capture ls DIR`: one task that always fails often has a prompt "
                "that the model refuses or that is too long."
            ),
            detail={},
        ),
    }
)
"""Check id -> what it means."""

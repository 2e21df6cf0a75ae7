"""Which captured call wrote a Claude Code compaction's summary.

The CLI does not say it, and such a call belongs to no transcript entry. It does keep the summary that the call
returned, after a clean-up of its own, inside a fixed frame. So a call is attached when its answer, cleaned and framed
the same way, is exactly that saved text, and when no other call and no other compaction fits. This is the one place
where texts are compared. A release of the CLI that words its frame in another way than below matches nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nemo_gym.records.evidence import (
    AgentInvocation,
    AgentObservationBundle,
    ContextCompactionObservation,
    ModelCallRef,
    Observation,
    ObservationGap,
)
from nemo_gym.records.gaps import COMPACTION_MATCH_AMBIGUOUS, COMPACTION_REFERENCE_UNAVAILABLE
from nemo_gym.records.matching import CallIndex
from nemo_gym.trajectory.gaps import without_repeats
from nemo_gym.trajectory.join import canonical_reference, named_invocations

CLAUDE_CODE = "claude_code"

_PROMPT = "Your task is to create a detailed summary of the conversation so far"
_CONTINUED = "This session is being continued from a previous conversation that ran out of context. "
_PREAMBLES = (
    _CONTINUED + "The summary below covers the earlier portion of the conversation.\n\n",
    _CONTINUED + "The conversation is summarized below:\n",
)
_TRAILERS = re.compile(
    r"\.?"
    r"(?:\n\nIf you need specific details from before compaction \(like exact code snippets, error messages, or "
    r"content you generated\), read the full transcript at: [^\n]+)?"
    r"(?:\n\nRecent messages are preserved verbatim\.)?"
    r"(?:\n+Please continue the conversation from where we left (?:it )?off without asking the user any further "
    r"questions\. Continue with the last task that you were asked to work on\."
    r"|\n+Continue the conversation from where it left off without asking the user any further questions\."
    r"(?: Resume directly — do not acknowledge the summary, do not recap what was happening, do not preface with "
    r"\"I'll continue\" or similar\. Pick up the last task as if the break never happened\.)?)?"
)
_ANALYSIS = re.compile(r"<analysis>.*?</analysis>", re.DOTALL)
_SUMMARY = re.compile(r"<summary>(.*?)</summary>", re.DOTALL)
_BLANK_LINES = re.compile(r"\n{2,}")


def attach_summary_calls(bundle: AgentObservationBundle, calls: Sequence[Mapping[str, Any]]) -> AgentObservationBundle:
    """Return `bundle` with each compaction's summary call, where exactly one captured call can have written it.

    The call is named by the compaction and owned by its invocation. `calls` need their bodies; without them nothing
    matches. Several candidates, or one that two compactions want, leave a gap. Other sources are returned as they are.
    """
    if bundle.source != CLAUDE_CODE:
        return bundle
    index = CallIndex(calls)
    summaries = _unowned_summaries(bundle, calls, index)
    wanted = {
        position: [at for at, text in summaries.items() if _fits(record, at, text, calls, index)]
        for position, record in enumerate(bundle.records)
        if _wants_a_call(record)
    }
    claims = Counter(at for candidates in wanted.values() for at in candidates)
    records: list[Observation] = list(bundle.records)
    gaps = list(bundle.gaps)
    for position, candidates in wanted.items():
        compaction = records[position]
        assert isinstance(compaction, ContextCompactionObservation)
        owner_at = _invocation_position(records, compaction.invocation_id)
        if not candidates or owner_at is None:
            continue
        name = compaction.invocation_id
        if len(candidates) > 1 or claims[candidates[0]] > 1:
            detail = f"candidate_count={len(candidates)}"
            gaps.append(ObservationGap(code=COMPACTION_MATCH_AMBIGUOUS, invocation_id=name, detail=detail))
            continue
        ref = canonical_reference(index.identities[candidates[0]])
        records[position] = msgspec.structs.replace(compaction, model_calls=[ref])
        records[owner_at] = _with_owned_call(records[owner_at], ref, compaction, index)
        if not any(_wants_a_call(other, of=name) for other in records):
            gaps = [g for g in gaps if (g.code, g.invocation_id) != (COMPACTION_REFERENCE_UNAVAILABLE, name)]
    return AgentObservationBundle(source=bundle.source, records=records, gaps=without_repeats(gaps))


def _wants_a_call(record: Observation, *, of: str | None = None) -> bool:
    return (
        type(record) is ContextCompactionObservation
        and of in (None, record.invocation_id)
        and record.outcome == "completed"
        and bool(record.summary)
        and not record.model_calls
    )


def _unowned_summaries(
    bundle: AgentObservationBundle, calls: Sequence[Mapping[str, Any]], index: CallIndex
) -> dict[int, str]:
    """Return position -> cleaned answer of the successful summary calls that no invocation owns."""
    invocations = [record for record in bundle.records if type(record) is AgentInvocation]
    names = {invocation.invocation_id for invocation in invocations}
    named = {at for invocation in invocations for ref in invocation.model_calls for at in index.match(ref)}
    summaries = {}
    for at, call in enumerate(calls):
        if at in named or names.intersection(named_invocations(call)) or not _is_summary_call(call):
            continue
        identity = index.identities[at]
        if identity.model_call_id is None and (identity.model_ref is None or identity.response_id is None):
            continue
        text = _cleaned(_message_text(call.get("response")))
        if text:
            summaries[at] = text
    return summaries


def _is_summary_call(call: Mapping[str, Any]) -> bool:
    status = call.get("status_code")
    if call.get("dialect") != "messages" or call.get("error_category") is not None:
        return False
    if not isinstance(status, int) or not 200 <= status < 300:
        return False
    request = call.get("request")
    messages = request.get("messages") if isinstance(request, Mapping) else None
    last = messages[-1] if isinstance(messages, list) and messages else None
    return isinstance(last, Mapping) and last.get("role") == "user" and _PROMPT in _message_text(last)


def _message_text(message: object) -> str:
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str))


def _cleaned(text: str) -> str:
    """The CLI's own clean-up of a summary."""
    text = _ANALYSIS.sub("", text, count=1)
    text = _SUMMARY.sub(lambda found: "Summary:\n" + found[1].strip(), text, count=1)
    return _BLANK_LINES.sub("\n\n", text).strip()


def _fits(record: Any, at: int, text: str, calls: Sequence[Mapping[str, Any]], index: CallIndex) -> bool:
    compaction: ContextCompactionObservation = record
    for ref, after in ((compaction.before_model_call, False), (compaction.after_model_call, True)):
        if ref is None:
            continue
        server = ref.model_ref
        if server is not None and index.identities[at].model_ref != (server.type, server.name):
            return False
        matches = index.match(ref)
        if len(matches) == 1:
            boundary, own = (calls[place].get("call_index", place) for place in (matches[0], at))
            if not (own < boundary if after else boundary < own):
                return False
    saved = compaction.summary or ""
    return any(
        saved.startswith(preamble + text) and _TRAILERS.fullmatch(saved, len(preamble) + len(text))
        for preamble in _PREAMBLES
    )


def _invocation_position(records: Sequence[Observation], name: str) -> int | None:
    for at, record in enumerate(records):
        if type(record) is AgentInvocation and record.invocation_id == name:
            return at
    return None


def _with_owned_call(
    invocation: Observation, ref: ModelCallRef, compaction: ContextCompactionObservation, index: CallIndex
) -> Observation:
    """Put the call where it happened: before the first call after the compaction, or after the last one before it."""
    assert isinstance(invocation, AgentInvocation)
    refs = list(invocation.model_calls)
    places = [index.match(own) for own in refs]
    at = len(refs)
    for boundary, offset in ((compaction.after_model_call, 0), (compaction.before_model_call, 1)):
        matches = index.match(boundary) if boundary is not None else []
        if len(matches) == 1 and matches in places:
            at = places.index(matches) + offset
            break
    refs.insert(at, ref)
    return msgspec.structs.replace(invocation, model_calls=refs)

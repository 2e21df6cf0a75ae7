"""The nine rows of evidence that a record can give, checked on the saved record alone. Pure.

A row that does not apply to what happened is left out by the caller; nothing is inferred from what is absent. Problems
name places in the record, never the text of a payload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from nemo_gym.records import keys
from nemo_gym.records.call_outcome import failed
from nemo_gym.records.evidence import (
    AgentObservationBundle,
    ContextCompactionObservation,
    ModelCallRef,
    Observation,
    SandboxObservation,
    TrajectoryModelCall,
    TrajectoryRecord,
    ValidationError,
    read,
)
from nemo_gym.records.gaps import (
    OBSERVATION_JOIN_FAILED,
    OWNERSHIP_UNAVAILABLE,
    PROJECTION_FAILED,
    REFERENCE_CODES,
    REFERENCE_UNAVAILABLE,
    TURN_SCOPE_INCOMPLETE,
    TURNS_UNAVAILABLE,
)
from nemo_gym.records.matching import CallIndex
from nemo_gym.testing.history import history_problems

ROWS: Mapping[str, str] = MappingProxyType(
    {
        "TE-1": "each model call: who answered, when, and how it ended",
        "TE-2": "token counts, as numbers or as unknown",
        "TE-3": "turns, as the agent counts them",
        "TE-4": "the history that each call was given",
        "TE-5": "each tool call: name, status, output, and the call that asked for it",
        "TE-6": "the verifier's outcome, or why there is none",
        "TE-7": "request and response of each call",
        "TE-8": "each call belongs to exactly one invocation",
        "TE-9": "each turn names its calls, each call its turn",
    }
)
"""Row id -> what it is about."""

_DIALECTS = frozenset({"responses", "chat", "messages"})
_TERMINAL = frozenset({"completed", "failed", "timeout", "cancelled"})
_CAPTURE_ROWS = frozenset({"TE-1", "TE-4", "TE-7", "TE-8", "TE-9"})
_UNOWNED = REFERENCE_CODES | {REFERENCE_UNAVAILABLE, OWNERSHIP_UNAVAILABLE}
_SANDBOX_FAILURES = frozenset({"failed", "oom", "sandbox_error"})


@dataclass(slots=True)
class _View:
    """A record taken apart once for all rows."""

    record: Mapping[str, Any]
    trajectory: TrajectoryRecord
    index: CallIndex
    owners: dict[int, list[str]] = field(default_factory=dict)
    loose: list[str] = field(default_factory=list)
    loose_compactions: list[str] = field(default_factory=list)
    helpers: set[int] = field(default_factory=set)

    @property
    def gaps(self) -> set[str]:
        return {gap.code for gap in self.trajectory.gaps}


def check_record(record: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the problems of each row; none means fulfilled."""
    try:
        trajectory = read(TrajectoryRecord, record.get(keys.TRAJECTORY))
    except ValidationError as error:
        problem = f"`{keys.TRAJECTORY}` is missing or invalid: {error}"
        outcome = _verifier_outcome(record) + _sandboxes(_observed(record))
        return {row: [problem] for row in ROWS if row != "TE-6"} | {"TE-6": outcome}
    observed = _observed(record)
    view = _view(record, trajectory, observed)
    problems = {row: check(view) for row, check in _CHECKS.items()}
    capture_gaps = sorted(
        code for code in view.gaps if code.startswith("model_call_capture") or code == OBSERVATION_JOIN_FAILED
    )
    for row in _CAPTURE_ROWS:
        problems[row] += [f"gap `{code}`" for code in capture_gaps]
    return problems | {"TE-6": _verifier_outcome(record) + _sandboxes(observed)}


def _observed(record: Mapping[str, Any]) -> Sequence[Observation]:
    """Return the records of the bundle; none when it is missing or invalid, which its gaps say."""
    try:
        return read(AgentObservationBundle, record.get(keys.AGENT_OBSERVATIONS)).records
    except ValidationError:
        return ()


def _view(record: Mapping[str, Any], trajectory: TrajectoryRecord, observed: Sequence[Observation]) -> _View:
    view = _View(record, trajectory, CallIndex(trajectory.model_calls))
    for invocation in trajectory.invocations:
        for at, ref in enumerate(invocation.model_calls):
            found = view.index.match(ref)
            if len(found) == 1:
                view.owners.setdefault(found[0], []).append(invocation.invocation_id)
            else:
                view.loose.append(f"invocation `{invocation.invocation_id}`, reference {at}: {len(found)} calls fit")
    for number, compaction in enumerate([item for item in observed if isinstance(item, ContextCompactionObservation)]):
        for ref in compaction.model_calls:
            view.helpers.update(view.index.match(ref))
        boundaries = [ref for ref in (compaction.before_model_call, compaction.after_model_call) if ref is not None]
        for ref in (*compaction.model_calls, *boundaries):
            fitting = len(view.index.match(ref))
            if fitting != 1:
                view.loose_compactions.append(f"compaction {number}: {fitting} calls fit a reference")
    return view


def _says(text: str | None) -> bool:
    """Return whether an id or a name has a visible character."""
    return bool(text and text.strip())


def _call_status(view: _View) -> list[str]:
    problems = [] if view.trajectory.model_calls else ["there is no model call"]
    for at, call in enumerate(view.trajectory.model_calls):
        facts, where = call.response_metadata, f"model_calls[{at}]"
        if not _says(call.model_call_id):
            problems.append(f"{where}: no id")
        if facts.model_ref is None:
            problems.append(f"{where}: no model_ref")
        if facts.dialect not in _DIALECTS:
            problems.append(f"{where}: no dialect")
        if call.started_at is None or call.completed_at is None:
            problems.append(f"{where}: start or end is unknown")
        if not _ending_is_explicit(call):
            problems.append(f"{where}: how it ended is not said")
        if not _says(facts.response_id) and not failed(call):
            problems.append(f"{where}: no response id")
    return problems


def _ending_is_explicit(call: TrajectoryModelCall) -> bool:
    facts = call.response_metadata
    if facts.error_category:
        return True
    if facts.status_code is None or not 200 <= facts.status_code < 300:
        return False
    if facts.dialect == "responses":
        return facts.response_status in ("completed", "incomplete")
    return bool(facts.finish_reason)


def _token_counts(view: _View) -> list[str]:
    return [] if view.trajectory.model_calls else ["there is no model call"]  # the schema holds the rest


def _turns(view: _View) -> list[str]:
    problems = [
        f"gap `{code}`"
        for code in (TURNS_UNAVAILABLE, "turn_evidence_incomplete", PROJECTION_FAILED)
        if code in view.gaps
    ]
    if not (_says(view.trajectory.task_id) and _says(view.trajectory.rollout_id)):
        problems.append("the trajectory does not say its task or its rollout")
    if not view.trajectory.turns:
        problems.append("there is no turn")
    names = {invocation.invocation_id for invocation in view.trajectory.invocations}
    for at, turn in enumerate(view.trajectory.turns):
        if "resolved" not in view.record[keys.TRAJECTORY]["turns"][at]:
            problems.append(f"turns[{at}]: whether the task is solved is neither said nor said to be unknown")
        if turn.invocation_id not in names:
            problems.append(f"turns[{at}]: its invocation is not listed")
        if turn.timestamp < 0:
            problems.append(f"turns[{at}]: its time is before 1970")
    return problems


def _history(view: _View) -> list[str]:
    return history_problems(view.trajectory.model_calls)


def _tools(view: _View) -> list[str]:
    problems = [] if view.trajectory.tool_calls else ["there is no tool call"]
    asked: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for invocation in view.trajectory.invocations:
        for item in invocation.conversation:
            if item.get("type") == "function_call":
                asked.setdefault((invocation.invocation_id, item["call_id"]), []).append(item)
    for at, tool in enumerate(view.trajectory.tool_calls):
        where = f"tool_calls[{at}]"
        if tool.status not in _TERMINAL:
            problems.append(f"{where}: how it ended is not said")
        if not _says(tool.tool_name):
            problems.append(f"{where}: no name")
        if not isinstance(tool.output, (str, list, dict)):
            problems.append(f"{where}: no output")
        calls = asked.get((tool.invocation_id, tool.tool_call_id), [])
        if len(calls) != 1:
            problems.append(f"{where}: {len(calls)} calls in its invocation's conversation have its id")
        elif calls[0].get("name") != tool.tool_name or not isinstance(calls[0].get("arguments"), str):
            problems.append(f"{where}: the call in the conversation has another name, or no arguments")
    return problems


def _verifier_outcome(record: Mapping[str, Any]) -> list[str]:
    reward, masked = record.get(keys.REWARD), record.get(keys.MASK_SAMPLE)
    scored = isinstance(reward, (int, float)) and not isinstance(reward, bool)
    if scored and masked is False:
        return []
    if scored and masked is not True:
        return ["`mask_sample` is not there"]
    # A rollout that was not scored, or whose score counts for nothing, says why.
    return [
        f"`{key}` does not say why there is no score"
        for key in (keys.FAILURE_KIND, keys.FAILURE_REASON)
        if not str(record.get(key) or "").strip()
    ]


def _sandboxes(observed: Sequence[Observation]) -> list[str]:
    """Return what sandboxes, where there are any, do not say of themselves."""
    problems = []
    for number, sandbox in enumerate([item for item in observed if isinstance(item, SandboxObservation)]):
        if not _says(sandbox.sandbox_id):
            problems.append(f"sandbox {number}: no id")
        if sandbox.outcome == "unknown":
            problems.append(f"sandbox {number}: how it ended is not said")
        if sandbox.outcome in _SANDBOX_FAILURES and not _says(sandbox.error_type):
            problems.append(f"sandbox {number}: why it failed is not said")
    return problems


def _payloads(view: _View) -> list[str]:
    problems = []
    for at, call in enumerate(view.trajectory.model_calls):
        if call.request is None:
            problems.append(f"model_calls[{at}]: no request body")
        unanswered = call.response_metadata.status_code is None and bool(call.response_metadata.error_category)
        if call.response is None and not unanswered:
            problems.append(f"model_calls[{at}]: no response body")
    return problems


def _run_join(view: _View) -> list[str]:
    problems = list(view.loose) if view.trajectory.invocations else ["there is no invocation"]
    problems += [f"gap `{code}`" for code in sorted(view.gaps & _UNOWNED)]
    parents = {item.invocation_id: item.parent_invocation_id for item in view.trajectory.invocations}
    if not all(map(_says, parents)):
        problems.append("an invocation has a blank id")
    for name, parent in parents.items():
        if parent is not None and parent not in parents:
            problems.append(f"invocation `{name}`: its parent is not listed")
        above, seen = parent, {name}
        while above is not None and above not in seen:
            seen.add(above)
            above = parents.get(above)
        if above is not None:
            problems.append(f"invocation `{name}` is its own ancestor")
    for at in range(len(view.trajectory.model_calls)):
        owners = set(view.owners.get(at, ()))
        if len(owners) != 1:
            problems.append(f"model_calls[{at}]: {len(owners)} invocations own it")
    return problems


def _turn_join(view: _View) -> list[str]:
    problems = [*([] if view.trajectory.turns else ["there is no turn"]), *view.loose_compactions]
    if TURN_SCOPE_INCOMPLETE in view.gaps:
        problems.append(f"gap `{TURN_SCOPE_INCOMPLETE}`")
    named: dict[int, int] = {}
    for number, turn in enumerate(view.trajectory.turns):
        problems += _turn_problems(view, number, turn.invocation_id, turn.model_calls, named)
    for at, call in enumerate(view.trajectory.model_calls):
        count = named.get(at, 0)
        if at in view.helpers:
            if count:
                problems.append(f"model_calls[{at}]: a helper call is in a turn")
        elif count > 1 or (count == 0 and not failed(call)):
            problems.append(f"model_calls[{at}]: it is in {count} turns")
    return problems


def _turn_problems(
    view: _View, number: int, invocation: str, refs: list[ModelCallRef], named: dict[int, int]
) -> list[str]:
    problems = [] if refs else [f"turns[{number}]: it names no call"]
    for ref in refs:
        found = view.index.match(ref)
        if len(found) != 1:
            problems.append(f"turns[{number}]: {len(found)} calls fit its reference")
            continue
        named[found[0]] = named.get(found[0], 0) + 1
        if invocation not in view.owners.get(found[0], [invocation]):
            problems.append(f"turns[{number}]: another invocation owns its call")
    return problems


_CHECKS: Mapping[str, Callable[[_View], list[str]]] = MappingProxyType(
    {
        "TE-1": _call_status,
        "TE-2": _token_counts,
        "TE-3": _turns,
        "TE-4": _history,
        "TE-5": _tools,
        "TE-7": _payloads,
        "TE-8": _run_join,
        "TE-9": _turn_join,
    }
)

"""For each gap code a rollout that has it: what came in, and where the record says it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence import (
    INCOMPLETE,
    ROLLOUT,
    ROW,
    JsonObject,
    bundle,
    call,
    collected,
    exchange,
    invocation,
    known,
    pair,
    response,
    trajectory,
    turn,
)

from nemo_gym.records.identity import trajectory_identity_of
from nemo_gym.trajectory import project_record

PLACES = ("ng_trajectory", "ng_model_call_capture", "ng_agent_observations")


@dataclass(frozen=True, kw_only=True)
class GapExample:
    """A rollout with one gap: `story` says what happened, `given` is the part of the input that matters, or None."""

    story: str
    record: JsonObject
    given: JsonObject | None = None

    def gap(self, code: str) -> tuple[str, JsonObject]:
        """Return the key of the record where the gap stands, the trajectory first, and the gap."""
        for place in PLACES:
            for gap in (self.record.get(place) or {}).get("gaps", ()):
                if isinstance(gap, dict) and gap.get("code") == code:
                    return place, known(gap)
        raise LookupError(f"the example of `{code}` does not have it")


def _seen(*exchanges: JsonObject, story: str, shows: tuple[str, ...] = (), **given: Any) -> GapExample:
    """Return the example of what was collected; `shows` are the lines of the capture that belong to the picture."""
    names = {"observations": "ng_agent_observations", "producer": "ng_trajectory", "row": "row"}
    shown: JsonObject = {names[key]: value for key, value in given.items() if key in names}
    if shows:
        shown["captured"] = [{key: _part(line, key) for key in shows} for line in exchanges]
    return GapExample(story=story, record=collected(*exchanges, **given), given=shown or None)


def _part(line: JsonObject, key: str) -> Any:
    return {"id": line[key]["id"]} if key == "response" else line[key]


def _stated(code: str, detail: str | None = None, **more: Any) -> JsonObject:
    gap = {"code": code, **more}
    return gap if detail is None else {**gap, "detail": detail}


def _unmatched() -> GapExample:
    return _seen(
        exchange(1),
        story="The agent names a call that was never captured.",
        shows=("model_call_id",),
        observations=bundle(invocation("root", call(9))),
    )


def _ambiguous() -> GapExample:
    return _seen(
        exchange(1),
        exchange(2, response=response(1)),
        story="The provider gave two responses one id, and the agent refers by it.",
        shows=("model_call_id", "model_ref", "response"),
        observations=bundle(invocation("root", pair(1))),
    )


def _conflict() -> GapExample:
    return _seen(
        exchange(1),
        story="The root and its subagent both name one call.",
        shows=("model_call_id",),
        observations=bundle(invocation("root", call(1)), invocation("helper", call(1), parent_invocation_id="root")),
    )


def _reference_unavailable() -> GapExample:
    return _seen(
        story="The first call reached no model server, so that nothing names it.",
        observations=bundle(
            invocation("root", status="failed"),
            gaps=[_stated("model_call_reference_unavailable", "turn:1", invocation_id="root")],
        ),
    )


def _unowned() -> GapExample:
    return _seen(
        exchange(1),
        exchange(2),
        story="Two calls were captured, and the agent's only invocation names one of them.",
        shows=("model_call_id",),
        observations=bundle(invocation("root", call(1))),
    )


def _duplicate() -> GapExample:
    return _seen(
        exchange(1),
        exchange(1, started_at=9.0),
        story="The capture holds two lines with one id.",
        shows=("model_call_id", "started_at"),
    )


def _invalid_field() -> GapExample:
    return _seen(
        exchange(1, response_source="cache"),
        story="Something else than a model server wrote the line: an answer comes from `upstream` or is `local`.",
        shows=("model_call_id", "response_source"),
    )


def _no_records() -> GapExample:
    return _seen(story="The agent called its provider directly.", observations=bundle(invocation("root")))


def _unreadable_lines() -> GapExample:
    def cut(folder: Path) -> None:
        with (folder / f"{ROLLOUT}.capture.jsonl").open("a", encoding="utf-8") as file:
            file.write('{"model_call_id": "call-2", "requ\n')

    return _seen(exchange(1), story="The machine lost power while the second line was written.", prepare=cut)


def _incomplete() -> GapExample:
    marker = '{"model_call_id": "call-2", "reason": "No space left on device", "time": 2.0}\n'

    def mark(folder: Path) -> None:
        (folder / INCOMPLETE).write_text(marker, encoding="utf-8")

    return _seen(exchange(1), story="The disk was full when the second call ended.", prepare=mark)


def _unreadable_capture() -> GapExample:
    def damage(folder: Path) -> None:
        (folder / f"{ROLLOUT}.capture.jsonl.zst").write_bytes(b"no zstd frame")

    return _seen(story="A sealed capture was damaged while it was copied.", prepare=damage)


def _tampered(story: str, change: Callable[[JsonObject], None]) -> GapExample:
    record = collected(exchange(1))
    record.pop("ng_trajectory")
    change(record["ng_model_call_capture"])
    shown = {"ng_model_call_capture": known({**record["ng_model_call_capture"], "metrics": None})}
    for line in shown["ng_model_call_capture"]["calls"]:
        if isinstance(line, dict):
            for key in [key for key in line if key != "model_call_id"]:
                del line[key]
    project_record(record, identity=trajectory_identity_of(ROW))
    return GapExample(story=story, given=shown, record=record)


def _invalid_gap() -> GapExample:
    def change(capture: JsonObject) -> None:
        capture["gaps"] = ["the disk was full"]

    return _tampered("A tool put a text among the gaps.", change)


def _projection_failed() -> GapExample:
    def change(capture: JsonObject) -> None:
        capture["calls"] = ["call-1"]

    return _tampered("A tool replaced the captured calls by their ids.", change)


def _wrong_bundle() -> JsonObject:
    return bundle(invocation("root", call(1), state="completed"))


def _join_failed() -> GapExample:
    return _seen(
        exchange(1), story="The bundle has a field that the schema does not know.", observations=_wrong_bundle()
    )


def _compacted(**changes: Any) -> JsonObject:
    return {
        "kind": "context_compaction",
        "invocation_id": "root",
        "outcome": "completed",
        "summary": (
            "This session is being continued from a previous conversation that ran out of context. "
            "The conversation is summarized below:\nSummary:\nThe answer is 42"
        ),
        **changes,
    }


def _ambiguous_compaction() -> GapExample:
    asked = "Your task is to create a detailed summary of the conversation so far"
    answered = {"type": "text", "text": "<summary>The answer is 42</summary>"}
    summaries = [
        exchange(
            number,
            dialect="messages",
            request={"messages": [{"role": "user", "content": asked}]},
            response={"id": f"resp-{number}", "type": "message", "content": [answered]},
        )
        for number in (1, 2)
    ]
    return _seen(
        *summaries,
        story="Two calls answered with the same summary, and nothing says which one was used.",
        observations=bundle(invocation("root"), _compacted(), source="claude_code"),
    )


def _compaction_unnamed() -> GapExample:
    gap = _stated("compaction_model_call_reference_unavailable", invocation_id="root")
    return _seen(
        exchange(1),
        story="A harness shortened its context and kept the summary, but not which call wrote it.",
        observations=bundle(invocation("root", call(1)), _compacted(summary="The answer is 42"), gaps=[gap]),
    )


def _wrong_producer() -> GapExample:
    return _seen(
        exchange(1),
        story="The agent's turn has no number.",
        producer=trajectory(turn(1, call(1), turn_no=0)),
    )


def _other_identity() -> GapExample:
    return _seen(
        exchange(1),
        story="The agent made up a rollout id of its own.",
        producer={"task_id": "0", "rollout_id": "try-1", "turns": []},
    )


def _wrong_override() -> GapExample:
    row = {**ROW, "trajectory_identity": {"task_id": "task-7"}}
    return _seen(exchange(1), story="The row gives one of the two ids.", row=row)


def _no_calls() -> GapExample:
    return _seen(
        story="Nothing was captured, and the agent states one turn.",
        producer=trajectory(turn(1)),
    )


def _no_turns() -> GapExample:
    return _seen(
        exchange(1),
        story="The agent returned what it observed, and no trajectory.",
        observations=bundle(invocation("root", call(1))),
    )


def _no_conversation() -> GapExample:
    return _seen(
        exchange(1),
        story="The agent names its call and leaves out what was said.",
        observations=bundle(invocation("root", call(1), conversation=[])),
    )


def _not_reported() -> GapExample:
    return _seen(
        exchange(1),
        story="A program that knows a base URL and nothing of Gym answers one question.",
        observations=bundle(gaps=[_stated("agent_observations_not_reported")], source="command_agent"),
    )


def _invalid_line() -> GapExample:
    gap = _stated("agent_observation_line_invalid", detail="line 2: duration_ms: Input should be a valid number")
    return _seen(
        exchange(1),
        story="A program reports its conversation, and then a duration as a text.",
        observations=bundle(invocation("root", call(1)), gaps=[gap], source="command_agent"),
    )


def _no_resolution() -> GapExample:
    gap = _stated("resolution_unavailable", invocation_id="root")
    return _seen(
        exchange(1),
        story="The verifier gave a reward, and did not say whether the task is solved.",
        producer=trajectory(turn(1, call(1)), gaps=[gap]),
    )


def _scope() -> GapExample:
    return _seen(
        exchange(1),
        exchange(2),
        story="A library below the agent tries again by itself, and shows only the last answer.",
        shows=("model_call_id",),
        producer=trajectory(turn(1, call(2)), gaps=[_stated("turn_model_call_scope_incomplete")]),
    )


def _tool_times() -> GapExample:
    tool = {"kind": "tool_call", "invocation_id": "root", "tool_call_id": "tool-1"}
    return _seen(
        exchange(1),
        story="The agent's trajectory says when the tool began, its bundle an earlier end.",
        observations=bundle(invocation("root", call(1)), {**tool, "completed_at": 5.0}),
        producer=trajectory(turn(1, call(1)), tool_calls=[{**tool, "started_at": 6.0}]),
    )


def _redacted() -> GapExample:
    return _seen(
        exchange(1),
        story="The agent works on screenshots, and left them out of the turns.",
        producer=trajectory(turn(1, call(1)), gaps=[_stated("multimodal_history_redacted")]),
    )


GAP_EXAMPLES: dict[str, Callable[[], GapExample]] = {
    "model_call_reference_unmatched": _unmatched,
    "model_call_reference_ambiguous": _ambiguous,
    "model_call_reference_conflict": _conflict,
    "model_call_reference_unavailable": _reference_unavailable,
    "model_call_ownership_unavailable": _unowned,
    "model_call_identity_duplicate": _duplicate,
    "model_call_field_invalid": _invalid_field,
    "model_call_capture_no_records": _no_records,
    "model_call_capture_records_unreadable": _unreadable_lines,
    "model_call_capture_incomplete": _incomplete,
    "model_call_capture_unreadable": _unreadable_capture,
    "model_call_capture_gap_invalid": _invalid_gap,
    "agent_observation_join_failed": _join_failed,
    "agent_observations_invalid": _join_failed,
    "agent_observations_not_reported": _not_reported,
    "agent_observation_line_invalid": _invalid_line,
    "compaction_model_call_match_ambiguous": _ambiguous_compaction,
    "compaction_model_call_reference_unavailable": _compaction_unnamed,
    "producer_trajectory_invalid": _wrong_producer,
    "producer_trajectory_identity_mismatch": _other_identity,
    "trajectory_identity_invalid": _wrong_override,
    "model_calls_unavailable": _no_calls,
    "turns_unavailable": _no_turns,
    "conversation_unavailable": _no_conversation,
    "resolution_unavailable": _no_resolution,
    "turn_model_call_scope_incomplete": _scope,
    "trajectory_projection_failed": _projection_failed,
    "tool_timing_invalid": _tool_times,
    "multimodal_history_redacted": _redacted,
}

"""What a program says about itself: lines of JSON in its report file, read leniently line by line. Pure.

A line is one observation of the public schema (`agent_invocation`, `tool_call`, `context_compaction`, `sandbox`), or
a `turn`, a `gap`, or the `answer`. A later line about the same thing replaces the earlier one, so that a program can
write while it works and say more at the end. A line that does not fit is left out and leaves a gap; nothing is
repaired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from nemo_gym.records import codec
from nemo_gym.records.conversation import checked_item
from nemo_gym.records.gaps import OBSERVATION_LINE_INVALID, OBSERVATIONS_NOT_REPORTED
from nemo_gym.rollout_observability import (
    AgentInvocation,
    AgentObservationBundle,
    ContextCompactionObservation,
    ObservationGap,
    SandboxObservation,
    ToolCallObservation,
    TrajectoryRecord,
    TrajectoryTurn,
)

SOURCE = "command_agent"
SHOWN_PROBLEMS = 50
"""So many bad lines get a gap each; the last gap counts the others."""

_REASON_LENGTH = 200


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Answer(_Line):
    """The program's last word: a text, or items of the Responses API with its tool calls and their outputs."""

    kind: Literal["answer"] = "answer"
    text: str | None = None
    output: list[Annotated[dict[str, Any], BeforeValidator(checked_item)]] | None = None
    usage: dict[str, Any] | None = Field(default=None, description="In the Responses shape; None is unknown.")


@dataclass(slots=True)
class Report:
    """What was said, each thing by its identity; `problems` are the first (line number, reason), others are counted."""

    invocations: dict[str, AgentInvocation] = field(default_factory=dict)
    tools: dict[tuple[str, str], ToolCallObservation] = field(default_factory=dict)
    others: list[ContextCompactionObservation | SandboxObservation] = field(default_factory=list)
    turns: dict[tuple[str, int], TrajectoryTurn] = field(default_factory=dict)
    gaps: list[ObservationGap] = field(default_factory=list)
    answer: Answer | None = None
    problems: list[tuple[int, str]] = field(default_factory=list)
    other_problems: int = 0

    @property
    def says_nothing(self) -> bool:
        """Whether no observation and no turn was reported."""
        return not (self.invocations or self.tools or self.others or self.turns)

    def misses(self, number: int, reason: str) -> None:
        """Note a line that does not fit. A report may be nothing else, so most of them are only counted."""
        if len(self.problems) < SHOWN_PROBLEMS:
            self.problems.append((number, reason[:_REASON_LENGTH]))
        else:
            self.other_problems += 1

    def take(self, line: Mapping[str, Any], *, task_id: str, rollout_id: str) -> None:
        """Take one line; raises ValueError when it does not fit its schema."""
        kind, fields = line.get("kind"), {key: value for key, value in line.items() if key != "kind"}
        if kind == "agent_invocation":
            invocation = AgentInvocation.model_validate(line)
            self.invocations[invocation.invocation_id] = invocation
        elif kind == "tool_call":
            tool = ToolCallObservation.model_validate(line)
            self.tools[tool.invocation_id, tool.tool_call_id] = tool
        elif kind in ("context_compaction", "sandbox"):
            self.others.append(_OTHER.validate_python(line))
        elif kind == "turn":
            turn = TrajectoryTurn.model_validate({"task_id": task_id, "rollout_id": rollout_id, **fields})
            if (turn.task_id, turn.rollout_id) != (task_id, rollout_id):
                raise ValueError("it is of another rollout")
            self.turns[turn.invocation_id, turn.turn_no] = turn
        elif kind == "gap":
            self.gaps.append(ObservationGap.model_validate(fields))
        elif kind == "answer":
            answer = Answer.model_validate(line)
            if (answer.text is None) == (answer.output is None):
                raise ValueError("an answer has either `text` or `output`")
            self.answer = answer
        else:
            raise ValueError(f"`kind` is not one of {', '.join(KINDS)}")


KINDS = ("agent_invocation", "tool_call", "context_compaction", "sandbox", "turn", "gap", "answer")
"""What a line may be about."""

_OTHER: TypeAdapter[ContextCompactionObservation | SandboxObservation] = TypeAdapter(
    Annotated[ContextCompactionObservation | SandboxObservation, Field(discriminator="kind")]
)


def read_report(lines: Iterable[bytes], *, task_id: str, rollout_id: str) -> Report:
    """Return what the lines of a report file say; bad ones are `problems`, empty ones nothing.

    A ValueError of `lines` says why there are no more, and is the last problem.
    """
    report = Report()
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                report.take(codec.decode_object(line), task_id=task_id, rollout_id=rollout_id)
            except ValidationError as error:
                report.misses(number, _reason(error))
            except ValueError as error:
                report.misses(number, str(error))
    except ValueError as error:
        report.misses(number + 1, str(error))
    return report


def _reason(error: ValidationError) -> str:
    """Return the first thing that is wrong, without the value that was given."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}"[:_REASON_LENGTH] if where else str(first["msg"])[:_REASON_LENGTH]


def observation_bundle(report: Report, *, own: AgentInvocation | None) -> AgentObservationBundle:
    """Return the bundle of a report. `own` stands for the process where the report has no invocation of that id."""
    invocations = dict(report.invocations)
    if own is not None:
        invocations.setdefault(own.invocation_id, own)
    gaps = [*report.gaps]
    if report.says_nothing:
        gaps.append(ObservationGap(code=OBSERVATIONS_NOT_REPORTED))
    gaps += [
        ObservationGap(code=OBSERVATION_LINE_INVALID, detail=f"line {number}: {reason}")
        for number, reason in report.problems
    ]
    if more := report.other_problems:
        gaps.append(ObservationGap(code=OBSERVATION_LINE_INVALID, detail=f"further lines: {more}"))
    records = [*invocations.values(), *report.tools.values(), *report.others]
    try:
        return AgentObservationBundle(source=SOURCE, records=records, gaps=gaps)
    except ValidationError as error:
        # Each record fits, but together they do not: parents in a circle. None of it can be used.
        gap = ObservationGap(code=OBSERVATION_LINE_INVALID, detail=f"all invocations: {_reason(error)}")
        return AgentObservationBundle(source=SOURCE, records=[], gaps=[*gaps, gap])


def producer_trajectory(
    report: Report, *, task_id: str, rollout_id: str, resolved: object = None
) -> TrajectoryRecord | None:
    """Return the turns that the program stated; None when it stated none. `resolved` is the verifier's own word."""
    turns = list(report.turns.values())
    if not turns:
        return None
    if isinstance(resolved, bool) and turns[-1].resolved is None:
        turns[-1] = turns[-1].model_copy(update={"resolved": resolved})
    return TrajectoryRecord(task_id=task_id, rollout_id=rollout_id, turns=turns)

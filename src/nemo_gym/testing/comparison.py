"""A record beside what its witnesses say: which rows of evidence apply, and where the two differ. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nemo_gym.health import evaluate_line
from nemo_gym.records import codec, keys
from nemo_gym.records.call_outcome import failed
from nemo_gym.records.evidence import TrajectoryModelCall, TrajectoryRecord, ValidationError, read
from nemo_gym.records.gaps import OBSERVATIONS_NOT_REPORTED
from nemo_gym.testing.evidence_rows import ROWS, check_record
from nemo_gym.testing.scenarios import Scenario
from nemo_gym.testing.tool_lies import tool_lies
from nemo_gym.testing.witness import WhatHappened

HEALTH = "health"
"""The row of the health checks, beside those of evidence."""

ALL_ROWS = (*ROWS, HEALTH)

NOTHING_REPORTED = "nothing reported: the program gave no observations"

_OF_CALLS = ("TE-1", "TE-2", "TE-4", "TE-7")
_REPORTED = ("TE-3", "TE-5", "TE-8", "TE-9")
"""Rows that captured calls alone cannot fulfil."""


def rows_that_apply(scenario: Scenario, told: WhatHappened) -> list[str]:
    """Return the rows that an agent owes for what happened to it."""
    if not told.model_calls:
        return [] if scenario.cut_off else ["TE-1", "TE-6", "TE-8"]
    rows = set(_OF_CALLS)
    if not scenario.cut_off:
        rows |= {"TE-6", "TE-8", HEALTH}
        if told.finished_calls:
            rows |= {"TE-3", "TE-9"}
        if told.tools_ended or scenario.child_steps:
            rows.add("TE-5")
    return [row for row in ALL_ROWS if row in rows]


def check_scenario(scenario: Scenario, record: Mapping[str, Any], told: WhatHappened) -> dict[str, list[str] | None]:
    """Return the problems of every row, None where a row does not apply."""
    problems = check_record(record) | {HEALTH: _health(record, told)}
    if not told.model_calls:
        reason = record.get(keys.FAILURE_REASON)
        said = f"; its rollout failed: {reason}" if isinstance(reason, str) else ""
        problems["TE-1"].append(f"the agent never asked the model of this run{said}")
    try:
        trajectory = read(TrajectoryRecord, record.get(keys.TRAJECTORY))
    except ValidationError:
        trajectory = None  # which every row has said already
    if trajectory is not None:
        problems["TE-1"] += _exchanges(trajectory.model_calls, told)
        problems["TE-2"] += _tokens(trajectory.model_calls, told)
        problems["TE-5"] += _executions(trajectory, told) + tool_lies(scenario, trajectory, told)
        problems["TE-7"] += _requests(trajectory.model_calls, told)
        if scenario.child_steps and len(trajectory.invocations) < 2:
            problems["TE-8"].append("the subagent has no invocation of its own")
    problems["TE-6"] += _verdict(record, told)
    for row in _REPORTED if _reported_nothing(record) else ():
        problems[row] = [NOTHING_REPORTED] if problems[row] else []
    applying = rows_that_apply(scenario, told)
    if trajectory is not None and not scenario.cut_off:
        if trajectory.turns and not told.finished_calls:
            problems["TE-3"].append("turns are stated, though no call was answered")
            applying.append("TE-3")
        if trajectory.tool_calls:
            applying.append("TE-5")  # what is claimed without need is checked as well
    return {row: problems[row] if row in applying else None for row in ALL_ROWS}


def _reported_nothing(record: Mapping[str, Any]) -> bool:
    bundle = record.get(keys.AGENT_OBSERVATIONS)
    gaps = bundle.get("gaps") if isinstance(bundle, Mapping) else None
    return any(gap.get("code") == OBSERVATIONS_NOT_REPORTED for gap in gaps or ())


def _exchanges(calls: list[TrajectoryModelCall], told: WhatHappened) -> list[str]:
    """Each attempt is there, also the second of two equal ones, and says how it ended."""
    problems = []
    if len(calls) != len(told.model_calls):
        problems.append(f"{len(told.model_calls)} model calls happened, {len(calls)} are recorded")
    if left := _difference(
        (call["response_id"] for call in told.finished_calls if call["response_id"]),
        (call.response_metadata.response_id for call in calls),
    ):
        problems.append(f"{len(left)} answered calls are not recorded")
    if left := _difference(
        (call["status"] for call in told.model_calls if call["status"] != 200),
        (call.response_metadata.status_code for call in calls if failed(call)),
    ):
        problems.append(f"refusals with status {left} are not recorded")
    cut = sum(call["status"] == 200 and not call["finished"] for call in told.model_calls)
    recorded = sum(failed(call) and call.response_metadata.status_code in (200, None) for call in calls)
    if cut > recorded:
        problems.append("an answer that was cut is recorded as whole")
    return problems


def _tokens(calls: list[TrajectoryModelCall], told: WhatHappened) -> list[str]:
    reports = {call["response_id"]: call["reports_usage"] for call in told.finished_calls}
    problems = []
    for at, call in enumerate(calls):
        reported = reports.get(call.response_metadata.response_id)
        known = call.token_stats.prompt_tokens is not None and call.token_stats.completion_tokens is not None
        if reported is not None and reported != known:
            problems.append(f"model_calls[{at}]: counts are {'lost' if reported else 'made up'}")
    return problems


def _executions(trajectory: TrajectoryRecord, told: WhatHappened) -> list[str]:
    """Each execution is there once, failed when it failed, with the output that the tool gave."""
    names = {tool["name"] for tool in told.tools_started}
    recorded = [tool for tool in trajectory.tool_calls if tool.tool_name in names]
    problems = []
    if len(recorded) != len(told.tools_started):
        problems.append(f"{len(told.tools_started)} tool executions happened, {len(recorded)} are recorded")
    if left := _difference(
        ((tool["name"], "failed" if tool["status"] >= 400 else "completed") for tool in told.tools_ended),
        ((tool.tool_name, tool.status) for tool in recorded),
    ):
        problems.append(f"tool executions that ended otherwise than recorded: {sorted(set(left))}")
    outputs = [tool.output if isinstance(tool.output, str) else codec.encode(tool.output).decode() for tool in recorded]
    missing = [tool["name"] for tool in told.tools_ended if not any(tool["output"] in output for output in outputs)]
    if missing:
        problems.append(f"outputs that no record has: {missing}")
    return problems


def _requests(calls: list[TrajectoryModelCall], told: WhatHappened) -> list[str]:
    left = _difference((call["request"] for call in told.model_calls), (call.request for call in calls))
    return [f"{len(left)} requests are not recorded as they were sent"] if left else []


def _verdict(record: Mapping[str, Any], told: WhatHappened) -> list[str]:
    rewards = [verdict["reward"] for verdict in told.verdicts]
    if not rewards:
        return ["a reward that no verifier gave"] if record.get(keys.REWARD) is not None else []
    if rewards[-1] is None:
        return [] if record.get(keys.MASK_SAMPLE) is True else ["the verifier could not score, yet the score counts"]
    return [] if record.get(keys.REWARD) == rewards[-1] else ["the reward is not the verifier's"]


def _health(record: Mapping[str, Any], told: WhatHappened) -> list[str]:
    """The findings are those that what happened calls for, no other and none less."""
    expected = set()
    if any(not call["reports_usage"] for call in told.finished_calls):
        expected.add("model_call_missing_token_counts")
    if told.model_calls and not told.model_calls[-1]["finished"]:
        expected.add("rollout_ended_on_failed_model_call")
    # An agent that states its turns states that there were none when no call came to an end.
    possible = expected if told.finished_calls else expected | {"rollout_missing_agent_turns"}
    if any(call["cut"] and call["reports_usage"] for call in told.model_calls):
        # The counts that a cut answer began with are not its counts, and no agent can help that.
        possible = possible | {"model_call_zero_completion_tokens", "model_call_missing_token_counts"}
    outcome = evaluate_line(codec.encode(record))
    found = {finding.check for finding in outcome.findings}
    missing = {
        check: ": the check had nothing to look at" if check in outcome.unobserved else ""
        for check in sorted(expected - found)
    }
    return [f"finding `{check}` is missing{why}" for check, why in missing.items()] + [
        f"finding `{check}`" for check in sorted(found - possible)
    ]


def _difference(happened: Iterable[Any], recorded: Iterable[Any]) -> list[Any]:
    """Return what happened more often than it is recorded; values need not be hashable."""
    rest = list(recorded)
    left = []
    for value in happened:
        if value in rest:
            rest.remove(value)
        else:
            left.append(value)
    return left

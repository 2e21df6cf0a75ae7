"""For each health check a run that it finds something in: what the records hold, and what the check says."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

from evidence import JsonObject, bundle, call, collected, exchange, invocation, known, response, trajectory, turn

from nemo_gym.health import ROLLOUT_CHECKS, evaluate, run_health_checks

USAGE: JsonObject = {"input_tokens": 12, "output_tokens": 8}


@dataclass(frozen=True, kw_only=True)
class CheckExample:
    """A run with a finding: `story` says what happened, `given` is the part of its records that matters."""

    story: str
    given: JsonObject | str
    summary: JsonObject
    verdicts: list[JsonObject]


def checked(story: str, *records: JsonObject | str, given: JsonObject | str) -> CheckExample:
    """Return the example of a run with these records; a text is a line as it stands."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.jsonl"
        lines = [line if isinstance(line, str) else json.dumps(line) for line in records]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        result = run_health_checks(path, workers=1)
        verdicts = [json.loads(line) for line in result.verdicts_path.read_text(encoding="utf-8").splitlines()]
    return CheckExample(story=story, given=given, summary=result.summary, verdicts=verdicts)


def healthy(*exchanges: JsonObject, usage: JsonObject | None = None, **changes: Any) -> JsonObject:
    """Return a record whose agent names each call in a turn of its own; without changes it is healthy."""
    calls = exchanges or (exchange(1),)
    ids = [{"model_call_id": line["model_call_id"]} for line in calls]
    stated = {
        "observations": bundle(invocation("root", *ids)),
        "producer": trajectory(*(turn(number, ref) for number, ref in enumerate(ids, 1))),
    }
    return collected(*calls, usage=usage or USAGE, **{**stated, **changes})


def _of(record: JsonObject, *wanted: str) -> JsonObject:
    """Return the named fields of a trajectory's calls or turns: `model_calls.token_stats`, for instance."""
    shown: JsonObject = {}
    for path in wanted:
        group, name = path.split(".")
        rows = record["ng_trajectory"][group]
        parts = shown.setdefault(group, [{} for _ in rows])
        for part, row in zip(parts, rows, strict=True):
            part[name] = known(row[name])
    return {"ng_trajectory": shown}


def _execution_error() -> CheckExample:
    def broken(_facts: object) -> None:
        raise ZeroDivisionError

    with mock.patch.object(
        evaluate, "ROLLOUT_CHECKS", MappingProxyType({**ROLLOUT_CHECKS, "agent_turn_hollow": broken})
    ):
        return checked(
            "A check was made to divide by zero, since none of the shipped ones is known to raise.",
            healthy(),
            given="",
        )


def _unreadable() -> CheckExample:
    line = '{"_ng_task_index": 0, "_ng_rollout_index": 0, "rew'
    return checked("The collector was killed in the middle of a line.", line, given=line)


def _duplicate() -> CheckExample:
    record = healthy()
    identity = {key: value for key, value in record.items() if key.startswith("_ng_")}
    return checked("Two lines of one file have one identity.", record, record, given=identity)


def _missing_turns() -> CheckExample:
    record = healthy(producer=trajectory())
    given = {"ng_trajectory": {"turns": record["ng_trajectory"]["turns"]}}
    return checked("The agent states that it completed no turn, although it was scored.", record, given=given)


def _ended_on_failure() -> CheckExample:
    failed = exchange(2, status_code=503, error_category="upstream_error", response=None)
    record = healthy(exchange(1), failed)
    given = _of(record, "model_calls.model_call_id", "model_calls.started_at", "model_calls.response_metadata")
    for line in given["ng_trajectory"]["model_calls"]:
        kept = ("model_ref", "status_code", "error_category")
        line["response_metadata"] = {key: line["response_metadata"].get(key) for key in kept}
    return checked("The second and last call failed, and the agent gave up.", record, given=known(given))


def _hollow() -> CheckExample:
    record = healthy(producer=trajectory(turn(1, call(1), answer=[])))
    return checked(
        "The agent noted a turn without what the model answered.",
        record,
        given=_of(record, "turns.turn_no", "turns.answer", "turns.model_calls"),
    )


def _zero_tokens() -> CheckExample:
    record = healthy(
        exchange(1, response=response(1, usage={"input_tokens": 12, "output_tokens": 0})),
        usage={"input_tokens": 12, "output_tokens": 0},
    )
    return checked(
        "The answer has text, and a usage of 0 output tokens.",
        record,
        given=_of(record, "model_calls.model_call_id", "model_calls.token_stats"),
    )


def _missing_tokens() -> CheckExample:
    record = healthy(exchange(1, response=response(1, usage={"input_tokens": 12})))
    return checked(
        "The provider reports the prompt's tokens only.",
        record,
        given=_of(record, "model_calls.model_call_id", "model_calls.token_stats"),
    )


def _mismatch() -> CheckExample:
    record = healthy(observations=bundle(invocation("root", call(1), call(9))))
    refs = {
        "invocations": [{"model_calls": [call(1), call(9)]}],
        **_of(record, "model_calls.model_call_id")["ng_trajectory"],
    }
    return checked("The agent names a call that was never captured.", record, given={"ng_trajectory": refs})


def _failed_call() -> CheckExample:
    record = healthy(exchange(1, status_code=429, error_category="rate_limit", response=None), exchange(2))
    given = _of(record, "model_calls.model_call_id", "model_calls.response_metadata")
    for line in given["ng_trajectory"]["model_calls"]:
        line["response_metadata"] = {"status_code": line["response_metadata"]["status_code"]}
    return checked("A call failed, and its retry was answered.", record, given=given)


def _token_mismatch() -> CheckExample:
    record = healthy(exchange(1), exchange(2))
    given = {"response": record["response"], **_of(record, "model_calls.model_call_id", "model_calls.token_stats")}
    return checked("The agent reports the usage of its last response instead of the sum.", record, given=given)


def _runaway() -> CheckExample:
    empty = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []}
    record = healthy(exchange(1, response=response(1, **empty)))
    given = _of(record, "model_calls.model_call_id", "model_calls.response")
    return checked("The model thought until its limit, and the provider hides the thoughts.", record, given=given)


def _repeats(story: str, *records: JsonObject, given: JsonObject) -> CheckExample:
    numbered = [{**record, "_ng_rollout_index": number} for number, record in enumerate(records)]
    return checked(story, *numbered, given=given)


def _consistently() -> CheckExample:
    hollow = healthy(producer=trajectory(turn(1, call(1), answer=[])))
    return _repeats(
        "Both repeats of the task have a hollow turn.",
        hollow,
        hollow,
        given=_of(hollow, "turns.turn_no", "turns.answer"),
    )


def _none_successful() -> CheckExample:
    nothing = {"input_tokens": 0, "output_tokens": 0}
    failed = healthy(exchange(1, status_code=400, error_category="client_error", response=None), usage=nothing)
    given = _of(failed, "turns.model_calls", "model_calls.model_call_id", "model_calls.response_metadata")
    for line in given["ng_trajectory"]["model_calls"]:
        line["response_metadata"] = {"status_code": line["response_metadata"]["status_code"]}
    return _repeats("The model refused the one call of each repeat.", failed, failed, given=given)


CHECK_EXAMPLES: Mapping[str, Callable[[], CheckExample]] = {
    "check_execution_error": _execution_error,
    "record_unreadable": _unreadable,
    "rollout_duplicate_identity": _duplicate,
    "rollout_missing_agent_turns": _missing_turns,
    "rollout_ended_on_failed_model_call": _ended_on_failure,
    "agent_turn_hollow": _hollow,
    "model_call_zero_completion_tokens": _zero_tokens,
    "model_call_missing_token_counts": _missing_tokens,
    "trajectory_capture_mismatch": _mismatch,
    "model_call_failed": _failed_call,
    "rollout_token_count_mismatch": _token_mismatch,
    "model_call_runaway_generation": _runaway,
    "task_consistently_unhealthy": _consistently,
    "task_no_successful_model_calls": _none_successful,
}

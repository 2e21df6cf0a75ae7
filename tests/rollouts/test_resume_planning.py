"""What a resume owes, as properties (collection of saved states is arbitrary)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.records.failures import observed_elapsed
from nemo_gym.records.rows import RolloutKey
from nemo_gym.rollouts.resume import longest_first, migrate_invalid_judge_main_rows, plan_resume

KEYS = st.builds(RolloutKey, st.integers(0, 3), st.integers(0, 3))
SIDECAR_ROWS = st.fixed_dictionaries(
    {"_ng_task_index": st.integers(0, 3), "_ng_rollout_index": st.integers(0, 3)},
    optional={
        "_ng_failure_class": st.sampled_from(["agent_run_error", "timeout_exceeded", "skipped"]),
        "_ng_failure_terminal": st.booleans(),
        "_ng_omitted_rollout": st.just(True),
        "_ng_unrouted_run_error": st.just(True),
    },
)
ALL = [RolloutKey(task, rollout) for task in range(4) for rollout in range(4)]


def tries(sidecar, key):
    return [
        row
        for row in sidecar
        if (row["_ng_task_index"], row["_ng_rollout_index"]) == key
        and not row.get("_ng_omitted_rollout")
        and not row.get("_ng_unrouted_run_error")
    ]


@given(st.sets(KEYS), st.lists(SIDECAR_ROWS, max_size=30), st.integers(1, 4))
def test_owed_is_exactly_what_has_no_success_no_final_failure_and_attempts_left(done, sidecar, max_attempts):
    plan = plan_resume(done, sidecar, max_attempts=max_attempts)
    for key in ALL:
        failed = tries(sidecar, key)
        final = any(row.get("_ng_failure_terminal") for row in failed)
        assert plan.is_owed(key) == (key not in done and not final and len(failed) < max_attempts)


@given(st.sets(KEYS), st.lists(SIDECAR_ROWS, max_size=30))
def test_the_attempt_number_is_the_number_of_counted_failures_C11(done, sidecar):
    plan = plan_resume(done, sidecar, max_attempts=3)
    for key in ALL:
        row = {"_ng_task_index": key.task, "_ng_rollout_index": key.rollout}
        prepared = plan.prepared(row, key)
        assert prepared.get("_ng_attempt_index", 0) == len(tries(sidecar, key))
        assert "_ng_attempt_index" not in row


@given(st.sets(KEYS), st.lists(SIDECAR_ROWS, max_size=30), st.integers(1, 4), st.data())
def test_finishing_what_is_owed_leaves_nothing_owed(done, sidecar, max_attempts, data):
    plan = plan_resume(done, sidecar, max_attempts=max_attempts)
    owed = {key for key in ALL if plan.is_owed(key)}
    again = plan_resume(done | owed, sidecar, max_attempts=max_attempts)
    assert not any(again.is_owed(key) for key in ALL)
    some = data.draw(st.sets(st.sampled_from(sorted(owed)))) if owed else set()
    partly = plan_resume(done | some, sidecar, max_attempts=max_attempts)
    assert {key for key in ALL if partly.is_owed(key)} == owed - some


def test_final_timeouts_are_retried_only_when_asked_and_skipped_never():
    rows = [
        {"_ng_task_index": task, "_ng_rollout_index": 0, "_ng_failure_class": label, "_ng_failure_terminal": final}
        for task, (label, final) in enumerate([("timeout_exceeded", True), ("skipped", False), ("other", True)])
    ]
    keys = [RolloutKey(task, 0) for task in range(3)]
    assert [plan_resume((), rows, max_attempts=3).is_owed(key) for key in keys] == [False, True, False]
    asked = plan_resume((), rows, max_attempts=3, retry_terminal_timeouts=True)
    assert [asked.is_owed(key) for key in keys] == [True, False, False]


def test_a_reusable_deliverable_travels_with_the_next_try():
    row = {"_ng_task_index": 0, "_ng_rollout_index": 0, "reuse_cached_deliverable": "path"}
    plan = plan_resume((), [row], max_attempts=3)
    assert plan.prepared({}, RolloutKey(0, 0))["reuse_cached_deliverable"] == "path"


def test_longest_first_puts_known_durations_in_front():
    rows = [{"_ng_task_index": task, "_ng_rollout_index": 0} for task in range(4)]
    ordered = longest_first(rows, {RolloutKey(2, 0): 5.0, RolloutKey(1, 0): 9.0})
    assert [row["_ng_task_index"] for row in ordered] == [1, 2, 0, 3]


def test_results_with_unusable_judgements_move_to_the_sidecar_once(tmp_path):
    output = tmp_path / "rollouts.jsonl"
    rows = [{"_ng_task_index": task, "_ng_rollout_index": 0, "reward": 0} for task in range(2)]
    rows[1] |= {"invalid_judge_response": True, "_ng_failure_terminal": True}
    text = "".join(json.dumps(row) + "\n" for row in rows)
    output.write_text(text)
    assert migrate_invalid_judge_main_rows(output) == 1
    sidecar = (tmp_path / "rollouts_failures.jsonl").read_text()
    [moved] = map(json.loads, sidecar.splitlines())
    assert moved["_ng_failure_class"] == "judge_invalid"
    assert "_ng_failure_terminal" not in moved
    assert [json.loads(line) for line in output.read_text().splitlines()] == rows[:1]
    output.write_text(text)  # a kill between the two files left the row in both
    migrate_invalid_judge_main_rows(output)
    assert (tmp_path / "rollouts_failures.jsonl").read_text() == sidecar


@pytest.mark.parametrize("value", [["x"], {"a": 1}, 5, False, "", None])
def test_whatever_an_agent_calls_its_failure_a_resume_reads_it(value):
    row = {
        "_ng_task_index": 0, "_ng_rollout_index": 0, "_ng_failure_class": value, "failure_kind": value,
        "elapsed_seconds": value,
    }  # fmt: skip
    for retry in (False, True):
        plan = plan_resume([], [row], max_attempts=2, retry_terminal_timeouts=retry)
        assert plan.attempts == {(0, 0): 1}
        assert plan.is_owed(RolloutKey(0, 0))


@pytest.mark.parametrize("seconds", [10**400, float("inf"), float("nan"), -1, "soon", [1], {}])
def test_a_duration_that_is_none_counts_as_unknown(seconds):
    assert observed_elapsed({"elapsed_seconds": seconds}) is None
    assert observed_elapsed({"elapsed_seconds": seconds, "response": {"metadata": {"elapsed_seconds": "4.5"}}}) == 4.5

from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pytest
from health_records import CASES, call, record, trajectory, turn, without, write_lines

from nemo_gym.capture import CaptureStore
from nemo_gym.health import CHECK_REGISTRY, health_check_run_dir, normalize_ignored_checks, run_health_checks
from nemo_gym.health.types import HealthCheckResult
from nemo_gym.records.identity import rollout_id_of
from nemo_gym.rollouts.enrich import attach_evidence

RUN_A, RUN_B = "a" * 32, "b" * 32


def rows_of(result: HealthCheckResult) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.verdicts_path.read_text().splitlines()]


def _mixed_records() -> list[Any]:
    hollow = trajectory(turns=[turn(1, answer=""), turn(2)])
    records: list[Any] = [record(task, rollout) for task in (10, 2, "text") for rollout in range(3)]
    records += [record(3, 0, ng_trajectory=hollow), record(3, 1, ng_trajectory=hollow)]
    records += [
        without(record(4, 0), "ng_trajectory"),
        without(record(), "_ng_task_index"),
        record(5, 0, stage_index=1),
    ]
    records += [b"", b"   ", b"{cut", record(2, 0), b"\0\0\0", record(5, 0, stage_index=2), record(6, 0, x="é" * 3000)]
    return records


def test_health_reads_records_alone_and_never_captures_or_rewards(tmp_path: Path) -> None:
    """A26: what it finds is the same with the captures gone, with captures that say otherwise, and for any reward."""
    captures, records = tmp_path / "model-calls", []
    store = CaptureStore(captures)
    for number, case in enumerate(CASES):
        row = {**case["row"], "_ng_task_index": number, "_ng_rollout_index": 0}
        for exchange in case["captured_exchanges"]:
            store.record(str(rollout_id_of(row)), exchange)
        result = {**case["result_fields"], "reward": 1.0, "ng_agent_observations": case["ng_agent_observations"]}
        if case["producer_ng_trajectory"] is not None:
            result["ng_trajectory"] = case["producer_ng_trajectory"]
        records.append({**row, **attach_evidence(row, result, capture_dirs=[captures])})
    path = write_lines(tmp_path / "rollouts.jsonl", *records)
    saved, first = path.read_bytes(), run_health_checks(path)
    found = first.summary, rows_of(first)
    assert {row["verdict"] for row in found[1]} == {"healthy", "unhealthy", "unobserved"}
    for record_ in records:
        rollout_id = record_["ng_model_call_capture"]["rollout_id"]
        store.record(rollout_id, {"model_call_id": "c1", "status_code": 500, "error_category": "upstream_error"})
        store.mark_incomplete(rollout_id)
    contradicted = run_health_checks(path)
    assert (contradicted.summary, rows_of(contradicted)) == found
    shutil.rmtree(captures)
    alone = run_health_checks(path)
    assert (alone.summary, rows_of(alone)) == found
    assert path.read_bytes() == saved
    lost = run_health_checks(write_lines(path, *({**record_, "reward": 0.0} for record_ in records)))
    assert (lost.summary, rows_of(lost)) == found


def test_one_record_gives_the_two_reports_with_every_key(tmp_path: Path) -> None:
    result = run_health_checks(write_lines(tmp_path / "rollouts.jsonl", record(7, 1)))
    assert result.summary_path == tmp_path / "quality_summary.json"
    assert json.loads(result.summary_path.read_text()) == result.summary
    run = result.summary["run"]
    assert run["artifacts"]["records"] == run["artifacts"]["captures"] == 1
    assert list(run["artifacts"]["coverage"]) == list(run["issues"]) == list(CHECK_REGISTRY)
    assert run["verdicts"] == {"healthy": 1, "unhealthy": 0, "unobserved": 0}
    assert run["stats"]["tokens"] == {"prompt": 20, "completion": 4, "capture_prompt": 20, "capture_completion": 4}
    assert result.summary["tasks"] == {"7": {"repeats": 1, "healthy": 1, "unhealthy": 0, "unobserved": 0, "flags": []}}
    assert rows_of(result) == [
        {
            "_ng_task_index": 7,
            "_ng_rollout_index": 1,
            "rollout_id": "0-0",
            "verdict": "healthy",
            "findings": [],
            "unobserved": [],
        }
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "quality_summary.json",
        "rollout_verdicts.jsonl",
        "rollouts.jsonl",
    ]


def test_reports_are_the_same_bytes_with_one_and_with_eight_workers(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollouts.jsonl", *(_mixed_records() * 3))
    second = write_lines(tmp_path / "more.jsonl", *_mixed_records())
    reports = []
    for workers, minimum in ((1, 1), (2, 1), (8, 1), (8, 1 << 30)):
        folder = tmp_path / f"out-{workers}-{minimum}"
        result = run_health_checks([path, second], output_dir=folder, workers=workers, min_bytes_per_worker=minimum)
        reports.append((result.summary_path.read_bytes(), result.verdicts_path.read_bytes(), result.rollouts))
    assert all(report == reports[0] for report in reports)
    assert reports[0][1].count(b"\n") == 4 * 19


def test_rows_are_sorted_by_number_then_text_and_lines_are_physical(tmp_path: Path) -> None:
    result = run_health_checks(write_lines(tmp_path / "r.jsonl", *_mixed_records()))
    rows = rows_of(result)
    tasks = [row["_ng_task_index"] for row in rows]
    numbers = [task for task in tasks if isinstance(task, int)]
    texts = [task for task in tasks if isinstance(task, str)]
    assert tasks == sorted(numbers) + sorted(texts)
    assert [row["stage_index"] for row in rows if row["_ng_task_index"] == 5] == [1, 2]
    assert list(result.summary["tasks"])[:3] == ["2", "3", "4"]
    unreadable = [row for row in rows if row["findings"] and row["findings"][0]["check"] == "record_unreadable"]
    assert [row["findings"][0]["locator"] for row in unreadable] == [
        {"source_file": "r.jsonl", "line": 17},
        {"source_file": "r.jsonl", "line": 19},
    ]
    assert unreadable[0]["_ng_task_index"] == "__unreadable_record__:input-0:line-17"
    assert unreadable[0]["_ng_rollout_index"] == 0


def test_a_record_without_index_gets_its_ordinal_over_all_inputs(tmp_path: Path) -> None:
    bare = without(record(), "_ng_task_index", "_ng_rollout_index", "ng_trajectory")
    first = write_lines(tmp_path / "a.jsonl", b"", bare, b"{bad")
    second = write_lines(tmp_path / "b.jsonl", bare)
    rows = rows_of(run_health_checks([first, second]))
    assert [row["_ng_task_index"] for row in rows] == [0, 2, "__unreadable_record__:input-0:line-3"]
    assert [row["rollout_id"] for row in rows[:2]] == ["0-0", "2-0"]


def test_the_rollout_id_is_the_explicit_one_then_the_trajectorys(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "r.jsonl", record(1, 0, _ng_rollout_id="mine"), record(2, 0))
    assert [row["rollout_id"] for row in rows_of(run_health_checks(path))] == ["mine", "0-0"]


def test_every_copy_of_an_identity_is_unhealthy(tmp_path: Path) -> None:
    lines = [record(1, 0), record(1, 0), record(1, 1), record("1", 0), record(1, 0, stage_index=0)]
    result = run_health_checks(write_lines(tmp_path / "r.jsonl", *lines))
    flagged = [row for row in rows_of(result) if row["findings"]]
    assert len(flagged) == 2
    finding = {"check": "rollout_duplicate_identity", "detail": {"duplicate_count": 2}}
    assert all(row["verdict"] == "unhealthy" and row["findings"] == [finding] for row in flagged)
    assert result.summary["run"]["issues"]["rollout_duplicate_identity"] == 2
    ignored = run_health_checks(tmp_path / "r.jsonl", ignored_checks=["rollout_duplicate_identity"])
    assert ignored.summary["run"]["verdicts"]["unhealthy"] == 0


def _shard(path: Path, *, run_id: str | None, prefix: str | None = None, extra: tuple[Any, ...] = ()) -> Path:
    changes: dict[str, Any] = {}
    if run_id is not None:
        changes["_ng_run_id"] = run_id
    if prefix is not None:
        changes["_ng_rollout_id"] = f"{prefix}-0-0"
    return write_lines(path, record(0, 0, **changes), *extra)


@pytest.mark.parametrize(
    ("ids", "prefixes"),
    [((RUN_A, RUN_B), (None, None)), ((None, None), (RUN_A, RUN_B)), ((None, None), (None, None))],
    ids=["run ids", "prefixed rollout ids", "files"],
)
def test_shards_with_the_same_indices_are_no_duplicates_a17(
    tmp_path: Path, ids: tuple[Any, Any], prefixes: tuple[Any, Any]
) -> None:
    for name, run_id, prefix in zip(("step_7-w0", "step_8-w0"), ids, prefixes, strict=True):
        _shard(tmp_path / f"rollouts-{name}.jsonl", run_id=run_id, prefix=prefix)
    for derived in ("rollouts-step_7-w0_failures.jsonl", "rollouts-step_7-w0_materialized_inputs.jsonl"):
        write_lines(tmp_path / derived, {"no": "record"})
    result = health_check_run_dir(tmp_path)
    assert result.summary["run"]["verdicts"] == {"healthy": 2, "unhealthy": 0, "unobserved": 0}
    assert len(result.summary["tasks"]) == 2
    assert [row["source_file"] for row in rows_of(result)] == ["rollouts-step_7-w0.jsonl", "rollouts-step_8-w0.jsonl"]
    again = health_check_run_dir(tmp_path)
    assert again.summary == result.summary


def test_a_duplicate_inside_one_shard_is_still_one(tmp_path: Path) -> None:
    twin = record(0, 0, _ng_run_id=RUN_A)
    _shard(tmp_path / "rollouts-a.jsonl", run_id=RUN_A, extra=(twin,))
    _shard(tmp_path / "rollouts-b.jsonl", run_id=RUN_B)
    result = health_check_run_dir(tmp_path)
    assert result.summary["run"]["issues"]["rollout_duplicate_identity"] == 2


def test_one_shard_with_a_cut_line_keeps_plain_task_names(tmp_path: Path) -> None:
    _shard(tmp_path / "rollouts-a.jsonl", run_id=RUN_A, extra=(b'{"cut', record(1, 0, _ng_run_id=RUN_A)))
    tasks = health_check_run_dir(tmp_path).summary["tasks"]
    assert list(tasks) == ["0", "1", "__unreadable_record__:input-0:line-2"]


def test_a_run_folder_is_its_rollouts_file_unless_another_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "rollouts.jsonl", record(0, 0), record(1, 0))
    write_lines(tmp_path / "rollouts-x.jsonl", record(0, 0))
    assert health_check_run_dir(tmp_path).summary["run"]["artifacts"]["records"] == 2
    named = health_check_run_dir(tmp_path, rollout_file="rollouts-x.jsonl")
    assert named.summary["run"]["artifacts"]["records"] == 1
    with pytest.raises(FileNotFoundError):
        health_check_run_dir(tmp_path / "nowhere")


def test_wrong_arguments_are_said(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "r.jsonl", record())
    with pytest.raises(ValueError, match="no rollouts file"):
        run_health_checks([])
    with pytest.raises(ValueError, match="at least 1"):
        run_health_checks(path, workers=0)
    with pytest.raises(ValueError, match="Did you mean `agent_turn_hollow`"):
        run_health_checks(path, ignored_checks=["agent_turn_holow"])
    with pytest.raises(FileNotFoundError):
        run_health_checks(tmp_path / "none.jsonl")
    assert not (tmp_path / "quality_summary.json").exists()


def test_ignore_lists_come_as_list_or_comma_text() -> None:
    assert normalize_ignored_checks(None) == ()
    assert normalize_ignored_checks(" model_call_failed, ,agent_turn_hollow,model_call_failed") == (
        "model_call_failed",
        "agent_turn_hollow",
    )
    assert normalize_ignored_checks(["agent_turn_hollow", ""]) == ("agent_turn_hollow",)


def test_coverage_counts_what_was_evaluated_unobserved_and_ignored(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "r.jsonl", record(0, 0), without(record(0, 1), "ng_trajectory"), b"bad")
    summary = run_health_checks(path, ignored_checks=["agent_turn_hollow"]).summary
    coverage = summary["run"]["artifacts"]["coverage"]
    assert coverage["record_unreadable"] == {"evaluated": 3, "unobserved": 0, "ignored": 0}
    assert coverage["check_execution_error"] == {"evaluated": 2, "unobserved": 1, "ignored": 0}
    assert coverage["rollout_missing_agent_turns"] == {"evaluated": 1, "unobserved": 2, "ignored": 0}
    assert coverage["agent_turn_hollow"] == {"evaluated": 0, "unobserved": 0, "ignored": 3}
    assert coverage["model_call_failed"] == {"evaluated": 0, "unobserved": 0, "ignored": 3}
    assert coverage["task_consistently_unhealthy"] == {"evaluated": 0, "unobserved": 2, "ignored": 0}
    assert summary["run"]["ignored_checks"] == ["agent_turn_hollow"]


def test_tasks_are_flagged_when_all_their_repeats_are_unhealthy_or_without_a_good_call(tmp_path: Path) -> None:
    hollow = trajectory(turns=[turn(1, answer=""), turn(2)])
    failed = {"status_code": 500, "response_status": None}
    none = {"prompt_tokens": None, "completion_tokens": None}
    dead = trajectory(model_calls=[call(n, response=None, metadata=failed, tokens=none) for n in (1, 2)])
    lines = [
        record(0, 0, ng_trajectory=hollow),
        record(0, 1, ng_trajectory=hollow),
        record(1, 0, ng_trajectory=hollow),
        record(1, 1),
        record(2, 0, ng_trajectory=hollow),
        record(3, 0, ng_trajectory=dead),
        record(3, 1, ng_trajectory=dead),
    ]
    summary = run_health_checks(write_lines(tmp_path / "r.jsonl", *lines)).summary
    assert {name: task["flags"] for name, task in summary["tasks"].items()} == {
        "0": ["task_consistently_unhealthy"],
        "1": [],
        "2": [],
        "3": ["task_consistently_unhealthy", "task_no_successful_model_calls"],
    }
    assert summary["run"]["issues"]["task_consistently_unhealthy"] == 2
    errors = summary["run"]["stats"]["model_call_errors"]
    assert errors == {"total": 4, "by_status": {"500": 4}, "rollouts_affected": 2, "ended_on_error": 2}


def test_copies_of_one_repeat_with_different_verdicts_are_unobserved_for_the_task(tmp_path: Path) -> None:
    lines = [record(0, 0, stage_index=0), without(record(0, 0, stage_index=1), "ng_trajectory")]
    summary = run_health_checks(write_lines(tmp_path / "r.jsonl", *lines)).summary
    assert summary["tasks"]["0"] == {"repeats": 1, "healthy": 0, "unhealthy": 0, "unobserved": 1, "flags": []}


def test_token_totals_that_nobody_knows_are_null(tmp_path: Path) -> None:
    summary = run_health_checks(write_lines(tmp_path / "r.jsonl", {"_ng_task_index": 0})).summary
    assert set(summary["run"]["stats"]["tokens"].values()) == {None}


def test_an_empty_file_is_a_run_of_no_records(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.touch()
    result = run_health_checks(path, workers=4, min_bytes_per_worker=1)
    assert result.summary["run"]["artifacts"]["records"] == 0
    assert result.verdicts_path.read_bytes() == b""


def test_workers_that_cannot_start_cost_a_warning_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "r.jsonl", *_mixed_records())
    alone = run_health_checks(path, output_dir=tmp_path / "alone", workers=1)
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    with pytest.warns(RuntimeWarning, match="one process"):
        result = run_health_checks(path, output_dir=tmp_path / "out", workers=4, min_bytes_per_worker=1)
    assert result.summary_path.read_bytes() == alone.summary_path.read_bytes()
    assert result.verdicts_path.read_bytes() == alone.verdicts_path.read_bytes()


def test_a_worker_that_dies_costs_a_warning_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path / "r.jsonl", *_mixed_records())
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.warns(RuntimeWarning, match="ended with status"):
        result = run_health_checks(path, workers=4, min_bytes_per_worker=1)
    assert len(result.rollouts) == 19
    assert not multiprocessing.active_children()


def test_checking_changes_no_input_and_replaces_old_reports(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollouts.jsonl", record(), b"{bad")
    before = path.read_bytes()
    (tmp_path / "quality_summary.json").write_text("stale")
    run_health_checks(path)
    assert path.read_bytes() == before
    json.loads((tmp_path / "quality_summary.json").read_text())

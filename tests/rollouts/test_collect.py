"""Whole evaluation runs: fresh, failing, resumed (A18, C11)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nemo_gym.cli import main
from nemo_gym.errors import (
    ConfigError,
    DataError,
    HeadServerUnreachableError,
    IncompleteEvaluationError,
    ResumeRefusedError,
    RunFailedError,
    UnsupportedAgentPairingError,
)
from nemo_gym.records.manifest import decode_manifest
from nemo_gym.records.status import RunStatus, encode_status
from nemo_gym.rollouts.collect import collect_run
from nemo_gym.rollouts.prepare import input_rows
from nemo_gym.rollouts.record import reward_of
from nemo_gym.rollouts.rollout_collection import RolloutCollectionHelper, get_max_rollout_attempts
from nemo_gym.rollouts.run_progress import read_progress
from nemo_gym.rollouts.settings import RolloutCollectionConfig
from nemo_gym.store import RunFiles, shard_files


class Notes:
    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)

    async def watch(self, status):
        await asyncio.Event().wait()


@pytest.fixture
def input_file(tmp_path):
    path = tmp_path / "in.jsonl"
    rows = [{"responses_create_params": {"input": str(n)}, "agent_ref": {"name": "agent_a"}, "q": n} for n in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def collect(servers, input_file, tmp_path):
    async def run(**settings):
        own = {**servers.own_config, **settings.pop("own", {})}
        settings.setdefault("input_jsonl_fpath", str(input_file))
        settings.setdefault("output_jsonl_fpath", str(tmp_path / "out" / "rollouts.jsonl"))
        settings.setdefault("disable_health_check", True)
        run.notes = Notes()
        return await collect_run(RolloutCollectionConfig(**settings), own_config=own, observer=run.notes)

    run.files = RunFiles(tmp_path / "out" / "rollouts.jsonl")
    return run


def keys_of(rows):
    return sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows)


async def test_a_run_writes_records_inventory_manifest_status_coverage_and_metrics(servers, collect, read_rows):
    summary = await collect(num_repeats=2)
    files = collect.files
    assert keys_of(read_rows(files.rollouts)) == [(t, r) for t in range(3) for r in range(2)]
    assert keys_of(read_rows(files.materialized)) == keys_of(read_rows(files.rollouts))
    assert [keys_of([record]) for record in summary.records] == [[key] for key in keys_of(summary.records)]
    manifest = decode_manifest(files.manifest.read_bytes())
    assert (manifest.materialized.rows, manifest.materialized.tasks, manifest.kind) == (6, 3, "eval")
    status = json.loads(files.status.read_text())
    assert (status["state"], status["aggregation"]["state"]) == ("completed", "done")
    assert json.loads(files.coverage.read_text())["missing"] == 0
    [entry] = json.loads(files.aggregate_metrics.read_text())
    assert entry["agent_ref"] == {"name": "agent_a"}
    assert entry["key_metrics"] == {"mean/reward": 1.0}
    assert "perf_summary" not in entry
    [(_, rows)] = servers.metric_requests
    assert keys_of(rows) == [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows]
    assert all("responses_create_params" not in row and set(row["response"]) == {"usage"} for row in rows)


async def test_resume_runs_only_what_failed_under_new_attempt_ids(servers, collect, read_rows):
    servers.behaviours["agent_a"] = lambda row: (500, "x") if row["q"] == 1 else {**row, "reward": 0.0}
    await collect(route_failures_to_sidecar=True)
    before = collect.files.materialized.read_bytes()
    servers.received.clear()
    servers.behaviours["agent_a"] = lambda row: {**row, "reward": 1.0}
    summary = await collect(route_failures_to_sidecar=True, resume_from_cache=True)
    assert [(row["q"], row["_ng_attempt_index"]) for row in servers.received] == [(1, 1)]
    assert collect.files.materialized.read_bytes() == before
    assert summary.status.state == "completed"
    [retried] = [row for row in read_rows(collect.files.rollouts) if row["q"] == 1]
    assert retried["_ng_prior_failures"] == [{"class": "agent_run_error", "kind": "agent_run_error", "attempt": 0}]


async def test_a_rollout_is_one_record_of_a_run_however_often_it_was_tried(servers, collect):
    servers.behaviours["agent_a"] = lambda row: (
        (500, "x") if row["q"] else {"reward": 0.5, "_ng_no_persist": row.get("_ng_attempt_index") == 0}
    )
    with pytest.raises(RunFailedError):
        await collect(num_samples_in_parallel=1)
    for _ in range(2):
        summary = await collect(
            route_failures_to_sidecar=True, resume_from_cache=True, record_omitted_rollouts=True,
            num_samples_in_parallel=1,
        )  # fmt: skip
    assert keys_of(summary.records) == [(0, 0), (1, 0), (2, 0)]
    assert [record.get("reward") for record in summary.records] == [0.5, None, None]
    assert [record.get("_ng_attempt_index") for record in summary.records] == [None, 1, 1]
    servers.behaviours["agent_a"] = lambda row: {"reward": 1.0} if row["q"] == 1 else {"_ng_no_persist": True}
    summary = await collect(route_failures_to_sidecar=True, resume_from_cache=True, record_omitted_rollouts=True)
    assert [(record["_ng_task_index"], record["reward"]) for record in summary.records] == [(0, 0.5), (1, 1.0)]


async def test_the_attempts_of_a_rollout_are_bounded_and_it_is_said_how_to_have_more(
    servers, collect, monkeypatch, capsys
):
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "2")
    servers.behaviours["agent_a"] = lambda row: (500, "x") if row["q"] == 1 else {**row, "reward": 0.0}
    for resume in (False, True):
        await collect(route_failures_to_sidecar=True, resume_from_cache=resume)
    servers.received.clear()
    summary = await collect(route_failures_to_sidecar=True, resume_from_cache=True)
    assert servers.received == []
    assert summary.status.counts.failed_final == summary.status.counts.failed == 1
    assert summary.status.state == "incomplete"
    said = "`NEMO_GYM_MAX_ROLLOUT_ATTEMPTS`, which is 2 here"
    spent = "(0 final, 1 out of attempts), 0 to run; what is out of attempts is tried again when"
    assert f"{spent} {said}" in "\n".join(collect.notes.lines)
    assert main.run(["eval", "status", str(collect.files.rollouts)]) == 0
    out = capsys.readouterr().out
    assert "1 of the failures is final" in out
    assert said in out
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "3")
    await collect(route_failures_to_sidecar=True, resume_from_cache=True)
    assert [row["q"] for row in servers.received] == [1], "as it was said"


@pytest.mark.parametrize(("value", "attempts"), [("0", 3), ("x", 3), ("", 3), ("7", 7)])
def test_an_unusable_number_of_attempts_means_three_with_a_warning(monkeypatch, caplog, value, attempts):
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", value)
    assert get_max_rollout_attempts() == attempts
    assert bool(caplog.records) == (value in {"0", "x"})


async def test_a_shard_resumes_with_its_own_inputs_A18(servers, collect, head, make_rows, read_rows, tmp_path):
    servers.behaviours["agent_a"] = lambda row: (500, "x") if row["_ng_task_index"] else {**row, "reward": 1.0}
    completions = RolloutCollectionHelper().run_examples(
        make_rows(3), head, route_failures_to_sidecar=True, record_output_dir=tmp_path, record_shard="s7"
    )
    async for _ in completions:
        pass
    files = shard_files(tmp_path, "s7")
    before, run_id = files.materialized.read_bytes(), decode_manifest(files.manifest.read_bytes()).run_id
    servers.received.clear()
    servers.behaviours["agent_a"] = lambda row: {**row, "reward": 1.0}
    summary = await collect(
        input_jsonl_fpath=str(files.materialized), output_jsonl_fpath=str(files.rollouts), resume_from_cache=True
    )
    assert sorted((row["_ng_rollout_id"], row["_ng_attempt_index"]) for row in servers.received) == [
        (f"{run_id}-1-0", 1),
        (f"{run_id}-2-0", 1),
    ]
    assert files.materialized.read_bytes() == before
    assert summary.status.state == "completed"
    assert (summary.status.shard, summary.status.run_id) == ("s7", run_id)
    assert len(read_rows(files.rollouts)) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"responses_create_params": {"temperature": 0.9}},
        {"num_repeats": 2},
        {"limit": 1},
    ],
)
async def test_resume_refuses_another_configuration_and_touches_nothing(servers, collect, change):
    await collect()
    before = {path: path.read_bytes() for path in collect.files.derived() if path.exists()}
    with pytest.raises(ResumeRefusedError, match=next(iter(change))):
        await collect(resume_from_cache=True, **change)
    assert before == {path: path.read_bytes() for path in collect.files.derived() if path.exists()}
    await collect(resume_from_cache=True, resume_ignore_drift=True, **change)


async def test_resume_refuses_a_changed_server_setting_but_not_an_endpoint_or_concurrency(servers, collect):
    await collect()
    servers.extra_config = {"observability_note": 1, "port_range_low": 5}
    await collect(resume_from_cache=True, num_samples_in_parallel=3)
    agent = servers.config["agent_a"]
    agent["responses_api_agents"]["simple_agent"]["temperature"] = 0.9
    servers.extra_config = {"agent_a": agent}
    with pytest.raises(ResumeRefusedError, match=r"agent_a\.responses_api_agents\.simple_agent\.temperature"):
        await collect(resume_from_cache=True)


async def test_resume_refuses_results_of_rows_it_does_not_know(servers, collect):
    await collect()
    with collect.files.rollouts.open("a") as file:
        file.write('{"_ng_task_index": 99, "_ng_rollout_index": 0}\n')
    with pytest.raises(ResumeRefusedError, match="99-0"):
        await collect(resume_from_cache=True)


async def test_a_cut_last_line_is_dropped_and_its_row_runs_again(servers, collect, read_rows):
    await collect()
    text = collect.files.rollouts.read_bytes()
    collect.files.rollouts.write_bytes(text[:-20])
    servers.received.clear()
    await collect(resume_from_cache=True)
    assert len(servers.received) == 1
    assert "_ng_attempt_index" not in servers.received[0]
    assert len(read_rows(collect.files.rollouts)) == 3
    assert any("was cut" in line for line in collect.notes.lines)


async def test_a_fresh_run_keeps_an_earlier_one_that_had_results(servers, collect, read_rows):
    await collect()
    kept = read_rows(collect.files.rollouts)
    await collect()
    [backup] = collect.files.folder.glob("rollouts.bak-*[0-9].jsonl")
    assert read_rows(backup) == kept
    assert RunFiles(backup).manifest.exists()


async def test_an_unreachable_head_server_leaves_earlier_output_alone(servers, collect):
    await collect()
    before = collect.files.rollouts.read_bytes()
    with pytest.raises(HeadServerUnreachableError):
        await collect(own={"head_server": {"host": "127.0.0.1", "port": 9}})
    assert collect.files.rollouts.read_bytes() == before


async def test_a_malformed_input_line_is_named_and_leaves_earlier_output_alone(servers, collect, input_file):
    await collect()
    before = collect.files.rollouts.read_bytes()
    first = input_file.read_bytes().split(b"\n")[0] + b"\n"
    input_file.write_bytes(first + b"{oops\n")
    with pytest.raises(DataError) as caught:
        await collect()
    assert (caught.value.line, caught.value.byte, caught.value.path) == (2, len(first), str(input_file))
    assert collect.files.rollouts.read_bytes() == before


async def test_an_unknown_agent_is_named_before_anything_is_touched(servers, collect):
    with pytest.raises(ConfigError, match="Did you mean `agent_a`"):
        await collect(agent_name="agent_aa")
    assert not collect.files.materialized.exists()


async def test_a_failed_run_ends_the_run_when_failures_are_not_routed(servers, collect):
    servers.behaviours["agent_a"] = lambda row: (500, "broke") if row["q"] == 1 else {**row, "reward": 1.0}
    with pytest.raises(RunFailedError, match="route_failures_to_sidecar"):
        await collect(num_samples_in_parallel=1)
    assert json.loads(collect.files.status.read_text())["state"] == "failed"
    servers.behaviours["agent_a"] = lambda row: {**row, "reward": 1.0}
    summary = await collect(num_samples_in_parallel=1, resume_from_cache=True)
    assert summary.status.state == "completed"
    assert all("_ng_attempt_index" not in row for row in servers.received)


async def test_a_run_without_any_success_fails_and_names_the_sidecar(servers, collect):
    servers.behaviours["agent_a"] = lambda _: (500, "x")
    with pytest.raises(RunFailedError, match=r"none of 3 rollouts succeeded \(agent_run_error 3\).*_failures"):
        await collect(route_failures_to_sidecar=True)


async def test_a_run_without_any_success_says_what_its_health_check_saw(servers, collect):
    servers.behaviours["agent_a"] = lambda _: (500, "x")
    with pytest.raises(RunFailedError):
        await collect(route_failures_to_sidecar=True, disable_health_check=False)
    said = "\n".join(collect.notes.lines)
    assert "Rollout health: 0 checked" in said
    assert f"not checked: 3 failed tries, which left no result, in `{collect.files.failures}`" in said


async def test_require_complete_raises_after_everything_was_saved(servers, collect, read_rows):
    servers.behaviours["agent_a"] = lambda row: (500, "x") if row["q"] == 1 else {**row, "reward": 1.0}
    with pytest.raises(IncompleteEvaluationError, match="2 of 3"):
        await collect(route_failures_to_sidecar=True, require_complete=True)
    assert len(read_rows(collect.files.rollouts)) == 2
    assert collect.files.aggregate_metrics.exists()


async def test_metrics_are_computed_here_when_the_agent_has_none(servers, collect):
    servers.metrics_status = 404
    summary = await collect()
    [entry] = json.loads(collect.files.aggregate_metrics.read_text())
    assert entry["key_metrics"]["mean/reward"] == 1.0
    assert any("computed here" in note for note in summary.report.notes)


async def test_missing_and_failed_rollouts_count_as_zero_when_asked(servers, collect):
    servers.behaviours["agent_a"] = lambda row: (500, "x") if row["q"] == 1 else {**row, "reward": 1.0}
    summary = await collect(route_failures_to_sidecar=True, count_failure_classes_as_zero=["agent_run_error"])
    [(_, rows)] = servers.metric_requests
    assert [row["reward"] for row in rows] == [1.0, 0.0, 1.0]
    assert rows[1]["q"] == 1
    assert not any(name.startswith("_ng_failure_") for name in rows[1])
    assert summary.report.imputed == 1


async def test_differing_capture_directories_are_refused_naming_both(servers, collect):
    servers.extra_config = {"observability_enabled": True, "model_call_capture_dir": "/there"}
    with pytest.raises(ConfigError, match=r"`/here`.*`/there`"):
        await collect(own={"observability_enabled": True, "model_call_capture_dir": "/here"})


async def test_capture_wanted_here_but_off_at_the_servers_is_refused(servers, collect):
    with pytest.raises(ConfigError, match="off at the running servers"):
        await collect(own={"observability_enabled": True, "model_call_capture_dir": "/here"})


async def test_capture_off_here_but_on_at_the_servers_is_a_warning(servers, collect, tmp_path):
    servers.extra_config = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path / "captures")}
    await collect(own={"observability_enabled": False})
    assert any("Warning" in line and "no evidence" in line for line in collect.notes.lines)


async def test_rows_are_read_as_they_are_needed(servers, collect, input_file):
    rows = [{"responses_create_params": {"input": "x"}, "agent_ref": {"name": "agent_a"}, "q": n} for n in range(2000)]
    input_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = await collect(num_samples_in_parallel=16, retain_results_in_memory=False)
    assert summary.records == []
    assert summary.status.counts.succeeded == 2000
    assert servers.most_in_flight <= 16
    assert sorted(row["q"] for row in servers.received) == list(range(2000))
    # Requests on several connections may overtake each other on the way; the order of starts is the input's.
    assert all(abs(position - row["q"]) < 16 for position, row in enumerate(servers.received))


async def test_a_rollout_that_takes_too_long_fails_and_is_tried_again_on_resume(servers, collect, read_rows):
    async def behave(row):
        if row["q"] == 1:
            await asyncio.Event().wait()
        return {**row, "reward": 1.0}

    servers.behaviours["agent_a"] = behave
    summary = await collect(route_failures_to_sidecar=True, rollout_timeout_s=1.0)
    # On a busy machine the others may take too long as well.
    assert set(summary.status.failures) == {"transport_timeout"}
    for row in read_rows(collect.files.failures):
        for message in (row["failure_reason"], row["_ng_failure_message"]):
            assert "no answer came within 1 s; `rollout_timeout_s` bounds" in message
    assert 1 in {row["q"] for row in read_rows(collect.files.materialized)} - {
        row["q"] for row in read_rows(collect.files.rollouts)
    }
    assert summary.status.counts.failed_final == 0
    servers.behaviours["agent_a"] = lambda row: {**row, "reward": 1.0}
    summary = await collect(route_failures_to_sidecar=True, rollout_timeout_s=60.0, resume_from_cache=True)
    assert summary.status.state == "completed"


async def test_run_from_config_returns_results_and_failures_sorted(servers, input_file, tmp_path, monkeypatch):
    servers.behaviours["agent_a"] = lambda row: (500, "x") if row["q"] == 1 else {**row, "reward": 1.0}
    monkeypatch.setattr("nemo_gym.rollouts.rollout_collection._own_config", lambda: servers.own_config)
    config = RolloutCollectionConfig(
        input_jsonl_fpath=str(input_file), output_jsonl_fpath=str(tmp_path / "r.jsonl"), disable_aggregation=True,
        route_failures_to_sidecar=True,
    )  # fmt: skip
    records = await RolloutCollectionHelper().run_from_config(config)
    assert keys_of(records) == [(0, 0), (1, 0), (2, 0)]
    assert ["_ng_failure_class" in record for record in records] == [False, True, False]
    streaming = config.model_copy(update={"retain_results_in_memory": False})
    assert await RolloutCollectionHelper().run_from_config(streaming) == []


async def test_runs_in_one_folder_keep_their_own_health_reports_and_no_stale_one(servers, collect, tmp_path):
    folder = tmp_path / "out"
    await collect(disable_health_check=False)
    assert not (folder / "rollouts_quality_summary.json").exists()
    await collect(output_jsonl_fpath=str(folder / "rollouts-b.jsonl"), disable_health_check=False)
    own = json.loads((folder / "rollouts-b_quality_summary.json").read_text())
    assert own == json.loads((folder / "quality_summary.json").read_text())
    await collect(output_jsonl_fpath=str(folder / "other.jsonl"), disable_health_check=False)
    assert (folder / "other_quality_summary.json").exists(), "whatever the runs are called"
    await collect(output_jsonl_fpath=str(folder / "rollouts-b.jsonl"))
    assert not (folder / "rollouts-b_quality_summary.json").exists()
    assert not (folder / "quality_summary.json").exists()


async def test_an_interrupt_while_rows_are_prepared_leaves_the_earlier_run_alone(
    servers, collect, input_file, monkeypatch
):
    await collect()
    before = {path: path.read_bytes() for path in collect.files.derived() if path.exists()}
    reached, go = threading.Event(), threading.Event()

    def slow_rows(path, limit):
        for number, row in enumerate(input_rows(path, limit)):
            if number == 1:
                reached.set()
                assert go.wait(20)
            yield row

    monkeypatch.setattr("nemo_gym.rollouts.run_setup.input_rows", slow_rows)
    servers.received.clear()
    running = asyncio.ensure_future(collect())
    await asyncio.to_thread(reached.wait, 20)
    running.cancel()
    await asyncio.sleep(0)
    assert not running.done(), "the lock is held until nothing writes any more"
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert servers.received == []
    assert before == {path: path.read_bytes() for path in collect.files.derived() if path.exists()}
    assert not list(collect.files.folder.glob("*.tmp"))


@pytest.mark.parametrize("ending", ["finished", "interrupted", "a bad row"])
async def test_a_run_says_that_it_is_being_prepared_and_how_many_rows_it_has_read(
    servers, collect, input_file, monkeypatch, ending
):
    reached, go = threading.Event(), threading.Event()
    row = {"responses_create_params": {"input": "x"}, "agent_ref": {"name": "agent_a"}}
    input_file.write_text("".join(json.dumps({**row, "q": n}) + "\n" for n in range(2500)))
    if ending == "a bad row":
        with input_file.open("a") as file:
            file.write("oops\n")

    def slow_rows(path, limit):
        for number, found in enumerate(input_rows(path, limit)):
            if number == 2100:
                reached.set()
                assert go.wait(20)
            yield found

    monkeypatch.setattr("nemo_gym.rollouts.run_setup.input_rows", slow_rows)
    monkeypatch.setattr("nemo_gym.rollouts.batch_status.SAVE_INTERVAL_S", 0.0)
    running = asyncio.ensure_future(collect())
    await asyncio.to_thread(reached.wait, 20)
    [progress] = read_progress(collect.files.rollouts)
    assert (progress.status.state, progress.stale) == ("preparing", False)
    assert progress.status.counts.expected == progress.status.counts.pending == 2000
    if ending == "interrupted":
        running.cancel()
        for _ in range(3):  # the cancellation arrives before the thread goes on
            await asyncio.sleep(0)
    go.set()
    if ending == "finished":
        summary = await running
        assert saved_status(collect)["run_id"] == summary.status.run_id == progress.status.run_id
        assert summary.status.counts.succeeded == 2500
        return
    with pytest.raises(asyncio.CancelledError if ending == "interrupted" else DataError):
        await running
    assert not collect.files.folder.exists(), "as if it had never begun"


@pytest.mark.parametrize("resume", [False, True])
async def test_what_a_kill_left_of_a_preparation_is_no_obstacle(servers, collect, resume):
    collect.files.folder.mkdir()
    left = RunStatus(run_id="r", output="rollouts.jsonl", started_at=1, updated_at=2, state="preparing", pid=1 << 30)
    collect.files.status.write_bytes(encode_status(left))
    [progress] = read_progress(collect.files.rollouts)
    assert (progress.status.state, progress.stale) == ("preparing", True)
    summary = await collect(resume_from_cache=resume)
    assert summary.status.counts.succeeded == 3
    assert not list(collect.files.folder.glob("*.bak-*")), "there was nothing to keep"


async def test_a_resumed_run_is_being_prepared_while_it_counts_what_is_there(servers, collect, monkeypatch):
    await collect()
    states = []

    def seen(record):
        states.append(saved_status(collect)["state"])
        return reward_of(record)

    monkeypatch.setattr("nemo_gym.rollouts.collect.reward_of", seen)
    await collect(resume_from_cache=True)
    assert states == ["preparing"] * 3


def saved_status(collect):
    return json.loads(collect.files.status.read_text())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_ng_task_index": 2**63}, r"in.jsonl` lines 2 have a `_ng_task_index` that is no whole number from 0"),
        ({"_ng_task_index": "7"}, r"in.jsonl` lines 2 have a `_ng_task_index` that is no whole number from 0"),
        ({"_ng_task_index": -1}, r"in.jsonl` lines 2 have a `_ng_task_index`"),
        ({"_ng_task_index": 1.0}, r"in.jsonl` lines 2 have a `_ng_task_index`"),
        ({"_ng_task_index": True}, r"in.jsonl` lines 2 have a `_ng_task_index`"),
        ({"agent_ref": "agent_a"}, r"in.jsonl` lines 2 have neither `agent_ref`.*\"agent_ref\": \{\"name\""),
        ({"agent_ref": {"name": 5}}, "in.jsonl` lines 2 have neither `agent_ref`"),
        ({"_ng_environment_server": "env_x"}, "no environment server `env_x`"),
        ({"_ng_environment_server": "env_a"}, "no environment server `env_a`"),
        ({"responses_create_params": "x"}, "in.jsonl` lines 2 have no input"),
        ({"_ng_rollout_id": 5}, "in.jsonl` line 2: a rollout id is a string"),
    ],
)
async def test_a_row_of_the_wrong_shape_is_named_and_nothing_is_sent(servers, collect, input_file, change, message):
    lines = input_file.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), **change})
    input_file.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=message):
        await collect()
    assert servers.received == []
    assert not collect.files.folder.exists()


@pytest.mark.parametrize("anyway", [None, "collector", "servers", "environment"])
async def test_an_agent_that_the_environment_is_not_declared_for_gets_no_rows(servers, collect, monkeypatch, anyway):
    """The servers may run a configuration that nobody checked: a row is looked at before it is sent."""
    block = {"host": "127.0.0.1", "port": 1, "domain": "other", "allowed_agents": ["other_agent"]}
    servers.extra_config = {"env_a": {"resources_servers": {"env_impl": block}}}
    own = {"allow_unsupported_pairing": True} if anyway == "collector" else {}
    if anyway == "servers":
        servers.extra_config["allow_unsupported_pairing"] = True
    if anyway == "environment":
        monkeypatch.setenv("NEMO_GYM_ALLOW_UNSUPPORTED_PAIRING", "1")
    if anyway is not None:
        assert (await collect(own=own)).status.counts.succeeded == 3
        return
    with pytest.raises(
        UnsupportedAgentPairingError, match=r"`env_a` is not declared to work with agent `simple_agent`.*`other_agent`"
    ):
        await collect()
    assert servers.received == []
    block["allowed_agents"].append("simple_agent")
    assert (await collect()).status.counts.succeeded == 3


SCRIPT = """
import asyncio, sys
from nemo_gym.rollouts.collect import collect_run
from nemo_gym.rollouts.settings import RolloutCollectionConfig
port, source, output, resume = sys.argv[1:]
config = RolloutCollectionConfig(
    input_jsonl_fpath=source, output_jsonl_fpath=output, resume_from_cache=resume == "1", disable_health_check=True,
    num_samples_in_parallel=4,
)
asyncio.run(collect_run(config, own_config={"head_server": {"host": "127.0.0.1", "port": int(port)}}))
"""


def start_process(servers, input_file, output, *, resume=False):
    arguments = [sys.executable, "-c", SCRIPT, str(servers.head_port), str(input_file), str(output), str(int(resume))]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ})


def wait_until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the wait took too long"
        time.sleep(0.01)


def test_a_killed_run_loses_no_result_and_resumes_the_rest_under_the_same_ids(servers, input_file, read_rows, tmp_path):
    rows = [{"responses_create_params": {"input": "x"}, "agent_ref": {"name": "agent_a"}, "q": n} for n in range(12)]
    input_file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    async def behave(row):
        if row["q"] >= 5:
            await asyncio.Event().wait()
        return {**row, "reward": 1.0}

    servers.behaviours["agent_a"] = behave
    files = RunFiles(tmp_path / "rollouts.jsonl")
    process = start_process(servers, input_file, files.rollouts)
    wait_until(
        lambda: files.rollouts.exists() and files.rollouts.read_bytes().count(b"\n") == 5 and servers.in_flight == 4
    )
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    with files.rollouts.open("ab") as file:
        file.write(b'{"_ng_task_index": 5, "_ng_roll')
    wait_until(lambda: servers.in_flight == 0)
    servers.received.clear()
    servers.behaviours["agent_a"] = lambda row: {**row, "reward": 1.0}
    resumed = start_process(servers, input_file, files.rollouts, resume=True)
    _, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, errors.decode()
    assert sorted(row["q"] for row in servers.received) == list(range(5, 12))
    assert all("_ng_attempt_index" not in row for row in servers.received)
    assert sorted(row["q"] for row in read_rows(files.rollouts)) == list(range(12))


def test_two_processes_never_write_one_run(servers, input_file, tmp_path):
    async def behave(_):
        await asyncio.Event().wait()

    servers.behaviours["agent_a"] = behave
    output = tmp_path / "rollouts.jsonl"
    first = start_process(servers, input_file, output)
    wait_until(lambda: servers.in_flight == 3)
    second = start_process(servers, input_file, output)
    _, errors = second.communicate(timeout=120)
    first.kill()
    first.communicate(timeout=120)
    assert second.returncode != 0
    assert f"process {first.pid}".encode() in errors
    assert Path(output).exists()

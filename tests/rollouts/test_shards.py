"""Recorded shards: A14 to A16, and the record of A13."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from pathlib import Path

import pytest

from nemo_gym.errors import RecordingError
from nemo_gym.records.manifest import decode_manifest
from nemo_gym.rollouts import RolloutCollectionHelper, RolloutFailureRecord, RolloutRequestError, RolloutStore
from nemo_gym.store import RunLock, RunLockedError, shard_files

LEGACY_KEYS = {
    "_ng_failure_class", "_ng_failure_type", "_ng_failure_message", "_ng_failure_http_status",
    "_ng_failure_response_body", "_ng_task_index", "_ng_rollout_index", "agent_ref", "_ng_rollout_id",
    "_ng_environment_server", "_ng_result_type",
}  # fmt: skip


async def record(rows, head, folder, shard="step_000007-w0", **options):
    options.setdefault("route_failures_to_sidecar", True)
    completions = RolloutCollectionHelper().run_examples(
        rows, head, record_output_dir=folder, record_shard=shard, **options
    )
    pairs = []
    for completion in completions:
        row, result = await completion
        pairs.append((row, result))
    return pairs


async def test_five_files_exist_and_each_result_is_the_line_of_the_shard_A14_A19(
    servers, head, make_rows, read_rows, tmp_path
):
    pairs = await record(make_rows(2, 2), head, tmp_path / "runs" / "policy")
    files = shard_files(tmp_path / "runs" / "policy", "step_000007-w0")
    names = sorted(path.name for path in files.folder.iterdir() if not path.name.startswith("."))
    assert names == [
        "rollouts-step_000007-w0.jsonl",
        "rollouts-step_000007-w0_batch_status.json",
        "rollouts-step_000007-w0_failures.jsonl",
        "rollouts-step_000007-w0_manifest.json",
        "rollouts-step_000007-w0_materialized_inputs.jsonl",
    ]
    assert [result for _, result in pairs] == read_rows(files.rollouts)
    status = json.loads(files.status.read_text())
    assert status["state"] == "completed"
    assert status["counts"]["succeeded"] == status["counts"]["expected"] == 4
    assert status["reward"] == {"count": 4, "sum": 4.0}
    assert files.failures.read_bytes() == b""


async def test_ids_carry_the_run_prefix_on_the_wire_in_the_files_and_on_the_returned_row_A15(
    servers, head, make_rows, read_rows, tmp_path
):
    rows = make_rows(1)
    rows[0]["_ng_rollout_id"] = "train.7"
    [(row, result)] = await record(rows, head, tmp_path)
    run_id = decode_manifest(shard_files(tmp_path, "step_000007-w0").manifest.read_bytes()).run_id
    assert len(run_id) == 32
    expected = f"{run_id}-train.7"
    assert row["_ng_rollout_id"] == result["_ng_rollout_id"] == servers.received[0]["_ng_rollout_id"] == expected
    assert read_rows(shard_files(tmp_path, "step_000007-w0").materialized)[0]["_ng_rollout_id"] == expected
    assert rows[0]["_ng_rollout_id"] == "train.7", "the caller's row is not modified"


async def test_reopening_replaces_and_never_shares_an_id_A16(servers, head, make_rows, read_rows, tmp_path):
    await record(make_rows(3), head, tmp_path)
    files = shard_files(tmp_path, "step_000007-w0")
    first = decode_manifest(files.manifest.read_bytes())
    for path in files.reports():
        path.write_text("of the first opening")
    await record(make_rows(3), head, tmp_path)
    assert not any(path.exists() for path in files.reports())
    second = decode_manifest(files.manifest.read_bytes())
    assert len(read_rows(files.rollouts)) == 3
    assert second.run_id != first.run_id
    assert second.parents == [first.run_id]
    assert len({row["_ng_rollout_id"] for row in servers.received}) == 6


async def test_failures_come_back_typed_and_the_sidecar_has_every_key_A13(
    servers, head, make_rows, read_rows, tmp_path
):
    servers.behaviours["agent_a"] = lambda row: (500, "boom") if row["_ng_task_index"] == 1 else {**row, "reward": 1}
    pairs = await record(make_rows(3), head, tmp_path)
    [failed] = [result for _, result in pairs if isinstance(result, RolloutFailureRecord)]
    files = shard_files(tmp_path, "step_000007-w0")
    [row] = read_rows(files.failures)
    assert set(row) >= LEGACY_KEYS
    assert "reward" not in row
    assert "response" not in row
    assert row["_ng_rollout_failure"] == failed.model_dump(mode="json")
    status = json.loads(files.status.read_text())
    assert status["state"] == "incomplete"
    assert status["counts"]["failed"] == 1
    assert status["failures"] == {"agent_run_error": 1}


async def test_a_row_reported_by_the_agent_goes_to_the_sidecar_whole(servers, head, make_rows, read_rows, tmp_path):
    servers.behaviours["agent_a"] = lambda row: {**row, "reward": 0.0, "_ng_failure_class": "judge_failed"}
    [(_, result)] = await record(make_rows(1), head, tmp_path)
    files = shard_files(tmp_path, "step_000007-w0")
    assert read_rows(files.failures) == [result]
    assert result["reward"] == 0.0
    assert read_rows(files.rollouts) == []


async def test_an_unrouted_failure_raises_and_leaves_a_marked_row(servers, head, make_rows, read_rows, tmp_path):
    servers.behaviours["agent_a"] = lambda _: (500, "boom")
    with pytest.raises(RolloutRequestError):
        await record(make_rows(1), head, tmp_path, route_failures_to_sidecar=False)
    files = shard_files(tmp_path, "step_000007-w0")
    [row] = read_rows(files.failures)
    assert row["_ng_unrouted_run_error"] is True
    assert list(RolloutStore(files.rollouts, read_only=True).latest_failures()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_ng_task_index": None}, "row 1"),
        ({"_ng_rollout_index": True}, "row 1"),
        ({"_ng_task_index": -1}, "row 1"),
        ({"_ng_task_index": 0}, "same indices 0-0 as row 0"),
    ],
)
async def test_rows_need_usable_indices_and_nothing_is_written_otherwise(
    servers, head, make_rows, tmp_path, change, message
):
    rows = make_rows(2)
    rows[1].update(change)
    with pytest.raises(ValueError, match=message):
        RolloutCollectionHelper().run_examples(rows, head, record_output_dir=tmp_path / "x", record_shard="s")
    assert not (tmp_path / "x").exists()
    assert servers.received == []


async def wait_until(condition, seconds=120.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("omitted", [True, False])
async def test_closing_early_interrupts_the_shard_and_keeps_omitted_rows_iff_asked_A14(
    servers, head, make_rows, read_rows, tmp_path, omitted
):
    async def first_only(row):
        if row["_ng_task_index"]:
            await asyncio.Event().wait()
        return {**row, "reward": 1.0}

    servers.behaviours["agent_a"] = first_only
    completions = RolloutCollectionHelper().run_examples(
        make_rows(4), head, record_output_dir=tmp_path, record_shard="s", record_omitted_rollouts=omitted,
        max_resident_tasks=2,
    )  # fmt: skip
    await next(completions)
    await wait_until(lambda: servers.in_flight == 2)
    await completions.aclose()
    files = shard_files(tmp_path, "s")
    status = json.loads(files.status.read_text())
    assert status["state"] == "interrupted"
    assert status["counts"]["in_flight"] == 0
    assert len(read_rows(files.rollouts)) == 1
    rows = read_rows(files.failures)
    if not omitted:
        assert rows == []
        return
    assert {row["_ng_failure_class"] for row in rows if "_ng_dispatch_drained" not in row} == {"kill_shaped"}
    assert sorted(row["_ng_task_index"] for row in rows) == [1, 2, 3]
    assert all(row["_ng_omitted_rollout"] and row["_ng_no_persist"] for row in rows)
    identity = {"_ng_task_index", "_ng_rollout_index", "_ng_rollout_id", "agent_ref", "_ng_run_id"}
    for row in rows:
        started = "_ng_dispatch_drained" not in row
        assert identity | {"error_message", "_ng_failed_at"} <= set(row)
        assert ("elapsed_seconds" in row) == started, "only what had begun has a duration"
        assert row["_ng_failure_class"] == ("kill_shaped" if started else "cancelled")
        assert not {"reward", "response"} & set(row)
    assert RolloutStore(files.rollouts, read_only=True).attempts() == {}


@pytest.mark.parametrize(
    "label",
    [
        "", " ", "a b", "../a", "a/b", ".a", "-a", "a\n", "é", "x" * 129, 7, 7.5, ["a"], "a_failures", "a_coverage",
        "a_rollout_verdicts", "a.bak-2", "step.bak-20260101T000000",
    ],
)  # fmt: skip
async def test_a_label_that_would_hide_or_misname_the_shard_is_refused(servers, head, make_rows, tmp_path, label):
    with pytest.raises(ValueError, match="label"):
        await record(make_rows(), head, tmp_path / "runs", shard=label)
    assert servers.received == []
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("rows", [0, 2])
async def test_a_folder_that_cannot_be_written_is_said_and_nothing_is_sent(servers, head, make_rows, tmp_path, rows):
    (tmp_path / "file").touch()
    (tmp_path / "runs" / ".rollouts-w0.lock").mkdir(parents=True)
    (tmp_path / "taken" / "rollouts-w0.jsonl").mkdir(parents=True)
    for folder in ("file", "file/below", "runs", "taken"):
        with pytest.raises(RecordingError, match=r"cannot be written.*record_output_dir"):
            await record(make_rows(rows), head, tmp_path / folder, shard="w0")
    assert servers.received == []


async def test_no_rows_make_a_complete_empty_shard(servers, head, tmp_path):
    assert await record([], head, tmp_path) == []
    files = shard_files(tmp_path, "step_000007-w0")
    assert json.loads(files.status.read_text())["state"] == "completed"
    assert files.rollouts.read_bytes() == files.materialized.read_bytes() == b""


async def test_nothing_is_opened_before_the_first_iteration(servers, head, make_rows, tmp_path):
    completions = RolloutCollectionHelper().run_examples(
        make_rows(1), head, record_output_dir=tmp_path / "x", record_shard="s"
    )
    assert not (tmp_path / "x").exists()
    await completions.aclose()


async def test_a_shard_that_another_writer_holds_is_refused_and_untouched(servers, head, make_rows, tmp_path):
    await record(make_rows(1), head, tmp_path)
    files = shard_files(tmp_path, "step_000007-w0")
    before = files.rollouts.read_bytes()
    with RunLock(files.lock), pytest.raises(RunLockedError, match="/rollouts-step_000007-w0` is being written by"):
        await record(make_rows(1), head, tmp_path)
    assert files.rollouts.read_bytes() == before


async def test_two_shards_in_one_folder_at_once(servers, head, make_rows, read_rows, tmp_path):
    await asyncio.gather(*(record(make_rows(5), head, tmp_path, shard=f"w{worker}") for worker in range(2)))
    assert [len(read_rows(shard_files(tmp_path, f"w{worker}").rollouts)) for worker in range(2)] == [5, 5]
    assert len(list(RolloutStore(tmp_path, read_only=True).results())) == 10


async def test_a_record_that_cannot_be_written_is_never_returned(servers, head, make_rows, tmp_path, monkeypatch):
    rollouts = shard_files(tmp_path, "step_000007-w0").rollouts

    def full_disk(fd, data, write=os.write):
        if Path(f"/proc/self/fd/{fd}").readlink() == rollouts:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr("nemo_gym.store.jsonl.os.write", full_disk)
    with pytest.raises(RecordingError, match="No space left"):
        await record(make_rows(3), head, tmp_path)
    monkeypatch.undo()
    status = json.loads(shard_files(tmp_path, "step_000007-w0").status.read_text())
    assert status["state"] == "failed"
    assert "RecordingError" in status["reason"]


@pytest.mark.parametrize("again", [False, True])
async def test_a_shard_that_is_removed_while_it_is_written_is_not_claimed_to_be_recorded(
    servers, head, make_rows, tmp_path, again
):
    def remove(row):
        if row["_ng_task_index"] == 1:
            files = shard_files(tmp_path / "runs", "step_000007-w0")
            files.rollouts.unlink()
            if again:
                files.rollouts.touch()
        return {**row, "reward": 1.0}

    servers.behaviours["agent_a"] = remove
    with pytest.raises(RecordingError, match=r"step_000007-w0.jsonl` cannot be written: it was removed"):
        await record(make_rows(3), head, tmp_path / "runs", semaphore=asyncio.Semaphore(1))
    status = json.loads(shard_files(tmp_path / "runs", "step_000007-w0").status.read_text())
    assert status["state"] == "failed"
    assert "removed" in status["reason"]


async def test_a_withdrawn_result_is_not_persisted(servers, head, make_rows, read_rows, tmp_path):
    servers.behaviours["agent_a"] = lambda row: {**row, "_ng_no_persist": True}
    await record(make_rows(1), head, tmp_path, record_omitted_rollouts=True)
    files = shard_files(tmp_path, "step_000007-w0")
    assert read_rows(files.rollouts) == []
    [row] = read_rows(files.failures)
    assert row["_ng_omitted_rollout"] is True
    assert row["_ng_failure_class"] == "kill_shaped"

"""Metrics over folders of shards: A17."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from nemo_gym.errors import ConfigError, DataError, GymError
from nemo_gym.rollouts import (
    RolloutAggregationConfig,
    RolloutAggregationHelper,
    RolloutCollectionConfig,
    RolloutCollectionHelper,
    aggregation,
)
from nemo_gym.rollouts.accounting import Denominators
from nemo_gym.rollouts.aggregation import aggregate_files
from nemo_gym.rollouts.collect import collect_run
from nemo_gym.rollouts.summary import aggregation_lines


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


async def record_shards(servers, make_rows, folder, labels):
    head = SimpleNamespace(host="127.0.0.1", port=servers.head_port)
    for number, label in enumerate(labels):
        servers.behaviours["agent_a"] = lambda row, reward=number: {**row, "reward": reward}
        completions = RolloutCollectionHelper().run_examples(
            make_rows(2), head, record_output_dir=folder, record_shard=label
        )
        async for _ in completions:
            pass


def config(**more):
    given = {"input_glob": "run/rollouts-*.jsonl", "output_jsonl_fpath": "run/all.jsonl", **more}
    return RolloutAggregationConfig(disable_health_check=True, **given)


async def test_shards_with_equal_indices_count_once_each_and_derived_files_not_at_all(
    servers, make_rows, run_folder, read_rows
):
    await record_shards(servers, make_rows, run_folder, ["s7", "s8"])
    (run_folder / "rollouts-s7_reward_profiling.jsonl").write_text('{"_ng_task_index": 5}\n')
    for _ in range(2):
        summary = await aggregate_files(config(), own_config=servers.own_config)
        assert (summary.records, summary.denominators.expected, summary.duplicates) == (4, 4, 0)
    _, rows = servers.metric_requests[-1]
    assert [row["_ng_task_index"] for row in rows] == [0, 1, 2, 3]
    assert sorted(row["_ng_task_index"] for row in read_rows(run_folder / "all.jsonl")) == [0, 0, 1, 1]
    [entry] = json.loads((run_folder / "all_aggregate_metrics.json").read_text())
    assert entry["key_metrics"]["mean/reward"] == 0.5
    assert {group["_ng_shard"] for group in entry["group_level_metrics"]} == {"rollouts-s7", "rollouts-s8"}
    assert {group["sample"]["agent_ref"]["name"] for group in entry["group_level_metrics"]} == {"agent_a"}


@pytest.mark.parametrize("kept", ["copied beside", "moved", "without its inputs"])
async def test_a_file_without_its_manifest_is_of_the_run_that_its_records_name(servers, make_rows, run_folder, kept):
    await record_shards(servers, make_rows, run_folder, ["s7", "s8"])
    for end in ("", "_materialized_inputs"):
        shutil.copy(run_folder / f"rollouts-s7{end}.jsonl", run_folder / f"rollouts-copy{end}.jsonl")
    if kept != "copied beside":
        for path in run_folder.glob("rollouts-s7*"):
            path.unlink()
    if kept == "without its inputs":
        (run_folder / "rollouts-copy_materialized_inputs.jsonl").unlink()
    summary = await aggregate_files(config(), own_config=servers.own_config)
    assert summary.records == 4
    assert summary.duplicates == (2 if kept == "copied beside" else 0)
    denominators = summary.denominators
    assert (denominators.expected, denominators.scored, denominators.missing) == (4, 4, 0)


async def test_whatever_else_lies_in_the_folder_counts_for_nothing(servers, make_rows, run_folder):
    await record_shards(servers, make_rows, run_folder, ["s7", "s8"])
    row = {"_ng_task_index": 9, "_ng_rollout_index": 9, "agent_ref": {"name": "agent_a"}, "reward": 9}
    line = json.dumps(row) + "\n"
    for name in (
        "rollouts-s7_reward_profiling.jsonl", "rollouts-s7.bak-20260101T000000.jsonl", ".rollouts-s7.jsonl.5.tmp",
        "rollouts-s7.jsonl.upload.tmp", "rollouts-s7_rollout_verdicts.jsonl", "rollout_verdicts.jsonl", "notes.jsonl",
    ):  # fmt: skip
        (run_folder / name).write_text(line)
    (run_folder / "rollouts-s7_agent_metrics.json").write_text("[]")
    (run_folder / "quality_summary.json").write_text("{}")
    (run_folder / "rollouts-folder.jsonl").mkdir()
    for pattern in ("run/rollouts-*.jsonl", "run/rollouts-*", "run", "run/rollouts-s7.jsonl, run/rollouts-*.jsonl"):
        settings = config().model_copy(update={"input_glob": pattern})
        summary = await aggregate_files(settings, own_config=servers.own_config)
        assert (summary.records, summary.duplicates, len(summary.shards)) == (4, 0, 2), pattern
        assert summary.denominators == Denominators(scored=4, failed=0, omitted=0, missing=0)


async def test_expected_is_scored_failed_omitted_and_missing_over_all_shards(servers, make_rows, run_folder):
    head = SimpleNamespace(host="127.0.0.1", port=servers.head_port)

    async def behave(row):
        if row["_ng_task_index"] == 2:
            await asyncio.Event().wait()
        return (500, "boom") if row["_ng_task_index"] == 1 else {**row, "reward": 1.0}

    servers.behaviours["agent_a"] = behave
    for label, omitted in (("told", True), ("silent", False)):
        completions = RolloutCollectionHelper().run_examples(
            make_rows(4), head, route_failures_to_sidecar=True, record_output_dir=run_folder, record_shard=label,
            record_omitted_rollouts=omitted, max_resident_tasks=1,
        )  # fmt: skip
        async with completions:
            await next(completions)
            await next(completions)
    inventory = (run_folder / "rollouts-told_materialized_inputs.jsonl").read_bytes()
    (run_folder / "rollouts-killed_materialized_inputs.jsonl").write_bytes(inventory)
    summary = await aggregate_files(config(), own_config=servers.own_config)
    assert summary.denominators == Denominators(scored=2, failed=2, omitted=2, missing=6)
    assert summary.denominators.text() == "expected 12 = 2 scored + 2 failed + 2 omitted + 6 missing"
    assert summary.denominators.text() in aggregation_lines(summary)


async def test_chunks_of_one_evaluation_keep_their_indices(servers, run_folder):
    for chunk in range(2):
        row = {"_ng_task_index": chunk, "_ng_rollout_index": 0, "agent_ref": {"name": "agent_a"}, "reward": 1}
        (run_folder / f"rollouts-c{chunk}.jsonl").write_text(json.dumps(row) + "\n")
    await aggregate_files(config(), own_config=servers.own_config)
    assert [row["_ng_task_index"] for row in servers.metric_requests[-1][1]] == [0, 1]


async def test_a_row_of_the_same_run_in_two_files_counts_once(servers, run_folder):
    row = {"_ng_run_id": "r", "_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": "agent_a"}}
    for name, reward in (("a", 1), ("b", 0)):
        (run_folder / f"rollouts-{name}.jsonl").write_text(json.dumps({**row, "reward": reward}) + "\n")
    summary = await aggregate_files(config(), own_config=servers.own_config)
    assert (summary.records, summary.duplicates) == (1, 1)
    assert servers.metric_requests[-1][1][0]["reward"] == 1


async def test_a_line_being_written_is_skipped_and_a_damaged_one_is_an_error(servers, make_rows, run_folder):
    await record_shards(servers, make_rows, run_folder, ["s7"])
    path = run_folder / "rollouts-s7.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"_ng_task')
    summary = await aggregate_files(config(), own_config=servers.own_config)
    assert summary.records == 2
    assert any("still being written" in note for note in summary.notes)
    path.write_bytes(whole + b'{"_ng_task\n\n')
    assert (await aggregate_files(config(), own_config=servers.own_config)).notes == summary.notes
    path.write_bytes(b"{oops\n" + whole)
    with pytest.raises(DataError, match="line 1"):
        await aggregate_files(config(), own_config=servers.own_config)


async def test_a_reward_that_is_no_json_number_is_read_as_null_and_never_written_again(servers, run_folder):
    row = '{"_ng_task_index": %d, "_ng_rollout_index": 0, "agent_ref": {"name": "agent_a"}, "reward": %s}\n'
    path = run_folder / "rollouts-a.jsonl"
    path.write_text(row % (0, "NaN") + row % (1, "1") + row % (2, "-Infinity"))
    summary = await aggregate_files(config(), own_config=servers.own_config)
    assert summary.records == 3
    assert [row["reward"] for row in servers.metric_requests[-1][1]] == [None, 1, None]
    merged = [json.loads(line) for line in summary.merged_path.read_text().splitlines()]
    assert [row["reward"] for row in merged] == [None, 1, None]
    [note] = [note for note in summary.notes if "NaN and infinity" in note]
    assert note.startswith("`run/rollouts-a.jsonl` line 1 and 1 more: "), (
        "a note for each row would be as long as the file"
    )


async def test_without_a_head_server_metrics_are_computed_here(servers, make_rows, run_folder):
    await record_shards(servers, make_rows, run_folder, ["s7", "s8"])
    own = {"head_server": {"host": "127.0.0.1", "port": 9}}
    path = await RolloutAggregationHelper().run_from_config(config(), own_config=own)
    assert path is not None
    [entry] = json.loads(path.read_text())
    assert entry["key_metrics"]["mean/reward"] == 0.5
    assert len(entry["group_level_metrics"]) == 4
    assert [group["sample"] for group in entry["group_level_metrics"]] == [{"agent_ref": {"name": "agent_a"}}] * 4


async def test_missing_rollouts_of_shards_count_as_zero_when_asked(servers, make_rows, run_folder):
    await record_shards(servers, make_rows, run_folder, ["s7", "s8"])
    path = run_folder / "rollouts-s8.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    summary = await aggregate_files(config(count_missing_rollouts_as_zero=True), own_config=servers.own_config)
    assert (summary.records, summary.denominators.expected, summary.imputed) == (3, 4, 1)
    sent = [row["reward"] for _, rows in servers.metric_requests[-1:] for row in rows]
    assert sorted(sent) == [0, 0, 0, 1]


ZEROS = {"count_failure_classes_as_zero": ["agent_run_error"], "count_missing_rollouts_as_zero": True}


def scored(servers):
    """What the metrics of the last request are made of."""
    _, rows = servers.metric_requests[-1]
    fields = ("_ng_task_index", "_ng_environment_server", "reward", "level")
    return [[row.get(name) for name in fields] for row in rows]


@pytest.fixture
def relayed(servers):
    """An environment server in front of the agent, which rows are attributed to."""
    agent = {"type": "responses_api_agents", "name": "agent_a"}
    servers.extra_config = {"front": {"environment_servers": {"legacy_agent": {"agent_server": agent}}}}
    return servers


async def test_a_run_and_its_aggregation_count_the_same_rollouts_as_zero(relayed, run_folder):
    """A failure, a withdrawn result, an interruption after a failure, and an error that ended the run."""
    row = {"responses_create_params": {"input": "x"}, "agent_ref": {"name": "agent_a"}}
    (run_folder / "in.jsonl").write_text("".join(json.dumps({**row, "level": n}) + "\n" for n in range(5)))
    relayed.behaviours["agent_a"] = lambda row: (
        (500, "x") if row["level"] == 1 else {**row, "reward": 1, **({"_ng_no_persist": True} if row["level"] else {})}
    )
    settings = {
        "input_jsonl_fpath": "run/in.jsonl", "output_jsonl_fpath": "run/rollouts-a.jsonl", "disable_health_check": True,
        "route_failures_to_sidecar": True, **ZEROS,
    }  # fmt: skip
    await collect_run(RolloutCollectionConfig(**settings), own_config=relayed.own_config)
    failed = {"_ng_failure_class": "other", "_ng_rollout_index": 0, "agent_ref": {"name": "agent_a"}}
    with (run_folder / "rollouts-a_failures.jsonl").open("a") as file:
        for more in (
            {"_ng_task_index": 2},
            {"_ng_task_index": 2, "_ng_omitted_rollout": True, "_ng_failure_class": "kill_shaped"},
            {"_ng_task_index": 3, "_ng_unrouted_run_error": True},
            {"_ng_task_index": 4},
        ):
            file.write(json.dumps({**failed, **more}) + "\n")
    again = RolloutCollectionConfig(**settings, resume_from_cache=True)
    relayed.behaviours["agent_a"] = lambda row: {**row, "_ng_no_persist": True}
    await collect_run(again, own_config=relayed.own_config)
    expected = [[0, "front", 1, 0], [1, "front", 0.0, 1], [2, "front", 0.0, 2], [3, "front", 0.0, 3]]
    assert scored(relayed) == expected, "the newest failure of the last one is of another class"
    relayed.metric_requests.clear()
    summary = await aggregate_files(config(**ZEROS), own_config=relayed.own_config)
    assert scored(relayed) == expected
    assert summary.imputed == 3
    assert len(summary.metrics) == 1


async def test_what_counts_as_zero_keeps_the_tasks_of_two_shards_apart(servers, make_rows, run_folder):
    await record_shards(servers, make_rows, run_folder, ["s7", "s8"])
    (run_folder / "rollouts-s8.jsonl").write_bytes(b"")
    summary = await aggregate_files(config(**ZEROS), own_config=servers.own_config)
    assert sorted(task for task, *_ in scored(servers)) == [0, 1, 2, 3]
    [entry] = summary.metrics
    assert sorted(group["_ng_shard"] for group in entry["group_level_metrics"]) == sorted(
        2 * ["rollouts-s7"] + 2 * ["rollouts-s8"]
    )


async def test_a_rollout_counts_as_zero_once_however_many_files_of_its_run_there_are(servers, make_rows, run_folder):
    await record_shards(servers, make_rows, run_folder, ["s7"])
    path = run_folder / "rollouts-s7.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    for ending in (".jsonl", "_materialized_inputs.jsonl", "_manifest.json", "_failures.jsonl"):
        shutil.copy(run_folder / f"rollouts-s7{ending}", run_folder / f"rollouts-s7copy{ending}")
    summary = await aggregate_files(config(**ZEROS), own_config=servers.own_config)
    assert (summary.records, summary.duplicates, summary.imputed) == (1, 1, 1)
    assert summary.denominators.expected == 2


async def test_a_shard_that_was_killed_before_its_first_result_counts_as_zero(servers, make_rows, run_folder):
    await record_shards(servers, make_rows, run_folder, ["s7", "s8"])
    (run_folder / "rollouts-s8.jsonl").unlink()
    settings = RolloutAggregationConfig(
        input_glob="run", output_jsonl_fpath="run/all.jsonl", disable_health_check=True, **ZEROS
    )
    summary = await aggregate_files(settings, own_config=servers.own_config)
    assert summary.denominators == Denominators(scored=2, failed=0, omitted=0, missing=2)
    assert (summary.records, summary.imputed) == (2, 2)


@pytest.mark.parametrize("index", [[1], {"a": 1}, "1", 1.5, -1, None])
async def test_rows_of_odd_indices_count_each_once_also_where_runs_clash(servers, make_rows, run_folder, index):
    await record_shards(servers, make_rows, run_folder, ["a", "b"])
    odd = json.dumps(
        {"_ng_task_index": index, "_ng_rollout_index": index, "reward": 1, "agent_ref": {"name": "agent_a"}}
    )
    for name in ("rollouts-a.jsonl", "rollouts-a_failures.jsonl"):
        with (run_folder / name).open("a") as file:
            file.write(odd + "\n")
    config = RolloutAggregationConfig(
        input_glob="run/rollouts-*.jsonl", output_jsonl_fpath="merged/m.jsonl", disable_health_check=True,
        count_failure_classes_as_zero=["agent_run_error"], count_missing_rollouts_as_zero=True,
    )  # fmt: skip
    summary = await aggregate_files(config, own_config={})
    assert summary.records == 5
    assert summary.imputed == 0


@pytest.mark.parametrize("reward", [None, "1", "NaN", [1]])
async def test_a_failure_without_a_number_for_its_reward_counts_as_zero(servers, make_rows, run_folder, reward):
    await record_shards(servers, make_rows, run_folder, ["a"])
    failed = {"_ng_failure_class": "judge_failed", "_ng_task_index": 7, "_ng_rollout_index": 0, "reward": reward}
    (run_folder / "rollouts-a_failures.jsonl").write_text(json.dumps(failed) + "\n")
    config = RolloutAggregationConfig(
        input_glob="run/rollouts-a.jsonl", output_jsonl_fpath="merged/m.jsonl", disable_health_check=True,
        count_failure_classes_as_zero=["judge_failed"],
    )  # fmt: skip
    summary = await aggregate_files(config, own_config={})
    assert summary.imputed == 1
    [group] = [g for entry in summary.metrics for g in entry["group_level_metrics"] if g["_ng_task_index"] == 7]
    assert group["mean/reward"] == 0.0


async def test_a_glob_that_matches_nothing_beside_one_that_does_is_said(servers, make_rows, run_folder):
    await record_shards(servers, make_rows, run_folder, ["s7"])
    settings = config(merge_shards=False).model_copy(update={"input_glob": "run/rollouts-s7.jsonl, run/typo-*.jsonl,"})
    summary = await aggregate_files(settings, own_config=servers.own_config)
    assert summary.notes == ["`run/typo-*.jsonl` matches nothing"]


async def test_a_glob_without_rollouts_files_is_a_clear_error(servers, run_folder):
    (run_folder / "rollouts-x_failures.jsonl").touch()
    with pytest.raises(ConfigError, match="matches no rollouts file"):
        await aggregate_files(config(), own_config=servers.own_config)


async def test_a_row_of_an_unknown_server_is_refused(servers, run_folder):
    row = {"_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": "gone"}, "reward": 1}
    (run_folder / "rollouts-a.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match="`gone`"):
        await aggregate_files(config(), own_config=servers.own_config)


@pytest.mark.parametrize("listens", ["another environment", "another program", "a head server with a token"])
async def test_what_happens_to_listen_on_the_head_port_changes_nothing_unless_it_was_named(
    servers, run_folder, listens
):
    rows = [
        {"_ng_task_index": 0, "_ng_rollout_index": rollout, "agent_ref": {"name": "gone"}, "reward": rollout}
        for rollout in range(2)
    ]
    (run_folder / "rollouts-a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    nobody = {"head_server": {"host": "127.0.0.1", "port": 9}}
    alone = (await aggregate_files(config(), own_config=nobody)).metrics
    with token_head() as guarded:
        port = {
            "another environment": servers.head_port,
            "another program": servers.ports["agent_a"],
            "a head server with a token": guarded,
        }[listens]
        there = {"head_server": {"host": "127.0.0.1", "port": port}}
        summary = await aggregate_files(config(), own_config=there, head_named=False)
        assert summary.metrics == alone
        [note] = summary.notes
        assert "computed here" in note
        assert f"http://127.0.0.1:{port}" in note
        with pytest.raises(GymError):
            await aggregate_files(config(), own_config=there)


async def test_rollouts_without_a_manifest_are_no_merged_file_and_one_is_replaced_again(run_folder):
    """They may be the only copy, also when they are among the inputs, which leave the output out."""
    for name in ("a", "b"):
        row = {"_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": "gone"}, "reward": 1, "of": name}
        (run_folder / f"rollouts-{name}.jsonl").write_text(json.dumps(row) + "\n")
    nobody = {"head_server": {"host": "127.0.0.1", "port": 9}}
    there = run_folder / "rollouts-a.jsonl"
    before = there.read_bytes()
    with pytest.raises(ConfigError, match="no earlier merged file"):
        await aggregate_files(config(output_jsonl_fpath=str(there)), own_config=nobody)
    assert there.read_bytes() == before
    for _ in range(2):
        await aggregate_files(config(output_jsonl_fpath=str(run_folder.parent / "merged.jsonl")), own_config=nobody)
    assert len((run_folder.parent / "merged.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(("named", "limit"), [(False, "_UNNAMED_HEAD_TIMEOUT_S"), (True, "TIMEOUT_S")])
async def test_a_program_that_says_nothing_on_the_head_port_is_waited_for_a_while(
    servers, run_folder, monkeypatch, named, limit
):
    monkeypatch.setattr(aggregation, limit, 0.1)
    row = {"_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": "gone"}, "reward": 1}
    (run_folder / "rollouts-a.jsonl").write_text(json.dumps(row) + "\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there = {"head_server": {"host": "127.0.0.1", "port": silent.getsockname()[1]}}
        async with asyncio.timeout(20):
            summary = await aggregate_files(config(), own_config=there, head_named=named)
    [note] = summary.notes
    assert "computed here" in note


@contextlib.contextmanager
def token_head():
    """The port of a head server that answers only those who have its token."""

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(401)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


async def test_an_environment_beside_the_one_that_ran_gives_its_own_metrics_only_to_its_own_rows(servers, run_folder):
    rows = [
        {"_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": name}, "reward": 1}
        for name in ("agent_a", "gone")
    ]
    (run_folder / "rollouts-a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = await aggregate_files(config(), own_config=servers.own_config, head_named=False)
    assert [entry["agent_ref"]["name"] for entry in summary.metrics] == ["agent_a", "gone"]
    assert [len(rows) for _, rows in servers.metric_requests] == [1]
    [note] = summary.notes
    assert note == (
        "metrics of `gone` are computed here, without the server's own: what runs at "
        f"http://127.0.0.1:{servers.head_port} lacks it (it has `agent_a`)"
    )


async def test_a_merged_file_replaces_an_earlier_one_and_nothing_else(servers, make_rows, run_folder):
    await record_shards(servers, make_rows, run_folder, ["a", "b"])
    (run_folder / "notes.txt").write_text("mine\n")
    (run_folder / "table.json").write_text('{"mine": 1}\n')
    (run_folder / "rollouts-old.jsonl").write_text('{"_ng_task_index": 9, "_ng_rollout_index": 0, "reward": 1}\n')
    before = {path: path.read_bytes() for path in run_folder.iterdir()}
    for name in (
        "rollouts-a.jsonl", "rollouts-b_failures.jsonl", "rollouts-b_materialized_inputs.jsonl", "notes.txt",
        "table.json", "rollout_verdicts.jsonl", "quality_summary.json", "sub/",
    ):  # fmt: skip
        config = RolloutAggregationConfig(input_glob="run/rollouts-*.jsonl", output_jsonl_fpath=f"run/{name}")
        with pytest.raises(ConfigError):
            await aggregate_files(config, own_config=servers.own_config)
    assert {path: path.read_bytes() for path in run_folder.iterdir()} == before
    config = RolloutAggregationConfig(
        input_glob="run/rollouts-?.jsonl", output_jsonl_fpath="run/merged.jsonl", disable_health_check=True
    )
    for _ in range(2):
        summary = await aggregate_files(config, own_config=servers.own_config)
        assert summary.records == len((run_folder / "merged.jsonl").read_text().splitlines()) == 4

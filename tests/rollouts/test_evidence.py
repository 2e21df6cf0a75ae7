"""Evidence around `/run`: A5, A9, A10, A13, A15, C11, C18, C19."""

from __future__ import annotations

import asyncio
import json
import socket
import uuid

import pytest

from nemo_gym.capture import CaptureStore
from nemo_gym.capture.open_calls import OpenCallLedger
from nemo_gym.errors import RunFailedError
from nemo_gym.rollouts import RolloutCollectionHelper, RolloutFailureRecord
from nemo_gym.rollouts.capture_owner import claim
from nemo_gym.rollouts.collect import collect_run
from nemo_gym.rollouts.settings import RolloutCollectionConfig
from nemo_gym.store import RunFiles, shard_files

CONVERSATION = [
    {"type": "function_call", "call_id": "tool-1", "name": "lookup", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "tool-1", "output": "42"},
]
OBSERVATIONS = {
    "source": "example_agent",
    "records": [
        {
            "kind": "agent_invocation",
            "invocation_id": "root",
            "model_calls": [{"model_call_id": "call-1"}],
            "conversation": CONVERSATION,
        },
        {
            "kind": "tool_call", "invocation_id": "root", "tool_call_id": "tool-1", "tool_name": "lookup",
            "duration_ms": 200, "timing_source": "harness", "status": "completed",
        },
    ],
    "gaps": [],
}  # fmt: skip
EXCHANGE = {
    "model_call_id": "call-1",
    "dialect": "responses",
    "status_code": 200,
    "request": {"input": "Look up the answer"},
    "response": {"output": CONVERSATION[:1], "usage": {"input_tokens": 12, "output_tokens": 8}},
}


@pytest.fixture
def captures(servers, tmp_path):
    directory = tmp_path / "captures"
    servers.extra_config = {"observability_enabled": True, "model_call_capture_dir": str(directory)}
    return CaptureStore(directory)


def capturing(store, *, status=None):
    """An agent that makes one captured model call under the id that it was given."""

    def behave(row):
        base = row.get("_ng_rollout_id") or f"{row['_ng_task_index']}-{row['_ng_rollout_index']}"
        attempt = row.get("_ng_attempt_index") or 0
        store.record(f"{base}-a{attempt}" if attempt else base, EXCHANGE)
        if status is not None:
            return (status, "boom")
        return {**row, "response": {"output": []}, "reward": 0.25, "ng_agent_observations": OBSERVATIONS}

    return behave


async def one(rows, head, **options):
    [pair] = [await completion for completion in RolloutCollectionHelper().run_examples(rows, head, **options)]
    return pair


async def test_an_enriched_result_has_capture_trajectory_and_performance_A5_A9(servers, head, make_rows, captures):
    servers.behaviours["agent_a"] = capturing(captures)
    row, result = await one(make_rows(1), head, enrich_results=True)
    assert result["ng_model_call_capture"]["rollout_id"] == "0-0"
    assert result["ng_model_call_capture"]["metrics"]["num_calls"] == 1
    assert result["ng_trajectory"]["tool_calls"][0]["output"] == "42"
    assert result["ng_trajectory"]["turns"] == []
    assert [gap["code"] for gap in result["ng_trajectory"]["gaps"]] == ["turns_unavailable"]
    perf = result["ng_perf"]
    assert (perf["num_turns"], perf["token_observability_coverage"]) == (1, 1.0)
    assert (perf["prompt_tokens"], perf["completion_tokens"]) == (12, 8)
    assert perf["total_latency_ms"] > 0
    assert (result["reward"], result["response"]) == (0.25, {"output": []})
    assert "ng_trajectory" not in row


@pytest.mark.parametrize("keep", [True, False])
async def test_payloads_are_kept_unless_left_out_A13(servers, head, make_rows, captures, keep):
    servers.behaviours["agent_a"] = capturing(captures)
    _, result = await one(make_rows(1), head, enrich_results=True, include_model_call_payloads=keep)
    [call] = result["ng_model_call_capture"]["calls"]
    [projected] = result["ng_trajectory"]["model_calls"]
    assert (call.get("request") == EXCHANGE["request"]) == keep
    assert (projected.get("request") == EXCHANGE["request"]) == keep


async def test_without_observability_an_enriched_result_has_identity_only(servers, head, make_rows):
    _, result = await one(make_rows(1), head, enrich_results=True)
    assert "ng_model_call_capture" not in result
    assert "ng_perf" not in result
    assert result["_ng_environment_server"] == "agent_a"


async def test_a_plain_result_gains_nothing_even_with_observability_A12(servers, head, make_rows, captures):
    servers.behaviours["agent_a"] = capturing(captures)
    [row] = make_rows(1)
    _, result = await one([row], head)
    assert set(result) == {*row, "response", "reward", "ng_agent_observations"}
    assert "ng_model_call_capture" not in result


async def test_an_older_capture_of_exactly_that_id_is_cleared_first_C11(servers, head, make_rows, captures):
    captures.record("0-0", {**EXCHANGE, "model_call_id": "stale"})
    captures.record("0-0-a1", {**EXCHANGE, "model_call_id": "other-attempt"})
    servers.behaviours["agent_a"] = capturing(captures)
    _, result = await one(make_rows(1), head, enrich_results=True)
    assert [call["model_call_id"] for call in result["ng_model_call_capture"]["calls"]] == ["call-1"]
    assert captures.path_for("0-0-a1").exists()


async def test_two_openings_of_a_shard_capture_under_ids_of_their_own_A15(servers, head, make_rows, captures, tmp_path):
    servers.behaviours["agent_a"] = capturing(captures)
    rows = [(await one(make_rows(1), head, record_output_dir=tmp_path, record_shard="s"))[0] for _ in range(2)]
    ids = {row["_ng_rollout_id"] for row in rows}
    assert len(ids) == 2
    assert all(captures.path_for(rollout_id).exists() for rollout_id in ids)


async def test_the_shard_line_is_the_returned_record_with_its_evidence(servers, head, make_rows, captures, tmp_path):
    servers.behaviours["agent_a"] = capturing(captures)
    row, result = await one(make_rows(1), head, record_output_dir=tmp_path, record_shard="s")
    [line] = shard_files(tmp_path, "s").rollouts.read_text().splitlines()
    assert json.loads(line) == result
    assert result["ng_model_call_capture"]["rollout_id"] == row["_ng_rollout_id"]
    assert result["ng_trajectory"]["rollout_id"] == row["_ng_rollout_id"]


async def test_a_capture_is_deleted_only_when_its_calls_are_on_the_record_A13(
    servers, head, make_rows, captures, tmp_path
):
    servers.behaviours["agent_a"] = capturing(captures)
    options = {"record_output_dir": tmp_path, "record_shard": "s", "delete_model_call_capture": True}
    row, _ = await one(make_rows(1), head, **options)
    assert not captures.path_for(row["_ng_rollout_id"]).exists()

    def incomplete(row):
        captures.mark_incomplete(row["_ng_rollout_id"])
        return capturing(captures)(row)

    servers.behaviours["agent_a"] = incomplete
    row, result = await one(make_rows(1), head, **options)
    assert result["ng_model_call_capture"]["gaps"]
    assert captures.path_for(row["_ng_rollout_id"]).exists()


async def test_a_failed_run_keeps_the_calls_it_made_on_its_sidecar_row(servers, head, make_rows, captures, tmp_path):
    servers.behaviours["agent_a"] = capturing(captures, status=500)
    _, record = await one(
        make_rows(1), head, record_output_dir=tmp_path, record_shard="s", route_failures_to_sidecar=True
    )
    assert isinstance(record, RolloutFailureRecord)
    [line] = shard_files(tmp_path, "s").failures.read_text().splitlines()
    assert json.loads(line)["ng_model_call_capture"]["metrics"]["num_calls"] == 1


@pytest.mark.parametrize("ending", ["a timeout", "a dropped connection", "an overloaded server"])
async def test_a_rollout_whose_outcome_is_unknown_keeps_the_calls_it_made(servers, tmp_path, captures, ending):
    call = capturing(captures)

    async def behave(row):
        call(row)
        if ending == "a timeout":
            await asyncio.Event().wait()
        return None if ending == "a dropped connection" else (503, "busy")

    servers.behaviours["agent_a"] = behave
    failed = await failed_row(servers, tmp_path, rollout_timeout_s=1.0)
    assert failed["_ng_failure_class"] == "agent_request_failed"
    assert failed["ng_model_call_capture"]["metrics"]["num_calls"] == 1
    assert [call["model_call_id"] for call in failed["ng_trajectory"]["model_calls"]] == ["call-1"]


async def test_what_was_never_sent_has_no_evidence(servers, tmp_path, captures):
    captures.record("0-0", EXCHANGE)
    with socket.socket() as taken:  # bound and not listening: nothing can connect
        taken.bind(("127.0.0.1", 0))
        servers.ports["agent_a"] = taken.getsockname()[1]
        failed = await failed_row(servers, tmp_path, connection_retries=0)
    assert failed["_ng_rollout_failure"]["delivery"] == "not_sent"
    assert "ng_model_call_capture" not in failed
    assert "ng_trajectory" not in failed


async def failed_row(servers, tmp_path, **settings):
    """Run one rollout that fails; return its row in the sidecar."""
    row = {"responses_create_params": {"input": "x"}, "agent_ref": {"name": "agent_a"}}
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    config = RolloutCollectionConfig(
        input_jsonl_fpath=str(tmp_path / "in.jsonl"), output_jsonl_fpath=str(tmp_path / "out" / "r.jsonl"),
        route_failures_to_sidecar=True, disable_aggregation=True, **settings,
    )  # fmt: skip
    with pytest.raises(RunFailedError, match="none of 1 rollouts succeeded"):
        await collect_run(config, own_config=servers.own_config)
    [line] = config.files.failures.read_text().splitlines()
    return json.loads(line)


async def test_an_evaluation_run_strips_payloads_at_rest_and_a_retry_has_its_own_capture_C18_A10(
    servers, make_rows, captures, tmp_path, read_rows
):
    source = tmp_path / "in.jsonl"
    source.write_text('{"agent_ref": {"name": "agent_a"}, "responses_create_params": {"input": "x"}}\n' * 2)
    files = RunFiles(tmp_path / "out" / "rollouts.jsonl")

    async def collect(**more):
        config = RolloutCollectionConfig(
            input_jsonl_fpath=str(source),
            output_jsonl_fpath=str(files.rollouts),
            route_failures_to_sidecar=True,
            **more,
        )
        return await collect_run(config, own_config=servers.own_config)

    good, bad = capturing(captures), capturing(captures, status=500)
    servers.behaviours["agent_a"] = lambda row: bad(row) if row["_ng_rollout_index"] else good(row)
    await collect()
    servers.behaviours["agent_a"] = good
    summary = await collect(resume_from_cache=True)
    records = read_rows(files.rollouts)
    assert [record["ng_model_call_capture"]["rollout_id"] for record in records] == ["0-0", "0-1-a1"]
    for record in records:
        [call] = record["ng_model_call_capture"]["calls"]
        assert not {"request", "response", "request_raw", "response_raw"} & set(call)
        assert record["ng_trajectory"]["model_calls"][0]["request"] == EXCHANGE["request"]
    assert len(captures.read("0-1")) == len(captures.read("0-1-a1")) == 1
    [entry] = json.loads(files.aggregate_metrics.read_text())
    assert entry["agent_ref"]["name"] == "agent_a"
    assert summary.report.health is not None
    [line] = [line for line in summary.report.health.splitlines() if line.startswith("gaps: ")]
    assert "turns_unavailable 2" in line
    assert (files.folder / "quality_summary.json").exists()


async def test_two_runs_that_share_a_capture_directory_are_warned_about_A4(tmp_path):
    directory = tmp_path / "c"
    assert claim(directory, run_id="r1", output=tmp_path / "a.jsonl") == []
    assert claim(directory, run_id="r1", output=tmp_path / "a.jsonl") == [], "a resume"
    assert claim(directory, run_id="r2", output=tmp_path / "a.jsonl") == [], "nothing was captured yet"
    (directory / "0-0.capture.jsonl").touch()
    [replaced] = claim(directory, run_id="r3", output=tmp_path / "a.jsonl")
    assert "make room" in replaced
    [shared] = claim(directory, run_id="r4", output=tmp_path / "b.jsonl")
    assert shared.startswith("Warning: ")
    assert "a.jsonl" in shared


async def test_a_run_in_the_place_of_another_says_what_becomes_of_its_captures(servers, tmp_path, captures):
    path = tmp_path / "in.jsonl"
    path.write_text('{"responses_create_params": {"input": "x"}, "agent_ref": {"name": "agent_a"}}\n')
    servers.behaviours["agent_a"] = capturing(captures)
    told = []

    class Notes:
        note = staticmethod(told.append)

        async def watch(self, status):
            await asyncio.Event().wait()

    for resume, expected in ((False, 0), (True, 0), (False, 1)):
        told.clear()
        config = RolloutCollectionConfig(
            input_jsonl_fpath=str(path),
            output_jsonl_fpath=str(tmp_path / "out" / "r.jsonl"),
            disable_health_check=True,
            resume_from_cache=resume,
        )
        await collect_run(config, own_config=servers.own_config, observer=Notes())
        assert sum("make room" in text for text in told) == expected, told


async def test_cancelling_while_evidence_is_attached_still_saves_the_finished_rollout(
    servers, head, make_rows, captures, tmp_path, read_rows, monkeypatch
):
    from nemo_gym.rollouts import evidence

    attaching, wait = asyncio.Event(), evidence.await_model_call_capture_quiescence
    ledger, slots = OpenCallLedger(captures.root), []

    async def watched(*arguments):
        attaching.set()
        return await wait(*arguments)

    async def with_a_call_that_goes_on(row):
        slots.append(ledger.begin(row["_ng_rollout_id"], uuid.uuid4().hex, 1.0))
        return capturing(captures)(row)

    monkeypatch.setattr(evidence, "await_model_call_capture_quiescence", watched)
    servers.behaviours["agent_a"] = with_a_call_that_goes_on
    completions = RolloutCollectionHelper().run_examples(
        make_rows(1), head, record_output_dir=tmp_path, record_shard="s"
    )
    task = asyncio.ensure_future(next(completions))
    await attaching.wait()
    closing = asyncio.ensure_future(completions.aclose())
    await asyncio.sleep(0)
    ledger.end(slots.pop())
    await closing
    assert len(read_rows(shard_files(tmp_path, "s").rollouts)) == 1
    with pytest.raises(asyncio.CancelledError):
        await task

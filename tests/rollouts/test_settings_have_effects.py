"""Every setting of collecting and aggregating does what it says: one check for each, and none may lack its own."""

from __future__ import annotations

import asyncio
import json

import pytest
from stub_servers import StubServers, verified

from nemo_gym.cli import main
from nemo_gym.errors import ConfigError, IncompleteEvaluationError, RunFailedError
from nemo_gym.records.codec import decode_object
from nemo_gym.rollouts.aggregation import aggregate_files
from nemo_gym.rollouts.collect import collect_run
from nemo_gym.rollouts.settings import E2ERolloutCollectionConfig, RolloutAggregationConfig, RolloutCollectionConfig
from nemo_gym.store import RunFiles

WITHOUT_EFFECT_ON_RESULTS = {
    "upload_rollouts": "accepted for compatibility; the command line says that it has no effect",
    "health_check_workers": "only speed: reports are the same with any number, which the tests of health hold",
    "split": "it chooses among declared datasets: in `test_eval_commands`, where servers are started",
    "reuse_existing_data_preparation": "in `test_eval_commands` too",
    "rollout_collection_driver": "it takes the place of collecting; a test of its own below",
}


class Bench:
    """Rows in a file, two stub agents and an environment server in front of each, and runs over them."""

    def __init__(self, servers, folder):
        self.servers = servers
        self.folder = folder
        self.files = RunFiles(folder / "out" / "r.jsonl")
        self.rows = [
            {"responses_create_params": {"input": f"q{n}"}, "agent_ref": {"name": "agent_a"}} for n in range(3)
        ]
        self.notes = []

    def note(self, text):
        self.notes.append(text)

    async def watch(self, status):
        await asyncio.Event().wait()

    async def run(self, **settings):
        path = self.folder / "in.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        self.servers.received.clear()
        self.servers.received_by.clear()
        given = {
            "input_jsonl_fpath": str(path),
            "output_jsonl_fpath": str(self.files.rollouts),
            "disable_health_check": True,
            "route_failures_to_sidecar": True,
            **settings,
        }
        config = RolloutCollectionConfig(**given)
        return await collect_run(config, own_config=self.servers.own_config, observer=self)

    def fail(self, *tasks, **fields):
        def behave(row):
            return (500, "x") if row["_ng_task_index"] in tasks else {**verified(row), **fields}

        self.servers.behaviours = dict.fromkeys(self.servers.agents, behave)

    @property
    def sent(self):
        return [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in self.servers.received]

    @property
    def inputs(self):
        return [row["responses_create_params"]["input"] for row in self.servers.received]

    def saved(self, path):
        return [decode_object(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def bench(tmp_path):
    relays = {
        f"front_{agent}": {
            "environment_servers": {
                "legacy_agent": {"agent_server": {"type": "responses_api_agents", "name": f"agent_{agent}"}}
            }
        }
        for agent in "ab"
    }
    with StubServers(agents=("agent_a", "agent_b"), config=relays) as servers:
        yield Bench(servers, tmp_path)


async def input_jsonl_fpath(bench):
    await bench.run()
    assert len(bench.sent) == 3


async def output_jsonl_fpath(bench):
    await bench.run(output_jsonl_fpath=str(bench.folder / "other" / "name.jsonl"))
    assert (bench.folder / "other" / "name.jsonl").exists()


async def disable_health_check(bench):
    assert (await bench.run(disable_health_check=True)).report.health is None
    assert "3 checked" in (await bench.run(disable_health_check=False)).report.health


async def health_check_ignored_checks(bench):
    summary = await bench.run(disable_health_check=False, health_check_ignored_checks="agent_turn_hollow")
    assert "agent_turn_hollow" in summary.report.health.splitlines()[0]
    with pytest.raises(ValueError, match="no health check `x`"):
        await bench.run(health_check_ignored_checks=["x"])


async def disable_aggregation(bench):
    assert (await bench.run(disable_aggregation=True)).report.metrics_path is None
    assert not bench.files.aggregate_metrics.exists()
    assert (await bench.run()).report.metrics_path == bench.files.aggregate_metrics


async def count_failure_classes_as_zero(bench):
    bench.fail(1)
    assert (await bench.run()).report.metrics[0]["key_metrics"] == {"mean/reward": 1.0}
    counted = await bench.run(count_failure_classes_as_zero=["agent_run_error"])
    assert counted.report.metrics[0]["key_metrics"] == {"mean/reward": 2 / 3}


async def count_missing_rollouts_as_zero(bench):
    bench.fail(_ng_no_persist=True)
    bench.servers.behaviours["agent_b"] = verified
    bench.rows[0]["agent_ref"] = {"name": "agent_b"}
    bench.rows[1]["agent_ref"] = {"name": "agent_b"}
    assert len((await bench.run()).report.metrics) == 1
    counted = await bench.run(count_missing_rollouts_as_zero=True)
    assert [entry["key_metrics"]["mean/reward"] for entry in counted.report.metrics] == [0.0, 1.0]


async def require_complete(bench):
    bench.fail(1)
    await bench.run()
    with pytest.raises(IncompleteEvaluationError, match="2 of 3") as caught:
        await bench.run(require_complete=True)
    assert caught.value.exit_code == 3


async def num_samples_in_parallel(bench):
    await bench.run(num_samples_in_parallel=1)
    assert bench.servers.most_in_flight == 1


async def max_resident_rollout_tasks(bench):
    await bench.run(max_resident_rollout_tasks=1, num_samples_in_parallel=3)
    assert bench.servers.most_in_flight == 1


async def retain_results_in_memory(bench):
    assert len((await bench.run(retain_results_in_memory=True)).records) == 3
    assert (await bench.run(retain_results_in_memory=False)).records == []


async def responses_create_params(bench):
    await bench.run(responses_create_params={"temperature": 0.25})
    assert {row["responses_create_params"]["temperature"] for row in bench.servers.received} == {0.25}
    assert sorted(bench.inputs) == ["q0", "q1", "q2"]


async def route_failures_to_sidecar(bench):
    bench.fail(1)
    assert (await bench.run(route_failures_to_sidecar=True)).status.counts.failed == 1
    with pytest.raises(RunFailedError, match="route_failures_to_sidecar"):
        await bench.run(route_failures_to_sidecar=False)


async def record_omitted_rollouts(bench):
    budget = {"dispatch_budget_s": 0.0, "num_samples_in_parallel": 1}
    for asked, rows in ((True, 3), (False, 0)):
        with pytest.raises(RunFailedError, match="none of 3 rollouts"):
            await bench.run(**budget, record_omitted_rollouts=asked)
        assert len(bench.saved(bench.files.failures)) == rows


async def environment_routing_mode(bench):
    with pytest.raises(ConfigError, match="takes only rows with `task_id` and `task_input`"):
        await bench.run(environment_routing_mode="taskset", environment_server_routes={"math": "front_b"})


async def environment_server_name(bench):
    bench.rows = [{**row, "agent_ref": {"name": "agent_b"}} for row in bench.rows]
    await bench.run(environment_routing_mode="legacy", environment_server_name="front_b")
    assert {row["_ng_environment_server"] for row in bench.saved(bench.files.rollouts)} == {"front_b"}
    with pytest.raises(ConfigError, match="`front_a` does not run agent `agent_b`"):
        await bench.run(environment_routing_mode="legacy", environment_server_name="front_a")


async def environment_server_routes(bench):
    bench.rows = [{"task_id": {"taskset": "math", "task_id": "t"}, "task_input": {}}]
    bench.servers.behaviours["agent_b"] = lambda body: {
        "episode_id": body["episode_id"], "task_id": body["task"]["task_id"], "result": {"reward": 1.0}
    }  # fmt: skip
    await bench.run(environment_server_routes={"math": "front_b"})
    assert bench.servers.received_by == ["agent_b"]


async def rollout_timeout_s(bench):
    async def hang(row):
        await asyncio.Event().wait()

    bench.servers.behaviours["agent_a"] = hang
    with pytest.raises(RunFailedError, match="transport_timeout 3"):
        await bench.run(rollout_timeout_s=0.05)


async def connection_retries(bench):
    bench.servers.ports["agent_a"] = 1
    bench.rows = bench.rows[:1]
    for retries, tries in ((0, ""), (1, "(after 2 tries to connect)")):
        with pytest.raises(RunFailedError):
            await bench.run(connection_retries=retries)
        assert bench.saved(bench.files.failures)[-1]["_ng_failure_message"].endswith(tries)


async def rollout_retries(bench):
    asked = []
    bench.servers.behaviours["agent_a"] = lambda row: asked.append(row) or (verified(row) if len(asked) > 1 else None)
    bench.rows = bench.rows[:1]
    await bench.run(rollout_retries=1)
    assert [row.get("_ng_attempt_index") for row in asked] == [None, 1]


async def overwrite(bench):
    for asked, backups in ((False, 0), (True, 0), (False, 1)):
        await bench.run(overwrite=asked)
        assert len(list(bench.files.folder.glob("r.bak-*[0-9].jsonl"))) == backups


async def agent_name(bench):
    with pytest.warns(UserWarning, match="`agent_a` -> `agent_b`"):
        await bench.run(agent_name="agent_b")
    assert bench.servers.received_by == ["agent_b"] * 3


async def agent_map(bench):
    with pytest.warns(UserWarning, match="`agent_a` -> `agent_b`"):
        await bench.run(agent_map={"agent_a": "agent_b"})
    assert bench.servers.received_by == ["agent_b"] * 3


async def fan_out(bench):
    await bench.run(fan_out={"agent_a": ["agent_a", "agent_b"]})
    assert sorted(bench.servers.received_by) == ["agent_a"] * 3 + ["agent_b"] * 3


async def limit(bench):
    for given, rows in ((2, 2), (0, 3), (None, 3), (9, 3)):
        await bench.run(limit=given)
        assert len(bench.sent) == rows


async def num_repeats(bench):
    await bench.run(num_repeats=2)
    assert sorted(bench.sent) == [(task, rollout) for task in range(3) for rollout in range(2)]
    await bench.run(num_repeats={"agent_a": 1})
    assert len(bench.sent) == 3


async def num_repeats_add_seed(bench):
    await bench.run(num_repeats=2, num_repeats_add_seed=True)
    seeds = [json.loads(row["responses_create_params"]["metadata"]["extra_body"]) for row in bench.servers.received]
    assert sorted(seed["seed"] for seed in seeds) == [0, 0, 0, 1, 1, 1]
    bench.rows[1]["responses_create_params"]["metadata"] = {"extra_body": "{oops"}
    with pytest.raises(ConfigError, match=r"` line 2: .*extra_body"):
        await bench.run(num_repeats_add_seed=True)


async def interleave_repeats(bench):
    await bench.run(num_repeats=2, num_samples_in_parallel=1)
    assert bench.sent == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    await bench.run(num_repeats=2, num_samples_in_parallel=1, interleave_repeats=True)
    assert bench.sent == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]


async def resume_from_cache(bench):
    bench.fail(1)
    await bench.run()
    await bench.run(resume_from_cache=True)
    assert bench.sent == [(1, 0)]


async def resume_ignore_drift(bench):
    await bench.run()
    with pytest.raises(ConfigError, match="responses_create_params"):
        await bench.run(resume_from_cache=True, responses_create_params={"temperature": 1})
    await bench.run(resume_from_cache=True, responses_create_params={"temperature": 1}, resume_ignore_drift=True)


async def prompt_config(bench):
    prompt = bench.folder / "prompt.yaml"
    prompt.write_text("user: 'How much is {question}?'\n")
    bench.rows = [{"question": "1+1", "agent_ref": {"name": "agent_a"}}]
    await bench.run(prompt_config=str(prompt))
    assert "How much is 1+1?" in json.dumps(bench.inputs)
    bench.rows.append({"responses_create_params": {"input": "x"}, "question": "2"})
    with pytest.raises(ConfigError, match="` line 2: "):
        await bench.run(prompt_config=str(prompt))


async def skills(bench):
    skill = bench.folder / "skills" / "add" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("add numbers")
    await bench.run(skills={"path": str(bench.folder / "skills")})
    assert {row["skills_ref"]["skills"][0] for row in bench.servers.received} == {"add"}
    assert all(row["skills_ref"] for row in bench.saved(bench.files.rollouts))
    skill.write_text("subtract numbers")
    with pytest.raises(ConfigError, match="`skills`"):
        await bench.run(skills={"path": str(bench.folder / "skills")}, resume_from_cache=True)


async def dispatch_budget_s(bench):
    with pytest.raises(RunFailedError, match=r"none of 3 rollouts succeeded \(3 omitted\)"):
        await bench.run(dispatch_budget_s=0.0, num_samples_in_parallel=1)
    assert bench.sent == []
    await bench.run(dispatch_budget_s=600, num_samples_in_parallel=1, resume_from_cache=True)
    assert len(bench.sent) == 3


async def drain_margin_s(bench):
    with pytest.raises(RunFailedError, match="3 omitted"):
        await bench.run(dispatch_budget_s=600, drain_margin_s=601, num_samples_in_parallel=1)
    assert bench.sent == []


async def dispatch_longest_first(bench):
    seconds = {0: 1.0, 1: 3.0, 2: 2.0}
    bench.servers.behaviours["agent_a"] = lambda row: {
        **row, "_ng_failure_class": "judge_failed", "elapsed_seconds": seconds[row["_ng_task_index"]]
    }  # fmt: skip
    with pytest.raises(RunFailedError):
        await bench.run()
    bench.servers.behaviours["agent_a"] = verified
    await bench.run(resume_from_cache=True, dispatch_longest_first=True, num_samples_in_parallel=1)
    assert [task for task, _ in bench.sent] == [1, 2, 0]


async def retry_terminal_timeouts(bench):
    marked = {"_ng_failure_class": "timeout_exceeded", "_ng_failure_terminal": True}
    bench.servers.behaviours["agent_a"] = lambda row: {**row, **marked} if row["_ng_task_index"] else verified(row)
    await bench.run()
    await bench.run(resume_from_cache=True)
    assert bench.sent == []
    await bench.run(resume_from_cache=True, retry_terminal_timeouts=True)
    assert sorted(bench.sent) == [(1, 0), (2, 0)]


async def retry_invalid_judge_responses(bench):
    bench.fail(invalid_judge_response=True)
    await bench.run()
    await bench.run(resume_from_cache=True)
    assert bench.sent == []
    bench.fail()
    summary = await bench.run(resume_from_cache=True, retry_invalid_judge_responses=True)
    assert len(bench.sent) == 3
    assert summary.status.counts.succeeded == 3
    assert len(bench.saved(bench.files.rollouts)) == 3


async def input_glob(bench):
    await bench.run()
    merged = bench.folder / "all.jsonl"
    settings = {"input_glob": str(bench.files.rollouts), "output_jsonl_fpath": str(merged)}
    summary = await aggregate_files(RolloutAggregationConfig(**settings), own_config=bench.servers.own_config)
    assert (summary.records, summary.merged_path) == (3, merged)


async def merge_shards(bench):
    await bench.run()
    merged = bench.folder / "all.jsonl"
    settings = {"input_glob": str(bench.files.rollouts), "output_jsonl_fpath": str(merged), "merge_shards": False}
    summary = await aggregate_files(RolloutAggregationConfig(**settings), own_config=bench.servers.own_config)
    assert summary.merged_path is None
    assert not merged.exists()


FIELDS = sorted(
    {
        *RolloutCollectionConfig.model_fields,
        *E2ERolloutCollectionConfig.model_fields,
        *RolloutAggregationConfig.model_fields,
    }
    - set(WITHOUT_EFFECT_ON_RESULTS)
)


@pytest.mark.parametrize("field", FIELDS)
async def test_a_setting_does_what_it_says(field, bench):
    await globals()[field](bench)


def test_a_driver_takes_the_place_of_collecting(servers, tmp_path, monkeypatch, capsys):
    (tmp_path / "gym_test_driver.py").write_text(
        "from pathlib import Path\n"
        "async def drive(config, data):\n"
        "    Path('driven.txt').write_text(f'{config.output_jsonl_fpath} {config.limit} {type(data).__name__}')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text("{}\n")
    words = ["eval", "run", "--no-serve", "-i", "in.jsonl", "-o", "r.jsonl", "--limit", "3"]
    assert main.run([*words, "+rollout_collection_driver=gym_test_driver:drive"]) == 0
    assert (tmp_path / "driven.txt").read_text() == "r.jsonl 3 dict"
    for wrong in ("gym_test_driver:no", "no_such_module:drive", "gym_test_driver"):
        assert main.run([*words, f"+rollout_collection_driver={wrong}"]) == 2
        assert "cannot be imported" in capsys.readouterr().err
    assert not (tmp_path / "r.jsonl").exists()

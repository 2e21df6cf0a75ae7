"""What collection promises, item by item (the numbers are those of the acceptance list), where no other test does."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid

import pytest

from nemo_gym.capture import CaptureStore
from nemo_gym.capture.open_calls import OpenCallLedger
from nemo_gym.records.manifest import decode_manifest
from nemo_gym.rollouts import RolloutCollectionHelper, RolloutFailureRecord
from nemo_gym.rollouts.collect import collect_run
from nemo_gym.rollouts.run_client import RunClient
from nemo_gym.rollouts.settings import RolloutCollectionConfig
from nemo_gym.store import RunFiles, shard_files

SNIPPET = """\
from nemo_gym.rollouts import RolloutCollectionHelper
helper = RolloutCollectionHelper()
completions = helper.run_examples(
    rows, route_failures_to_sidecar=True, record_output_dir="runs/policy", record_shard="step_000007-w0"
)
for completion in completions:
    row, result = await completion  # the record the shard holds, or the typed failure record
"""
SHARD = "step_000007-w0"
LEGACY_KEYS = {
    "_ng_failure_class", "_ng_failure_type", "_ng_failure_message", "_ng_failure_http_status",
    "_ng_failure_response_body", "_ng_task_index", "_ng_rollout_index", "agent_ref", "_ng_rollout_id",
    "_ng_environment_server", "_ng_result_type",
}  # fmt: skip
RESUME = (
    "gym eval run +input_jsonl_fpath=runs/policy/rollouts-<shard>_materialized_inputs.jsonl "
    "+output_jsonl_fpath=runs/policy/rollouts-<shard>.jsonl +resume_from_cache=true"
).replace("<shard>", SHARD)


def wait_until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the wait took too long"
        time.sleep(0.01)


@pytest.fixture
def environment(tmp_path):
    """The environment of a process that knows where the head server is from `env.yaml` alone."""
    names = {name: value for name, value in os.environ.items() if not name.startswith("NEMO_GYM_")}
    return {**names, "NO_COLOR": "1", "COLUMNS": "200", "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def env_yaml(servers, tmp_path):
    (tmp_path / "env.yaml").write_text(f"head_server:\n  host: 127.0.0.1\n  port: {servers.head_port}\n")


@pytest.fixture
def start(environment, env_yaml, tmp_path):
    def run(command):
        words = [sys.executable, "-m", "nemo_gym.cli.main", *command.split()[1:]]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(words, cwd=tmp_path, env=environment, **pipes)

    return run


@pytest.fixture
def gym(start):
    def run(command):
        process = start(command)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    return run


def run_snippet(servers, environment, folder, rows):
    """Run the specification's lines as they are printed, in a process of its own; return what they saw."""
    program = f"""\
import asyncio, json
from nemo_gym.rollouts import run_client
run_client._FIRST_BACKOFF_S = 0.001  # nobody will answer at one of the agents
rows = json.loads({json.dumps(rows)!r})
seen = []
async def main():
{textwrap.indent(SNIPPET, "    ")}
        seen.append([row["_ng_rollout_id"], type(result).__name__, result if isinstance(result, dict) else None])
asyncio.run(main())
print(json.dumps(seen))
"""
    own = json.dumps({"head_server": {"host": "127.0.0.1", "port": servers.head_port}})
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env={**environment, "NEMO_GYM_CONFIG_DICT": own},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_1_3_4_5_the_printed_snippet_records_and_the_printed_command_resumes_what_it_lacks_A18_A19(
    servers, environment, gym, make_rows, read_rows, tmp_path
):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = closed.getsockname()[1]
    block = {"host": "127.0.0.1", "port": nobody, "entrypoint": "app.py"}
    servers.extra_config = {"gone": {"responses_api_agents": {"simple_agent": block}}}
    servers.behaviours["agent_a"] = lambda row: (500, "x") if row["_ng_task_index"] == 1 else {**row, "reward": 1.0}
    rows = make_rows(4)
    rows[2]["agent_ref"] = {"name": "gone"}
    seen = run_snippet(servers, environment, tmp_path, rows)
    files = shard_files(tmp_path / "runs" / "policy", SHARD)
    run_id = decode_manifest(files.manifest.read_bytes()).run_id
    assert sorted(rollout for rollout, _, _ in seen) == [f"{run_id}-{task}-0" for task in range(4)]
    assert [kind for _, kind, _ in seen].count("RolloutFailureRecord") == 2
    assert sorted(path.name for path in files.folder.iterdir() if not path.name.startswith(".")) == sorted(
        f"rollouts-{SHARD}{ending}"
        for ending in (
            ".jsonl",
            "_failures.jsonl",
            "_materialized_inputs.jsonl",
            "_manifest.json",
            "_batch_status.json",
        )
    )
    assert [result for _, _, result in seen if result is not None] == read_rows(files.rollouts)
    failures = {row["_ng_task_index"]: row for row in read_rows(files.failures)}
    assert len(read_rows(files.failures)) == len(failures) == 2
    assert all(row.keys() >= LEGACY_KEYS for row in failures.values())
    assert [failures[task]["_ng_failure_class"] for task in (1, 2)] == ["agent_run_error", "agent_request_failed"]
    assert failures[2]["_ng_rollout_failure"]["delivery"] == "not_sent"
    assert json.loads(files.status.read_text())["state"] == "incomplete"

    inputs = files.materialized.read_bytes()
    servers.extra_config = {
        "gone": {"responses_api_agents": {"simple_agent": {**block, "port": servers.ports["agent_a"]}}}
    }
    servers.received.clear()
    code, out, err = gym(RESUME)
    assert code == 1, "a rollout failed again"
    assert sorted((row["_ng_rollout_id"], row["_ng_attempt_index"]) for row in servers.received) == [
        (f"{run_id}-1-0", 1),
        (f"{run_id}-2-0", 1),
    ]
    assert "expected 4 = 3 scored + 1 failed + 0 omitted + 0 missing" in out, err
    assert files.materialized.read_bytes() == inputs
    assert decode_manifest(files.manifest.read_bytes()).executions == {"1-0": 2, "2-0": 2}

    servers.behaviours["agent_a"] = lambda row: {**row, "reward": 1.0}
    environment["NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"] = "2"
    servers.received.clear()
    assert gym(RESUME)[0] == 1
    assert servers.received == [], "two attempts are used up"
    environment["NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"] = "3"
    assert gym(RESUME)[0] == 0
    assert [row["_ng_attempt_index"] for row in servers.received] == [2]
    assert json.loads(files.status.read_text())["state"] == "completed"
    assert len(read_rows(files.rollouts)) == 4
    assert decode_manifest(files.manifest.read_bytes()).run_id == run_id


async def test_2_each_opening_of_a_shard_has_captures_of_its_own(servers, head, make_rows, read_rows, tmp_path):
    store = CaptureStore(tmp_path / "captures")
    servers.extra_config = {"observability_enabled": True, "model_call_capture_dir": str(store.root)}

    def capturing(row):
        store.record(row["_ng_rollout_id"], {"model_call_id": "c", "dialect": "responses", "response": {"output": []}})
        return {**row, "reward": 1.0}

    servers.behaviours["agent_a"] = capturing
    for opening in (1, 2, 3):
        completions = RolloutCollectionHelper().run_examples(
            make_rows(3), head, record_output_dir=tmp_path / "run", record_shard="s"
        )
        async for _ in completions:
            pass
        files = shard_files(tmp_path / "run", "s")
        assert len(read_rows(files.rollouts)) == len(read_rows(files.materialized)) == 3
        assert len(list(store.root.glob("*.capture.jsonl"))) == 3 * opening
    assert len(decode_manifest(files.manifest.read_bytes()).parents) == 2


def test_6_a_kill_in_the_middle_of_a_line_costs_that_line_and_what_was_running(
    servers, start, gym, read_rows, tmp_path
):
    store = CaptureStore(tmp_path / "captures")
    servers.extra_config = {"observability_enabled": True, "model_call_capture_dir": str(store.root)}

    async def behave(row):
        name = f"{row['_ng_task_index']}-0"
        store.record(name, {"model_call_id": f"first-{name}", "dialect": "responses", "response": {"output": []}})
        if row["q"] >= 3:
            await asyncio.Event().wait()
        return {**row, "reward": 1.0}

    servers.behaviours["agent_a"] = behave
    rows = [{"responses_create_params": {"input": "x"}, "agent_ref": {"name": "agent_a"}, "q": n} for n in range(8)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = RunFiles(tmp_path / "r.jsonl")
    command = "gym eval run --no-serve -i in.jsonl -o r.jsonl --concurrency 2 --disable-aggregation"
    process = start(command)
    wait_until(
        lambda: servers.in_flight == 2 and files.rollouts.exists() and files.rollouts.read_bytes().count(b"\n") == 3
    )
    process.kill()
    process.communicate(timeout=120)
    cut = files.rollouts.read_bytes()[:-30]
    files.rollouts.write_bytes(cut)
    lost = json.loads(files.rollouts.read_bytes().splitlines()[1])["q"]
    done = {row["q"] for row in map(json.loads, cut.splitlines()[:2])}
    assert lost in done
    wait_until(lambda: servers.in_flight == 0)
    servers.received.clear()

    def again(row):
        name = f"{row['_ng_task_index']}-0"
        store.record(name, {"model_call_id": f"second-{name}", "dialect": "responses", "response": {"output": []}})
        return {**row, "reward": 1.0}

    servers.behaviours["agent_a"] = again
    code, _, err = gym(f"{command} --resume")
    assert code == 0, err
    assert "was cut" in err
    assert sorted(row["q"] for row in servers.received) == sorted(set(range(8)) - done)
    assert all("_ng_attempt_index" not in row for row in servers.received)
    for row in read_rows(files.rollouts):
        calls = [call["model_call_id"] for call in row["ng_model_call_capture"]["calls"]]
        assert calls == [f"{'first' if row['q'] in done else 'second'}-{row['_ng_task_index']}-0"]


def test_7_a_second_interrupt_ends_at_once_and_the_files_stay_whole(servers, start, gym, read_rows, tmp_path):
    """The first one waits for a rollout that is being recorded; here its calls go on."""
    store = CaptureStore(tmp_path / "captures")
    servers.extra_config = {"observability_enabled": True, "model_call_capture_dir": str(store.root)}
    rows = [{"responses_create_params": {"input": "x"}, "agent_ref": {"name": "agent_a"}, "q": n} for n in range(4)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    ledger = OpenCallLedger(store.root)

    async def behave(row):
        if row["q"] == 3:
            await asyncio.Event().wait()
        if row["q"]:
            ledger.begin(f"{row['q']}-0", uuid.uuid4().hex, time.time())
        return {**row, "reward": 1.0}

    servers.behaviours["agent_a"] = behave
    command = "gym eval run --no-serve -i in.jsonl -o r.jsonl --concurrency 4 --disable-aggregation"
    patient = "import sys\nfrom nemo_gym.rollouts import evidence, execute\nfrom nemo_gym.cli import main\n"
    patient += "evidence.QUIESCENCE_TIMEOUT_S = execute._FINISH_ON_CANCEL_S = 600\nsys.exit(main.run(sys.argv[1:]))\n"
    process = subprocess.Popen(
        [sys.executable, "-c", patient, *command.split()[1:]], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
    )  # fmt: skip
    files = RunFiles(tmp_path / "r.jsonl")
    wait_until(lambda: files.rollouts.exists() and len(read_rows(files.rollouts)) == 1 and servers.in_flight == 1)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: servers.cancelled == ["3-0"])
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)  # it does not wait for what it was waiting for, which takes ten minutes
    assert process.returncode == 130
    assert len(read_rows(files.rollouts)) == 1
    servers.behaviours["agent_a"] = lambda row: {**row, "reward": 1.0}
    servers.received.clear()
    code, _, err = gym(f"{command} --resume")
    assert code == 0, err
    assert sorted(row["q"] for row in servers.received) == [1, 2, 3]
    assert len(read_rows(files.rollouts)) == 4


async def test_8_a_resume_may_change_endpoint_concurrency_and_capture_directory(servers, tmp_path):
    (tmp_path / "in.jsonl").write_text(
        '{"responses_create_params": {"input": "x"}, "agent_ref": {"name": "agent_a"}}\n'
    )

    async def collect(**settings):
        config = RolloutCollectionConfig(
            input_jsonl_fpath=str(tmp_path / "in.jsonl"), output_jsonl_fpath=str(tmp_path / "r.jsonl"),
            disable_aggregation=True, **settings,
        )  # fmt: skip
        return await collect_run(config, own_config=servers.own_config)

    servers.extra_config = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path / "a")}
    first = await collect()
    servers.extra_config = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path / "b")}
    again = await collect(resume_from_cache=True, num_samples_in_parallel=7)
    assert again.status.run_id == first.status.run_id


@pytest.mark.parametrize(("mark", "kept"), [({}, False), ({"_ng_no_persist": True}, True), ("redacted", True)])
async def test_9_a_capture_goes_only_when_a_durable_record_holds_its_bodies_A13(
    servers, head, make_rows, tmp_path, mark, kept
):
    store = CaptureStore(tmp_path / "captures")
    servers.extra_config = {"observability_enabled": True, "model_call_capture_dir": str(store.root)}
    if mark == "redacted":
        gaps = [{"code": "multimodal_history_redacted"}]
        mark = {"ng_agent_observations": {"source": "a", "records": [], "gaps": gaps}}

    def behave(row):
        call = {"model_call_id": "c", "dialect": "responses", "request": {"input": "q"}, "response": {"output": []}}
        store.record(row["_ng_rollout_id"], call)
        return {**row, "reward": 1.0, **mark}

    servers.behaviours["agent_a"] = behave
    completions = RolloutCollectionHelper().run_examples(
        make_rows(1), head, record_output_dir=tmp_path / "run", record_shard="s", delete_model_call_capture=True
    )
    [(_, result)] = [pair async for pair in completions]
    assert bool(list(store.root.glob("*.capture.jsonl"))) == kept
    if not kept:
        assert result["ng_model_call_capture"]["calls"][0]["request"] == {"input": "q"}


def test_13_status_of_a_finished_run_as_text_json_and_watched(servers, gym, start, tmp_path):
    rows = [{"responses_create_params": {"input": "x"}, "agent_ref": {"name": "agent_a"}, "q": n} for n in range(4)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    servers.behaviours["agent_a"] = lambda row: (500, "x") if row["q"] == 3 else {**row, "reward": 0.5}
    command = "gym eval run --no-serve -i in.jsonl -o r.jsonl --disable-aggregation --concurrency 1"
    assert gym(command)[0] == 1
    code, out, _ = gym("gym eval status r.jsonl --check")
    assert code == 3
    assert out.splitlines()[1].split()[:6] == ["r.jsonl", "incomplete", "3/4", "(75%)", "0", "1"]
    assert "failed by kind: agent_run_error 1" in out
    servers.behaviours["agent_a"] = lambda row: {**row, "reward": 0.5}
    assert gym(f"{command} --resume")[0] == 0
    code, out, _ = gym("gym eval status r_batch_status.json --json --check")
    [status] = json.loads(out)
    assert (code, status["state"], status["stale"], status["derived"]) == (0, "completed", False, False)
    assert (status["counts"]["succeeded"], status["counts"]["restored"]) == (4, 3)
    assert status["reward"] == {"count": 4, "sum": 2.0}

    release = asyncio.Event()

    async def hold(row):
        if row["q"] == 3:
            await release.wait()
        return {**row, "reward": 0.5}

    servers.behaviours["agent_a"] = hold
    running = start(command.replace("r.jsonl", "watched.jsonl"))
    wait_until(lambda: len(servers.received) >= 4 and servers.in_flight == 1)
    watching = start("gym eval status watched.jsonl --watch 0.2 --json")
    assert json.loads(watching.stdout.readline())[0]["state"] == "running"
    servers._loop.call_soon_threadsafe(release.set)
    lines, _ = watching.communicate(timeout=120)
    assert json.loads(lines.splitlines()[-1])[0]["state"] == "completed"
    assert watching.returncode == 0
    running.communicate(timeout=120)


def results_in_memory():
    """How many replies exist as objects, wherever they are kept."""
    return sum(1 for each in gc.get_objects() if type(each) is dict and "reply" in each)


async def test_15_ten_thousand_rows_with_64_resident_start_in_order_and_no_result_stays(servers, head, monkeypatch):
    started = []

    class Noting(RunClient):
        async def post_run(self, url, body):
            started.append(body["q"])
            return await super().post_run(url, body)

    monkeypatch.setattr("nemo_gym.rollouts.examples.RunClient", Noting)
    rows = [
        {"agent_ref": {"name": "agent_a"}, "_ng_task_index": task, "_ng_rollout_index": 0, "q": task}
        for task in range(10_000)
    ]
    servers.behaviours["agent_a"] = lambda row: {"reward": 1.0, "reply": [row["q"]]}
    completions = RolloutCollectionHelper().run_examples(rows, head, max_resident_tasks=64)
    most_tasks = most_results = taken = 0
    async for _, result in completions:
        assert not isinstance(result, RolloutFailureRecord)
        taken += 1
        if taken % 50 == 0:
            row_tasks = [task for task in asyncio.all_tasks() if task.get_coro().__qualname__ == "Dispatch._one"]
            most_tasks = max(most_tasks, len(row_tasks))
        if taken % 1000 == 0:
            most_results = max(most_results, results_in_memory())
    assert taken == 10_000
    assert completions._dispatch.most_resident <= 64
    assert 0 < most_tasks <= 64
    assert started == list(range(10_000)), "the order of starts is the input's"
    assert sorted(row["q"] for row in servers.received) == started
    # Here and at the stub server, which lives in this process, each of 64 at the most.
    assert 0 < most_results <= 3 * 64, "memory depends on what runs, not on what has run"

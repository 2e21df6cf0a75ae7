"""How runs end that do not simply finish: dead agents, dead servers, interrupts, closed terminals, no rewards."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import socket

import pytest

from nemo_gym.cli import main
from nemo_gym.cli.resume_command import resume_command, resume_text
from nemo_gym.errors import RunFailedError
from nemo_gym.records.status import RunStatus, encode_status
from nemo_gym.rollouts.batch_status import RunStatusTracker
from nemo_gym.rollouts.budget import DispatchLatencyTracker
from nemo_gym.rollouts.collect import collect_run
from nemo_gym.rollouts.progress import LoggingObserver, Pace, TerminalProgress, progress_line
from nemo_gym.rollouts.record import RunRecorder
from nemo_gym.rollouts.resume import plan_resume
from nemo_gym.rollouts.run_progress import read_progress
from nemo_gym.rollouts.settings import RolloutCollectionConfig
from nemo_gym.rollouts.summary import metric_lines, reward_lines, summary_lines
from nemo_gym.store import RunFiles
from nemo_gym.store.key_set import RolloutKeySet
from nemo_gym.store.loop_sync import LoopSync

COUNT = 12


async def test_closing_a_recording_waits_on_a_thread_for_a_sync_that_was_given_up(tmp_path, monkeypatch):
    """The kernel is let go of only when the files are durable: it makes whoever does wait for what it still syncs."""
    files = RunFiles(tmp_path / "r.jsonl")
    tracker = RunStatusTracker(files.status, run_id="r", output="r.jsonl")
    tracker.expect("a")
    tracker.started()
    recorder = RunRecorder(files, run_id="r", tracker=tracker, done=RolloutKeySet(), max_attempts=1, truncate=True)
    unsynced, close = [], LoopSync.close

    def closed(syncs):
        unsynced.append(recorder._results.unsynced)
        close(syncs)

    monkeypatch.setattr(LoopSync, "close", closed)
    recorder.success({"_ng_task_index": 0, "_ng_rollout_index": 0}, label="a")
    syncing = asyncio.ensure_future(recorder.durable())
    await asyncio.sleep(0)
    syncing.cancel()
    await recorder.aclose()
    assert syncing.cancelled()
    assert unsynced == [0]


@pytest.fixture
def collect(servers, tmp_path):
    path = tmp_path / "in.jsonl"
    row = {"responses_create_params": {"input": "x"}, "agent_ref": {"name": "agent_a"}}
    path.write_text("".join(json.dumps({**row, "q": n}) + "\n" for n in range(COUNT)))

    async def run(*, why_cancelled=None, observer=None, **settings):
        settings = {
            "num_samples_in_parallel": 2,
            "route_failures_to_sidecar": True,
            "connection_retries": 0,
            **settings,
        }
        config = RolloutCollectionConfig(
            input_jsonl_fpath=str(path), output_jsonl_fpath=str(tmp_path / "r.jsonl"), disable_health_check=True,
            **settings,
        )  # fmt: skip
        return await collect_run(
            config, own_config=servers.own_config, why_cancelled=why_cancelled, observer=observer or LoggingObserver()
        )

    run.files = RunFiles(tmp_path / "r.jsonl")
    return run


def saved(files):
    return json.loads(files.status.read_text())


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_a_dead_agent_ends_the_run_and_costs_five_rollouts_a_try(servers, collect, read_rows):
    alive, servers.ports["agent_a"] = servers.ports["agent_a"], closed_port()
    dead = f"http://127.0.0.1:{servers.ports['agent_a']}/run"
    with pytest.raises(RunFailedError, match=rf"`agent_a` at `{dead}` cannot be reached: 5 rollouts"):
        await collect()
    status = saved(collect.files)
    assert status["state"] == "failed"
    assert dead in status["reason"]
    counts = status["counts"]
    assert counts["failed_final"] == counts["omitted"] == counts["in_flight"] == 0
    assert counts["failed"] + counts["pending"] == COUNT
    assert 5 <= len(read_rows(collect.files.failures)) <= 6, "two are in flight at a time"
    servers.ports["agent_a"] = alive
    summary = await collect(resume_from_cache=True)
    assert summary.status.counts.succeeded == COUNT


async def test_an_agent_that_answers_in_between_is_not_dead(servers, collect):
    servers.behaviours["agent_a"] = lambda row: (500, "x")
    with pytest.raises(RunFailedError, match="none of"):
        await collect()
    assert saved(collect.files)["counts"]["failed"] == COUNT


def test_every_failed_try_counts_whether_it_was_sent_or_not():
    row = {"_ng_task_index": 0, "_ng_rollout_index": 0, "_ng_failure_class": "agent_request_failed"}
    unsent = {**row, "_ng_rollout_failure": {"delivery": "not_sent"}}
    omitted = {**row, "_ng_omitted_rollout": True}
    assert plan_resume([], [unsent, omitted, row], max_attempts=3).exhausted == set()
    plan = plan_resume([], [unsent, omitted, row], max_attempts=2)
    assert (plan.attempts, plan.exhausted) == ({(0, 0): 2}, {(0, 0)})


@pytest.mark.parametrize(("reason", "state"), [(None, "interrupted"), ("server `m` died", "failed")])
@pytest.mark.parametrize("omitted", [False, True])
async def test_an_ended_run_counts_what_was_not_run_as_pending_and_says_why(servers, collect, reason, state, omitted):
    async def behave(row):
        if row["q"] >= 2:
            await asyncio.Event().wait()
        return {**row, "reward": 1.0}

    servers.behaviours["agent_a"] = behave
    running = asyncio.ensure_future(collect(why_cancelled=lambda: reason, record_omitted_rollouts=omitted))
    async with asyncio.timeout(60):
        while servers.in_flight < 2 or len(servers.received) < 4:
            await asyncio.sleep(0.005)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    status = saved(collect.files)
    assert status["state"] == state
    assert reason is None or reason in status["reason"]
    counts = status["counts"]
    assert (counts["succeeded"], counts["in_flight"], counts["failed"]) == (2, 0, 0)
    assert (counts["pending"], counts["omitted"]) == ((0, COUNT - 2) if omitted else (COUNT - 2, 0))


def test_cancelled_rollouts_are_not_done():
    status = RunStatus(run_id="r", output="o", started_at=0, updated_at=0)
    status.counts.expected, status.counts.succeeded, status.counts.omitted = 10, 2, 8
    assert progress_line(status, Pace(status)).startswith("2/10 rollouts (20%)")


class ClosedTerminal(io.StringIO):
    def __init__(self, *, tty, error):
        super().__init__()
        self.tty, self.error, self.writes = tty, error, 0

    def isatty(self):
        return self.tty

    def write(self, text):
        self.writes += 1
        raise self.error


@pytest.mark.parametrize("error", [OSError(errno.EIO, "gone"), ValueError("closed file"), BrokenPipeError()])
@pytest.mark.parametrize("tty", [False, True])
async def test_a_terminal_that_is_closed_ends_no_run(servers, collect, monkeypatch, tty, error):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal = ClosedTerminal(tty=tty, error=error)
    summary = await collect(observer=TerminalProgress(terminal, line_interval_s=0.0))
    assert summary.status.state == "completed"


def test_saving_is_paced_by_a_clock_that_nobody_sets(tmp_path):
    wall, steady = [1000.0], [0.0]
    tracker = RunStatusTracker(
        tmp_path / "s.json", run_id="r", output="o", clock=lambda: wall[0], monotonic=lambda: steady[0]
    )
    tracker.expect("a", 1)
    tracker.save()
    tracker.started()
    wall[0], steady[0] = 10.0, 2.0  # the wall clock was set back
    tracker.save_if_due()
    assert json.loads((tmp_path / "s.json").read_text())["counts"]["in_flight"] == 1


@pytest.mark.parametrize("reward", [b"", b', "reward": null', b', "reward": "high"', b', "reward": 1e999'])
async def test_results_without_a_reward_are_said(servers, collect, reward):
    servers.behaviours["agent_a"] = lambda row: b'{"x": 1' + reward + b"}"
    summary = await collect()
    assert summary.status.reward.count == 0
    assert f"none of {COUNT} results has a reward" in "\n".join(summary_lines(summary))


async def test_metrics_say_what_ran_under_a_name_that_tells_of_something_else(servers, collect):
    assert "agent_a (simple_agent): mean/reward" in "\n".join(summary_lines(await collect()))
    entry = {"agent_ref": {"name": "ledger_simple_agent"}, "key_metrics": {"mean/reward": 1.0}}
    for runs, shown in (("simple_agent", ""), ("command_agent", " (command_agent)")):
        lines = metric_lines([entry], {"ledger_simple_agent": runs})
        assert lines == [f"ledger_simple_agent{shown}: mean/reward 1"]


def test_only_some_without_a_reward_are_counted():
    status = RunStatus(run_id="r", output="o", started_at=0, updated_at=0)
    status.counts.succeeded, status.counts.masked, status.reward.count = 10, 2, 5
    assert "3 of 8 results" in reward_lines(status)[0]
    status.reward.count = 8
    assert reward_lines(status) == []


async def test_a_summary_says_what_has_no_result_and_which_rollouts_took_so_long(servers, collect):
    servers.behaviours["agent_a"] = lambda row: (500, "x") if row["q"] < 4 else {**row, "reward": 1.0}
    lines = summary_lines(await collect())
    assert f"expected {COUNT} = {COUNT - 4} scored + 4 failed + 0 omitted + 0 missing" in lines
    assert f"without a result: 4 of {COUNT}: agent_run_error 4; see {collect.files.failures}" in lines
    [times] = [line for line in lines if "rollout time median" in line]
    assert times.startswith("rollout time")
    servers.behaviours["agent_a"] = lambda row: {**row, "reward": 1.0}
    lines = summary_lines(await collect(resume_from_cache=True))
    assert lines[0].startswith(f"{COUNT} of {COUNT} rollouts succeeded")
    [times] = [line for line in lines if "rollout time median" in line]
    assert times.startswith("of the 4 rollouts run after the resume: rollout time median")
    lines = summary_lines(await collect(resume_from_cache=True))
    assert not [line for line in lines if "rollout time" in line], "none was run"


def test_the_sum_of_durations_says_that_it_is_one():
    latencies = DispatchLatencyTracker()
    latencies.record(2.0)
    assert "2 s summed over rollouts" in latencies.summary()


async def test_an_unknown_health_check_is_refused_before_the_run(servers, collect):
    with pytest.raises(ValueError, match=r"no health check `rollout_missing_agent_turn`.*Did you mean"):
        await collect(health_check_ignored_checks=["rollout_missing_agent_turn"])
    assert servers.received == []
    assert not collect.files.materialized.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--model-api-key", "s3cret"], ["--model-api-key=s3cret"], ["+policy_api_key=s3cret"],
        ["++policy_api_key=s3cret"],
        ["policy_api_key=s3cret"], ["+policy_model.responses_api_models.openai_model.openai_api_key=s3cret"],
        ["+policy_model={openai_api_key: s3cret, n: 1}"], ["--model-url", "http://me:s3cret@host/v1"],
    ],
)  # fmt: skip
def test_the_command_that_goes_on_shows_no_secret(words):
    text = resume_command(["/bin/gym", "eval", "run", *words, "-o", "r.jsonl", "--max-output-tokens", "5"])
    assert "s3cret" not in text
    assert "****" in text
    assert text.endswith("-o r.jsonl --max-output-tokens 5 --resume")


@pytest.mark.parametrize(
    ("words", "named", "key"),
    [
        (["--model-api-key", "s3cret"], "--model-api-key", "policy_api_key"),
        (["--model-api-key=s3cret"], "--model-api-key", "policy_api_key"),
        (["++policy_api_key=s3cret"], "policy_api_key", "policy_api_key"),
        (["+policy_model={openai_api_key: s3cret, n: 1}"], "policy_model", "policy_model"),
        (["--no-serve", "+policy_base_url=http://me:s3cret@host/v1"], "policy_base_url", "policy_base_url"),
        (["--model-url", "http://me:s3cret@host/v1?a=b"], "--model-url", "policy_base_url"),
    ],
)
def test_what_the_command_that_goes_on_hides_is_named(words, named, key):
    shown, note = resume_text(["/bin/gym", "eval", "run", *words, "-o", "r.jsonl"]).splitlines()
    assert "****" in shown
    assert f"the value of `{named}`: put it back" in note
    assert f"set `{key}` in env.yaml" in note


def test_a_command_without_secrets_has_no_note():
    assert resume_text(["gym", "eval", "run", "-o", "r.jsonl", "--max-output-tokens", "5"]).count("\n") == 0


@pytest.mark.parametrize("place", ["", "tasks.jsonl"])
def test_a_file_of_json_lines_is_no_run(tmp_path, capsys, place):
    (tmp_path / "tasks.jsonl").write_text('{"q": 1}\n')
    assert main.run(["eval", "status", str(tmp_path / place)]) == 2
    out, err = capsys.readouterr()
    assert (out, "no run found" in err) == ("", True)
    (tmp_path / "rollouts-a.jsonl").write_text("")
    (tmp_path / "tasks_batch_status.json").write_bytes(
        encode_status(RunStatus(run_id="r", output="tasks.jsonl", started_at=0, updated_at=0))
    )
    assert main.run(["eval", "status", str(tmp_path), "--json"]) == 0
    named = {run["output"] for run in json.loads(capsys.readouterr().out)}
    assert named == {"rollouts-a.jsonl", "tasks.jsonl"}


async def test_the_status_of_a_dead_run_is_what_its_files_hold(servers, collect):
    servers.behaviours["agent_a"] = lambda row: (500, "x") if row["q"] == 0 else {**row, "reward": 0.5}
    await collect()
    files = collect.files
    old = RunStatus(run_id="r", output="r.jsonl", started_at=1, updated_at=2, state="running", host="elsewhere", pid=1)
    old.counts.expected = old.counts.pending = COUNT
    files.status.write_bytes(encode_status(old))
    [progress] = read_progress(files.rollouts)
    counts = progress.status.counts
    assert (progress.stale, progress.status.state, progress.status.run_id) == (True, "running", "r")
    assert (counts.succeeded, counts.failed, counts.pending, counts.in_flight) == (COUNT - 1, 1, 0, 0)
    assert progress.status.reward.sum == 0.5 * (COUNT - 1)


FAILED = {"_ng_failure_class": "agent_run_error", "failure_reason": "it broke"}
LONG = "1 validation error for Verdict\nreward\n  " + "much is said of it, " * 20 + "(at `/env/app.py:7`)"


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        ({**FAILED, "failure_kind": "provider_unavailable"}, "provider_unavailable", "it broke"),
        (FAILED, "agent_run_error", "it broke"),
        ({**FAILED, "_ng_failure_message": LONG}, "agent_run_error", "(at `/env/app.py:7`)"),
        (
            (500, json.dumps({"detail": LONG, "ng_failed_rollout": {"failure_kind": "verifier_error"}})),
            "verifier_error",
            "(at `/env/app.py:7`)",
        ),
    ],
    ids=["kind", "class alone", "long", "handed over"],
)
async def test_the_line_about_a_failure_has_the_kind_that_is_counted_and_its_end(
    servers, collect, caplog, reply, kind, said
):
    servers.behaviours["agent_a"] = lambda row: reply if isinstance(reply, tuple) else {**row, **reply}
    with pytest.raises(RunFailedError, match=rf"\({kind} \d+\)"):
        await collect()
    lines = [record.getMessage() for record in caplog.records if record.name == "nemo_gym.rollouts.execute"]
    assert len(lines) == COUNT
    for line in lines:
        assert f" failed: {kind}: " in line
        assert line.endswith(said)
        assert "\n" not in line
        assert len(line) < 500

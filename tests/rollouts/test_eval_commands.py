"""The `gym eval` commands as processes: exit codes, interruption, saved progress."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from nemo_gym.cli import main
from nemo_gym.errors import ConfigFileNotFoundError
from nemo_gym.records.rows import rollout_key
from nemo_gym.records.status import RunStatus, encode_status
from nemo_gym.rollouts import RolloutCollectionHelper, read_run_status
from nemo_gym.rollouts.run_progress import STALE_AFTER_S, read_progress
from nemo_gym.store import RunFiles


@pytest.fixture
def gym(tmp_path, servers):
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("NEMO_GYM_")},
        "NO_COLOR": "1", "COLUMNS": "200", "XDG_STATE_HOME": str(tmp_path / "state"),
    }  # fmt: skip

    def start(*arguments, within=()):
        return subprocess.Popen(
            [*within, sys.executable, "-m", "nemo_gym.cli.main", *arguments],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(*arguments):
        process = start(*arguments)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    run.start = start
    run.head = f"++head_server.port={servers.head_port}"
    return run


@pytest.fixture
def rows_file(tmp_path):
    rows = [{"responses_create_params": {"input": "x"}, "agent_ref": {"name": "agent_a"}, "q": n} for n in range(6)]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def wait_until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the wait took too long"
        time.sleep(0.01)


def test_a_run_prints_its_summary_to_stdout_and_everything_else_to_stderr(servers, gym, rows_file, tmp_path):
    code, out, err = gym("eval", "run", "--no-serve", "-i", "in.jsonl", "-o", "out/r.jsonl", gym.head)
    assert code == 0, err
    assert out.startswith("6 of 6 rollouts succeeded, mean reward 1 over 6\n")
    assert "rollouts: out/r.jsonl" in out
    code, out, _ = gym(
        "eval", "run", "--no-serve", "-i", "in.jsonl", "-o", "out/r.jsonl", gym.head, "--resume", "--json"
    )
    assert json.loads(out)["state"] == "completed"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["out"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-i", "in.jsonl"], 2, "--output"),
        (["-i", "none.jsonl", "-o", "r.jsonl"], 2, "none.jsonl"),
        (["-i", "in.jsonl", "-o", "r.jsonl", "+num_repeat=2"], 2, "Did you mean `num_repeats`"),
        (["-i", "in.jsonl", "-o", "r.jsonl", "-a", "agent_aa"], 2, "Did you mean `agent_a`"),
        (["-i", "in.jsonl", "-o", "r.jsonl", "--concurrency", "0"], 2, "num_samples_in_parallel"),
        (["-i", "bad.jsonl", "-o", "r.jsonl"], 2, "bad.jsonl` line 2 (byte 3)"),
        (["-i", "array.json", "-o", "r.jsonl"], 2, "Each line must hold one row as one JSON object."),
        (["-i", "in.jsonl", "-o", "r.jsonl", "++head_server.port=9"], 1, "no head server answers"),
        (["-i", "in.jsonl", "-o", "r.jsonl", "--agent-type", "x"], 2, "--agent"),
        (["-i", "in.jsonl", "-o", "r.jsonl", "--split", "train"], 2, "`--split` chooses among declared datasets"),
        (["-i", "in.jsonl", "-o", "r.jsonl", "+split=train"], 2, "`--split` chooses among declared datasets"),
        (["-i", "in.jsonl", "-o", ""], 2, "needs a name"),
        (["-i", "in.jsonl", "-o", "."], 2, "is a folder"),
        (["-i", "in.jsonl", "-o", "device"], 2, "no regular file"),
        (["-i", "in.jsonl", "-o", "bad.jsonl"], 2, "is no earlier run"),
        (["-i", "in.jsonl", "-o", "in.jsonl"], 2, "is the input"),
        (["-i", "in.jsonl", "-o", "in.jsonl/r.jsonl"], 2, "`in.jsonl` is a file, and a folder is needed there"),
        (["-i", "in.jsonl", "-o", "in.jsonl/a/r.jsonl"], 2, "`in.jsonl` is a file, and a folder is needed there"),
        (["-i", "in.jsonl", "-o", "r.jsonl", "--concurrency", "0"], 2, "(`--concurrency`)"),
        (["-i", "in.jsonl", "-o", "x" * 300], 2, "too long"),
        (["-i", "in.jsonl", "-o", "r.jsonl", "--health-check-ignore", "no_such_check"], 2, "no health check"),
        (["-i", "in.jsonl", "-o", "r.jsonl", "+capture_quiescence_timeout_s=5"], 2, "capture_quiescence_timeout_s"),
        (["-i", "empty.jsonl", "-o", "r.jsonl"], 2, "one JSON object per line"),
    ],
)
def test_mistakes_are_one_line_and_have_their_exit_code(
    servers, gym, rows_file, tmp_path, monkeypatch, capsys, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text("{}\noops\n")
    (tmp_path / "device").symlink_to("/dev/null")  # so that root loses a link at most
    (tmp_path / "empty.jsonl").write_text("\n \n")
    (tmp_path / "array.json").write_text("[\n{}\n]\n")
    given = arguments if any("head_server" in word for word in arguments) else [*arguments, gym.head]
    got = main.run(["eval", "run", "--no-serve", *given])
    out, err = capsys.readouterr()
    assert (got, out) == (code, ""), err
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_needs_no_standard_file(gym, rows_file, read_rows, tmp_path, closed):
    """A service manager may close them; a socket or a file of the run must not get their numbers."""
    words = ["eval", "run", "--no-serve", "-i", "in.jsonl", "-o", "r.jsonl", gym.head]
    process = gym.start(*words, within=["sh", "-c", f'exec "$@" {closed}', "sh"])
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert ("6 of 6 rollouts" in out) is (">&-" not in closed.split())
    assert "Traceback" not in err
    assert len(read_rows(tmp_path / "r.jsonl")) == 6


async def hang_from_two(row):
    if row["q"] >= 2:
        await asyncio.Event().wait()
    return {**row, "reward": 1.0}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("omitted", [True, False])
def test_a_signal_saves_cancels_and_says_how_to_go_on(
    servers, gym, rows_file, read_rows, tmp_path, number, code, omitted
):
    servers.behaviours["agent_a"] = hang_from_two
    files = RunFiles(tmp_path / "r.jsonl")
    words = ["eval", "run", "--no-serve", "-i", "in.jsonl", "-o", "r.jsonl", "--concurrency", "3", gym.head]
    process = gym.start(*words, f"+record_omitted_rollouts={str(omitted).lower()}")
    wait_until(lambda: servers.in_flight == 3 and len(read_rows(files.rollouts)) == 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert out == ""
    assert "gym eval run --no-serve" in err
    assert "--resume" in err
    assert "Traceback" not in err
    wait_until(lambda: len(servers.cancelled) == 3)
    assert json.loads(files.status.read_text())["state"] == "interrupted"
    assert len(read_rows(files.rollouts)) == 2
    assert len(read_rows(files.failures)) == (4 if omitted else 0)
    assert not files.aggregate_metrics.exists()
    servers.behaviours["agent_a"] = lambda row: {**row, "reward": 1.0}
    servers.received.clear()
    assert gym(*words, "--resume")[0] == 0
    assert sorted(row["q"] for row in servers.received) == [2, 3, 4, 5]
    assert all("_ng_attempt_index" not in row for row in servers.received)


@pytest.mark.parametrize(("within", "code"), [([], 129), (["nohup"], 143)])
def test_a_terminal_that_closes_ends_a_run_unless_nohup_started_it(
    servers, gym, rows_file, read_rows, tmp_path, within, code
):
    servers.behaviours["agent_a"] = hang_from_two
    words = ["eval", "run", "--no-serve", "-i", "in.jsonl", "-o", "r.jsonl", "--concurrency", "3", gym.head]
    process = gym.start(*words, within=within)
    wait_until(lambda: servers.in_flight == 3 and len(read_rows(tmp_path / "r.jsonl")) == 2)
    process.send_signal(signal.SIGHUP)
    if within:
        process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code, err


def test_status_of_a_running_an_interrupted_a_stale_and_a_missing_run(servers, gym, rows_file, tmp_path, read_rows):
    servers.behaviours["agent_a"] = hang_from_two
    (tmp_path / "out").mkdir()
    files = RunFiles(tmp_path / "out" / "rollouts.jsonl")
    words = ["-i", "in.jsonl", "-o", "out/rollouts.jsonl", "--concurrency", "3"]
    process = gym.start("eval", "run", "--no-serve", *words, gym.head)
    wait_until(lambda: servers.in_flight == 3 and len(read_rows(files.rollouts)) == 2)
    code, out, _ = gym("eval", "status", "out", "--json", "--check")
    [status] = json.loads(out)
    assert (code, status["state"], status["stale"], status["counts"]["expected"]) == (3, "running", False, 6)
    process.kill()
    process.communicate(timeout=120)
    [status] = json.loads(gym("eval", "status", "out/rollouts.jsonl", "--json")[1])
    assert (status["state"], status["stale"]) == ("running", True)
    code, out, _ = gym("eval", "status", "out")
    assert "running (stale)  " in out
    assert "\nstale: it says that it is running, but its process is gone" in out
    assert "derived" not in out
    code, _, err = gym("eval", "status", "nowhere")
    assert code == 2
    assert "nowhere" in err
    files.status.unlink()
    [status] = json.loads(gym("eval", "status", "+output_jsonl_fpath=out/rollouts.jsonl", "--json")[1])
    assert (status["derived"], status["counts"]["succeeded"], status["counts"]["pending"]) == (True, 2, 4)
    _, out, _ = gym("eval", "status", "out")
    assert "incomplete (derived)" in out
    assert "\nderived: no progress was saved; its files were counted" in out


def test_status_of_a_folder_has_a_line_for_each_shard_and_a_total(gym, tmp_path):
    for number, label in enumerate(("a", "b")):
        status = RunStatus(run_id="r", output=f"rollouts-{label}.jsonl", shard=label, started_at=1, updated_at=2)
        status.state, status.counts.expected, status.counts.succeeded = "completed", 2, 1 + number
        status.host, status.reward.count, status.reward.sum = "elsewhere", 1 + number, 1.0
        (tmp_path / f"rollouts-{label}_batch_status.json").write_bytes(encode_status(status))
    code, out, _ = gym("eval", "status", str(tmp_path), "--check")
    assert code == 3
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["RUN", "a", "b", "total"]
    assert "3/4 (75%)" in lines[3]
    assert "0.6667" in lines[3]


@pytest.mark.parametrize(
    ("words", "seconds"),
    [(["--watch"], 2.0), (["--watch", "0.5"], 0.5), (["--watch=7"], 7.0), (["--watch", "--check"], 2.0)],
)
@pytest.mark.parametrize("first", [True, False])
def test_watching_takes_its_seconds_or_goes_without(tmp_path, monkeypatch, capsys, words, seconds, first):
    """Wherever the option stands; it shows the run again until the run has ended."""
    path = tmp_path / "rollouts_batch_status.json"
    status = RunStatus(run_id="r", output="rollouts.jsonl", started_at=1, updated_at=time.time(), pid=os.getpid())
    status.host, status.state = socket.gethostname(), "preparing"
    path.write_bytes(encode_status(status))
    slept = []

    def sleep(duration):
        slept.append(duration)
        status.state = ("running", "completed")[len(slept) - 1]
        path.write_bytes(encode_status(status))

    monkeypatch.setattr("nemo_gym.cli.eval_status.time.sleep", sleep)
    code = main.run(["eval", "status", *([*words, str(path)] if first else [str(path), *words]), "--json"])
    states = [json.loads(line)[0]["state"] for line in capsys.readouterr().out.splitlines()]
    assert states == ["preparing", "running", "completed"]
    assert slept == [seconds, seconds]
    assert code == (3 if "--check" in words else 0), "a run that expects nothing is not complete"


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e9"])
def test_a_number_that_nobody_can_wait_for_is_a_mistake(tmp_path, capsys, seconds):
    assert main.run(["eval", "status", str(tmp_path), "--watch", seconds]) == 2
    assert "it takes seconds" in capsys.readouterr().err


def test_a_run_that_has_stopped_saving_is_stale_whatever_has_its_process_id_now(tmp_path):
    status = RunStatus(run_id="r", output="rollouts.jsonl", started_at=1, updated_at=1000.0, state="running")
    status.host, status.pid = socket.gethostname(), os.getpid()
    path = tmp_path / "rollouts_batch_status.json"
    path.write_bytes(encode_status(status))
    assert not read_progress(path, now=1000.0 + STALE_AFTER_S)[0].stale
    assert read_progress(path, now=1001.0 + STALE_AFTER_S)[0].stale
    assert not read_progress(path, now=10.0)[0].stale, "a clock that was set back says nothing"


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the state of a process")
def test_a_run_whose_process_has_ended_and_is_not_reaped_is_stale_at_once(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    status = RunStatus(run_id="r", output="rollouts.jsonl", started_at=1, updated_at=1000.0, state="running")
    status.host, status.pid = socket.gethostname(), process.pid
    path = tmp_path / "rollouts_batch_status.json"
    path.write_bytes(encode_status(status))
    assert read_progress(path, now=1000.0)[0].stale
    process.wait()


def test_an_interrupt_before_anything_was_sent_says_so(gym, rows_file, tmp_path):
    """A head server that never answers; beside it lies another run, which `--resume` would continue."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        words = ["-i", "in.jsonl", "-o", "r.jsonl", f"++head_server.port={silent.getsockname()[1]}"]
        other = RunStatus(run_id="other", output="r.jsonl", started_at=1, updated_at=2, state="completed", pid=1)
        (tmp_path / "r_batch_status.json").write_bytes(encode_status(other))
        process = gym.start("eval", "run", "--no-serve", *words)
        silent.settimeout(30)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert "nothing was changed" in err
    assert "--resume" not in err
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["in.jsonl", "r_batch_status.json"]


def test_aggregate_works_as_the_specification_prints_it_A17(servers, gym, rows_file, tmp_path):
    gym("eval", "run", "--no-serve", "-i", "in.jsonl", "-o", "run/rollouts-a.jsonl", gym.head)
    code, out, err = gym("eval", "aggregate", "+input_glob=run/rollouts-*.jsonl", gym.head)
    assert code == 0, err
    assert "6 rollouts" in out
    assert gym("eval", "aggregate", "+input_glob=none/*.jsonl")[0] == 2


@pytest.mark.parametrize(
    "name",
    [
        "a.jsonl", "a_materialized_inputs.jsonl", "a_manifest.json", "a_batch_status.json", "a_aggregate_metrics.json",
        "a_coverage.json",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "words", [("dataset", "make", "ledger", "--size", "1", "-o"), ("eval", "health-check", "run", "--junit")]
)
def test_what_is_no_run_is_written_over_no_file_of_one(servers, gym, rows_file, tmp_path, words, name):
    gym("eval", "run", "--no-serve", "-i", "in.jsonl", "-o", "run/a.jsonl", gym.head)
    before = (tmp_path / "run" / name).read_bytes()
    code, _, err = gym(*words, f"run/{name}")
    assert code == 2, err
    assert f"`run/{name}` is a file of the run `run/a.jsonl`, and was not touched" in err
    assert (tmp_path / "run" / name).read_bytes() == before
    for _ in range(2):
        assert gym(*words, "run/other")[0] == 0


def test_a_folder_with_its_inputs_and_a_merged_file_is_one_run_to_every_command(
    servers, rows_file, monkeypatch, capsys
):
    monkeypatch.chdir(rows_file.parent)
    head = f"++head_server.port={servers.head_port}"
    assert main.run(["eval", "run", "--no-serve", "-i", "in.jsonl", "-o", "first.jsonl", head]) == 0
    assert main.run(["eval", "aggregate", "-i", "first.jsonl", head]) == 0
    capsys.readouterr()
    for words, said in (
        (["health-check", "."], "6 checked"),
        (["profile", "."], "6 of 6 rollouts"),
        (["status", "."], "6/6 (100%)"),
        (["aggregate", "-i", ".", "-o", "other.jsonl", head], "expected 6 = 6 scored"),
        (["health-check", "."], "6 checked"),
    ):
        assert main.run(["eval", *words]) == 0
        out = capsys.readouterr().out
        assert said in out
        assert "duplicate" not in out


def test_saved_progress_is_one_object_of_a_run_and_a_list_of_a_folder(servers, rows_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["-i", "in.jsonl", "-o", "run/r.jsonl", f"++head_server.port={servers.head_port}"]
    assert main.run(["eval", "run", "--no-serve", *words]) == 0
    one = read_run_status("run/r.jsonl")
    assert (one["state"], one["counts"]["succeeded"], one["stale"], one["derived"]) == ("completed", 6, False, False)
    assert read_run_status("run") == [one]
    assert read_run_status("run/r_batch_status.json") == one
    with pytest.raises(ConfigFileNotFoundError):
        read_run_status("nowhere")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--no-serve", "--model", "m", "--model-url", "http://h:1/v1"],
            "`--model`, `--model-url`",
        ),
        (["--no-serve", "--model-type", "scripted_model"], "`--model-type`"),
        (["--model", "m"], "`--model`"),
        (["--no-serve", "--temperature", "0.5"], None),
    ],
)
def test_flags_that_only_running_servers_decide_are_said(servers, rows_file, monkeypatch, capsys, words, said):
    monkeypatch.chdir(rows_file.parent)
    head = f"++head_server.port={servers.head_port}"
    assert main.run(["eval", "run", *words, "-i", "in.jsonl", "-o", "r.jsonl", head]) == 0
    error = capsys.readouterr().err
    assert ("nothing here heeds" in error) == (said is not None)
    assert said is None or f"Note: the servers run already, so nothing here heeds {said}." in error


def test_json_on_stdout_keeps_what_else_must_be_known_on_stderr(servers, rows_file, monkeypatch, capsys):
    monkeypatch.chdir(rows_file.parent)
    head = f"++head_server.port={servers.head_port}"
    servers.behaviours["agent_a"] = lambda row: {**row, "reward": None if row["q"] else 1.0}
    servers.metrics_status = 500
    words = ["-i", "in.jsonl", "-o", "run/rollouts-a.jsonl", head, "--json"]
    assert main.run(["eval", "run", "--no-serve", *words]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["counts"]["succeeded"] == 6
    assert "Warning: 5 of 6 results have no reward" in err
    assert "metrics of `agent_a` are computed here" in err
    assert main.run(["eval", "aggregate", "-i", "run/rollouts-*.jsonl,run/typo", head, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)[0]["key_metrics"]["mean/reward"] == 1.0
    assert "expected 6 = 6 scored + 0 failed + 0 omitted + 0 missing" in err
    assert "`run/typo` matches nothing" in err
    assert "metrics of `agent_a` are computed here" in err


def test_aggregate_asks_only_for_what_it_cannot_make_up(capsys):
    assert main.run(["eval", "aggregate"]) == 2
    err = capsys.readouterr().err
    assert "`--input-glob <value>`" in err
    assert "--output" not in err


def test_aggregate_takes_only_a_head_server_of_the_command_line_for_the_one_that_was_meant(
    servers, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    row = {"_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": "gone"}, "reward": 1.0}
    (tmp_path / "rollouts.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "env.yaml").write_text(f"head_server: {{port: {servers.head_port}}}\n")
    words = ["eval", "aggregate", "-i", "rollouts.jsonl", "--no-health-check"]
    assert main.run(words) == 0
    out = capsys.readouterr().out
    assert "gone: mean/reward 1" in out
    assert f"what runs at http://127.0.0.1:{servers.head_port} lacks it (it has `agent_a`)" in out
    for sign in ("", "+", "++"):
        assert main.run([*words, f"{sign}head_server.port={servers.head_port}"]) == 2
        assert "`gone`, which the running configuration lacks" in capsys.readouterr().err


def test_health_check_and_profile_of_a_run(servers, gym, rows_file):
    gym("eval", "run", "--no-serve", "-i", "in.jsonl", "-o", "run/rollouts.jsonl", gym.head)
    code, out, _ = gym("eval", "health-check", "run")
    assert code == 0
    assert "6 checked" in out
    code, out, _ = gym("eval", "health-check", "run", "--json")
    assert json.loads(out)["run"]["artifacts"]["records"] == 6
    assert gym("eval", "health-check", "nowhere")[0] == 2
    assert gym("eval", "health-check", "run", "--ignore", "no_such_check")[0] == 2
    assert gym("eval", "health-check", "run", "--fail-on", "unobserved")[0] == 4
    code, out, err = gym("eval", "profile", "--rollouts", "run/rollouts.jsonl")
    assert code == 0, err
    assert "6 of 6 rollouts, 6 tasks" in out


def test_profile_takes_a_file_or_a_folder_and_says_what_else_to_name(servers, gym, rows_file, monkeypatch, capsys):
    gym("eval", "run", "--no-serve", "-i", "in.jsonl", "-o", "run/r.jsonl", gym.head)
    monkeypatch.chdir(rows_file.parent)
    for words in (["run"], ["run/r.jsonl"], ["--rollouts", "run"], ["run", "++allow_partial_rollouts=true"]):
        assert main.run(["eval", "profile", *words]) == 0, words
        assert "6 of 6 rollouts, 6 tasks" in capsys.readouterr().out
    (rows_file.parent / "none").mkdir()
    shutil.copytree("run", "two")
    for ending in (".jsonl", "_materialized_inputs.jsonl"):
        shutil.copy(f"run/r{ending}", f"two/s{ending}")
    for words, message in (
        ([], "which run?"),
        (["none"], "`none` holds no rollouts file"),
        (["nowhere"], "no rollouts file or folder `nowhere`"),
        (["two"], "name one of them: `two/r.jsonl`, `two/s.jsonl`"),
        (["run", "two"], "one rollouts file"),
        (["run", "--rollouts", "two/r.jsonl"], "one rollouts file"),
    ):
        assert main.run(["eval", "profile", *words]) == 2, words
        assert message in capsys.readouterr().err


def test_profile_shows_the_tasks_with_the_lowest_rewards_first_and_how_many_more_there_are(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    rewards = {(task, rollout): [task / 24, (task + rollout) / 24][rollout] for task in range(24) for rollout in (0, 1)}
    inputs, results = [], []
    for (task, rollout), reward in rewards.items():
        row = {"_ng_task_index": 23 - task, "_ng_rollout_index": rollout, "agent_ref": {"name": f"agent_{task % 2}"}}
        inputs.append({**row, "responses_create_params": {"input": "x"}})
        results.append({**row, **({} if task == 0 else {"reward": reward})})
    for name, rows in (("r_materialized_inputs", inputs), ("r", results)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main.run(["eval", "profile", "r.jsonl"]) == 0
    first, head, *table = capsys.readouterr().out.splitlines()
    assert first == "48 of 48 rollouts, 24 tasks"
    assert head.split() == ["TASK", "AGENT", "ROLLOUTS", "MEAN", "REWARD", "MIN", "MAX"]
    assert table[0].split() == ["22", "agent_1", "2", "0.0625", "0.04167", "0.08333"]
    assert [int(line.split()[0]) for line in table[:20]] == list(range(22, 2, -1))
    assert table[20] == "4 tasks more, whose rewards are no lower"
    assert len(table) == 24
    # A task whose rewards are unknown is not the worst: it comes last.
    for name in ("r_materialized_inputs", "r"):
        lines = (tmp_path / f"{name}.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / f"{name}.jsonl").write_text("".join(lines[:4]))
    assert main.run(["eval", "profile", "r.jsonl"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[2:4]] == [
        ["22", "agent_1", "2", "0.0625", "0.04167", "0.08333"],
        ["23", "agent_0", "2"],
    ]


def test_profile_refuses_missing_rollouts_unless_they_are_allowed(servers, gym, rows_file, tmp_path):
    gym("eval", "run", "--no-serve", "-i", "in.jsonl", "-o", "run/r.jsonl", "--num-repeats", "2", gym.head)
    path = tmp_path / "run" / "r.jsonl"
    lines = sorted(path.read_bytes().splitlines(keepends=True), key=lambda line: rollout_key(json.loads(line)))
    path.write_bytes(b"".join(lines[:-1]))
    code, out, err = gym("eval", "profile", "--rollouts", "run/r.jsonl")
    assert (code, out) == (2, ""), err
    assert "`--allow-partial`" in err
    assert "Traceback" not in err
    for leave in ("++allow_partial_rollouts=True", "--allow-partial"):
        code, out, err = gym("eval", "profile", "--rollouts", "run/r.jsonl", leave)
        assert code == 0, err
        assert "11 of 12 rollouts, 6 tasks" in out
        assert [line.split() for line in out.splitlines()[6:8]] == [["4", "2", *"111"], ["5", "1", "of", "2", *"111"]]
    lines = (tmp_path / "run" / "r_reward_profiling.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["missing_num_rollouts"] for line in lines) == [0, 0, 0, 0, 0, 1]
    for name in ("r_agent_metrics.json", "r_repeat_level_metrics.json"):
        assert isinstance(json.loads((tmp_path / "run" / name).read_text()), list)


def test_a_shard_resumes_with_the_command_that_the_specification_prints_A18(
    servers, gym, make_rows, tmp_path, read_rows
):
    async def record():
        completions = RolloutCollectionHelper().run_examples(
            make_rows(3), SimpleNamespace(host="127.0.0.1", port=servers.head_port), route_failures_to_sidecar=True,
            record_output_dir=tmp_path / "runs" / "policy", record_shard="s",
        )  # fmt: skip
        async for _ in completions:
            pass

    servers.behaviours["agent_a"] = lambda row: (500, "x") if row["_ng_task_index"] else {**row, "reward": 1.0}
    asyncio.run(record())
    servers.behaviours["agent_a"] = lambda row: {**row, "reward": 1.0}
    servers.received.clear()
    code, _, err = gym(
        "eval", "run", "+input_jsonl_fpath=runs/policy/rollouts-s_materialized_inputs.jsonl",
        "+output_jsonl_fpath=runs/policy/rollouts-s.jsonl", "+resume_from_cache=true", gym.head,
    )  # fmt: skip
    assert code == 0, err
    assert sorted(row["_ng_task_index"] for row in servers.received) == [1, 2]
    assert len(read_rows(tmp_path / "runs" / "policy" / "rollouts-s.jsonl")) == 3


def test_serving_runs_the_example_rows_of_the_environment_and_resumes_on_other_ports(gym, tmp_path, read_rows):
    words = [
        "eval", "run", "--resources-server", "example_single_tool_call", "--model-type", "scripted_model",
        "-o", "out/first.jsonl", "+observability_enabled=true", f"+model_call_capture_dir={tmp_path / 'captures'}",
    ]  # fmt: skip
    code, out, err = gym(*words)
    assert code == 0, err
    assert "Running 5 rows of split `example` (no --input and no --split)" in err
    records = read_rows(tmp_path / "out" / "first.jsonl")
    assert len(records) == 5
    [metrics] = json.loads((tmp_path / "out" / "first_aggregate_metrics.json").read_text())
    agent = {"agent_ref": {"name": "example_single_tool_call_simple_agent"}}
    assert [group["sample"] for group in metrics["group_level_metrics"]] == [agent] * 5
    assert all(record["ng_perf"]["token_observability_coverage"] == 1.0 for record in records)
    assert "5 healthy" in out
    (tmp_path / "out" / "first.jsonl").write_bytes(b"")
    code, out, err = gym(*words, "--resume")
    assert code == 0, err
    assert len(read_rows(tmp_path / "out" / "first.jsonl")) == 5
    prepared = tmp_path / "out" / "first" / "preprocessed_datasets" / "example.jsonl"
    prepared.write_bytes(prepared.read_bytes() + b"\n")
    code, _, err = gym(*words, "--resume", "--num-repeats", "2", "+reuse_existing_data_preparation=true")
    assert "Using the rows prepared before" in err
    assert "the input file" in err, "it was not prepared again"
    code, _, err = gym(*words, "--resume", "--num-repeats", "2")
    assert code == 2
    assert "the input file" not in err
    assert "Changed: `num_repeats`" in err
    assert "Starting" not in err
    code, _, err = gym(*words, "--split", "train")
    assert code == 2
    assert "declared:" in err


@pytest.mark.parametrize("output", ["runs/.hidden", "plain"])
def test_an_output_of_any_name_takes_declared_rows_and_given_ones(gym, tmp_path, read_rows, output):
    words = [
        "eval", "run", "--resources-server", "example_single_tool_call", "--model-type", "scripted_model",
        "--limit", "1", "-o", output,
    ]  # fmt: skip
    for more in ([], ["--resume"]):
        code, _, err = gym(*words, *more)
        assert code == 0, err
    prepared = RunFiles(tmp_path / output).prepared_folder / "example.jsonl"
    assert len(read_rows(prepared)) == 5
    code, _, err = gym(*words, "-i", str(prepared))
    assert code == 0, err
    assert len(read_rows(tmp_path / output)) == 1


@pytest.mark.parametrize("output", ["runs/plain", "runs/first.jsonl"])
@pytest.mark.parametrize("words", [["+num_repeats={other: 2}"], ["+ng_no_key=1"], ["-i", "broken.jsonl"]])
def test_a_refused_command_leaves_nothing_behind(tmp_path, monkeypatch, capsys, output, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.jsonl").write_text("[1]\n")
    serving = ["--resources-server", "example_single_tool_call", "--model-type", "scripted_model"]
    assert main.run(["eval", "run", *serving, "-o", output, *words]) == 2
    assert "Starting" not in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["broken.jsonl"]


def test_a_dataset_that_is_not_there_leaves_nothing_behind(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    serving = ["--resources-server", "ledger", "--model-type", "scripted_model"]
    datasets = "[{name: x, type: example, jsonl_fpath: nowhere.jsonl}]"
    words = [f"++ledger.resources_servers.ledger.datasets={datasets}", "-o", "runs/first.jsonl"]
    assert main.run(["eval", "run", *serving, *words]) == 2
    assert "nowhere.jsonl" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_prepared_rows_is_left_alone(tmp_path):
    (tmp_path / "r").write_text("{}\n")
    assert RunFiles(tmp_path / "r.jsonl").prepared_folder == tmp_path / "r_preprocessed_datasets"

"""One run of 2,000 rollouts through everything that can hit it: kills, a dying agent, a full disk."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nemo_gym.records.failures import is_attempt
from nemo_gym.rollouts import RolloutStore, raw_outcomes_are_selected
from nemo_gym.rollouts.run_progress import read_progress
from nemo_gym.store import RunFiles, read_manifest

ROWS, REPEATS, IN_FLIGHT, KILLS = 1000, 2, 32, 20
HERE = Path(__file__).parent


def wait_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the wait took too long"
        time.sleep(0.002)


class AgentProcess:
    """The agent, which is killed and started again on the same port."""

    def __init__(self, log):
        self.log = log
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = None

    def start(self):
        words = [sys.executable, str(HERE / "agent.py"), str(self.port), str(self.log)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def received(self):
        """Return (rollout, attempt) of everything that ever arrived, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(rollout, int(attempt)) for rollout, attempt in map(str.split, lines)]


@pytest.fixture
def agent(tmp_path):
    process = AgentProcess(tmp_path / "received.log")
    process.start()
    yield process
    process.kill()


@pytest.fixture
def head(agent):
    block = {"host": "127.0.0.1", "port": agent.port, "entrypoint": "app.py"}
    config = json.dumps(json.dumps({"stub": {"responses_api_agents": {"stub_agent": block}}})).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(config)))
            self.end_headers()
            self.wfile.write(config)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


class Collectors:
    """`gym eval run` processes, one after the other, each with the whole run before it to continue."""

    def __init__(self, folder, head):
        self.files = RunFiles(folder / "out" / "rollouts.jsonl")
        self.log = folder / "collectors.log"
        self._words = [
            "eval", "run", "--no-serve", "-i", str(folder / "in.jsonl"), "-o", str(self.files.rollouts),
            "--concurrency", str(IN_FLIGHT), "--num-repeats", str(REPEATS), "--disable-aggregation", "--resume",
            f"++head_server.port={head}",
        ]  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NEMO_GYM_")}
        self._launcher = subprocess.Popen(
            [sys.executable, str(HERE / "launcher.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**environment, "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS": "20", "NO_COLOR": "1"},
        )  # fmt: skip

    def start(self, *, file_limit=None):
        request = {"words": self._words, "log": str(self.log), "file_limit": file_limit}
        self._launcher.stdin.write(json.dumps(request) + "\n")
        self._launcher.stdin.flush()
        return int(self._launcher.stdout.readline())

    def exit_code(self):
        """Return how the collector ended, once it has."""
        return int(self._launcher.stdout.readline())

    def close(self):
        self._launcher.stdin.close()
        self._launcher.wait(30)
        self._launcher.stdout.close()

    def done(self):
        """Return the rollouts whose result is a whole line, as a kill left the file."""
        found = set()
        lines = self.files.rollouts.read_bytes().split(b"\n") if self.files.rollouts.exists() else []
        for line in lines:
            with contextlib.suppress(ValueError):  # the last line may be cut
                row = json.loads(line)
                found.add(f"{row['_ng_task_index']}-{row['_ng_rollout_index']}")
        return found


@pytest.fixture
def collectors(tmp_path, head):
    rows = ({"responses_create_params": {"input": f"question {n}"}, "agent_ref": {"name": "stub"}} for n in range(ROWS))
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    started = Collectors(tmp_path, head)
    yield started
    started.close()


def test_two_thousand_rollouts_survive_kills_a_dying_agent_and_a_full_disk(agent, collectors):
    chance = random.Random(7)
    repeated = []

    def live(end):
        """Run one collector until `end(pid)`; remember what it sent although it was done."""
        done, before = collectors.done(), len(agent.received())
        pid = collectors.start()
        end(pid)
        code = collectors.exit_code()
        repeated.extend(rollout for rollout, _ in agent.received()[before:] if rollout in done)
        return code

    def killed_early(pid):
        time.sleep(chance.uniform(0.0, 0.3))
        os.kill(pid, signal.SIGKILL)

    def killed_at_work(pid):
        enough = len(agent.received()) + chance.randint(1, 120)
        wait_until(lambda: len(agent.received()) >= enough)
        time.sleep(chance.uniform(0.0, 0.03))
        os.kill(pid, signal.SIGKILL)

    def agent_killed_too(pid):
        enough = len(agent.received()) + chance.randint(40, 80)
        wait_until(lambda: len(agent.received()) >= enough)
        agent.kill()
        agent.start()
        killed_at_work(pid)

    for number in range(KILLS):
        end = agent_killed_too if number in (6, 13) else killed_early if number % 4 == 0 else killed_at_work
        assert live(end) == -signal.SIGKILL
        if number == 10:
            room = collectors.files.rollouts.stat().st_size + 20_000
            collectors.start(file_limit=room)
            assert collectors.exit_code() == 1
            assert "cannot be written: File too large" in collectors.log.read_text()
            assert read_progress(collectors.files.rollouts)[0].status.state == "failed"
            content = collectors.files.rollouts.read_bytes()
            assert content.endswith(b"\n")
            assert room - 1000 < len(content) <= room, "everything that had room is there"
    left = ROWS * REPEATS - len(collectors.done())
    assert left > 0, "the kills must hit a run that goes on"
    for _ in range(3):
        if live(lambda _: None) == 0:
            break
    assert repeated == [], "nothing that was durably done is dispatched again"
    assert_every_rollout_is_there_once(collectors.files)
    assert_attempts_are_accounted_for(collectors.files, agent.received())


def assert_every_rollout_is_there_once(files):
    keys = Counter()
    for line in files.rollouts.read_text().splitlines():
        row = json.loads(line)
        keys[row["_ng_task_index"], row["_ng_rollout_index"]] += 1
    assert keys == Counter((task, repeat) for task in range(ROWS) for repeat in range(REPEATS))
    assert raw_outcomes_are_selected(files.rollouts)
    with RolloutStore(files.rollouts, read_only=True) as store:
        assert list(store.missing()) == []
    [progress] = read_progress(files.rollouts)
    assert (progress.status.state, progress.stale) == ("completed", False)
    assert progress.status.counts.succeeded == progress.status.counts.expected == ROWS * REPEATS
    run_ids = {json.loads(line)["_ng_run_id"] for line in files.rollouts.read_text().splitlines()}
    assert run_ids == {read_manifest(files).run_id}, "all of it is one run"


def assert_attempts_are_accounted_for(files, received):
    failed = {}
    for line in files.failures.read_text().splitlines():
        row = json.loads(line)
        assert is_attempt(row)
        key = f"{row['_ng_task_index']}-{row['_ng_rollout_index']}"
        failed.setdefault(key, []).append(row.get("_ng_attempt_index", 0))
    assert failed, "the agent's death left failures"
    arrived = {}
    for key, attempt in received:
        arrived.setdefault(key, set()).add(attempt)
    for line in files.rollouts.read_text().splitlines():
        row = json.loads(line)
        key = f"{row['_ng_task_index']}-{row['_ng_rollout_index']}"
        attempts = failed.get(key, [])
        assert attempts == list(range(len(attempts))), "each failed try has its own number"
        assert row.get("_ng_attempt_index", 0) == len(attempts)
        assert [prior["attempt"] for prior in row.get("_ng_prior_failures", [])] == attempts
        assert len(attempts) in arrived[key]
        assert max(arrived[key]) == len(attempts), "no number was used before its time"
    executions = len(received)
    tries = ROWS * REPEATS + sum(len(attempts) for attempts in failed.values())
    assert executions <= tries + (KILLS + 1) * IN_FLIGHT, "only what was in flight at a kill ran again"

"""One run of 2,000 rollouts through everything that can hit it: kills, a dying agent, a full disk."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nemo_gym.records.failures import is_attempt
from nemo_gym.rollouts import RolloutStore, raw_outcomes_are_selected
from nemo_gym.rollouts.run_progress import read_progress
from nemo_gym.store import RunFiles, read_manifest

ROWS, REPEATS, IN_FLIGHT, KILLS = 1000, 2, 32, 20
AGENT_DIES_IN, DISK_FILLS_AFTER = (6, 13), 10
HERE = Path(__file__).parent


def wait_until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the wait took too long"
        time.sleep(0.002)


class AgentProcess:
    """The agent, which is killed and started again on the same port."""

    def __init__(self, folder):
        self.log, self._limit = folder / "received.log", folder / "limit"
        self.allow(0)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = None

    def start(self):
        words = [sys.executable, str(HERE / "agent.py"), str(self.port), str(self.log), str(self._limit)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def allow(self, rollouts):
        """Let so many of all the rollouts that ever arrive be worked on; later ones wait."""
        staged = self._limit.with_suffix(".new")
        staged.write_text(str(rollouts))
        staged.rename(self._limit)

    def settle(self):
        """Return when everything that was sent to the agent is in its log."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/settled", timeout=30) as answer:
            assert answer.status == 200

    def received(self):
        """Return (rollout, attempt) of everything that ever arrived, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(rollout, int(attempt)) for rollout, attempt in map(str.split, lines)]


@pytest.fixture
def agent(tmp_path):
    process = AgentProcess(tmp_path)
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


def small_disks_can_be_made():
    if shutil.which("unshare") is None:
        return False
    words = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


class Collectors:
    """`gym eval run` processes, one after the other, each with the whole run before it to continue.

    They write to a small disk of their own where one can be made; `files` are its files as they are seen from here.
    """

    def __init__(self, folder, head):
        out = folder / "out"
        out.mkdir()
        self.log = folder / "collectors.log"
        self.log.touch()
        self._words = [
            "eval", "run", "--no-serve", "-i", str(folder / "in.jsonl"), "-o", str(out / "rollouts.jsonl"),
            "--concurrency", str(IN_FLIGHT), "--num-repeats", str(REPEATS), "--disable-aggregation", "--resume",
            f"++head_server.port={head}",
        ]  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NEMO_GYM_")}
        self.has_disk = small_disks_can_be_made()
        command = [sys.executable, str(HERE / "launcher.py")]
        if self.has_disk:
            mounted = f'mount -t tmpfs -o size=16m tmpfs "{out}" && exec "$0" "$@"'
            command = ["unshare", "-rm", "sh", "-c", mounted, *command]
        self._launcher = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**environment, "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS": "20", "NO_COLOR": "1"},
        )  # fmt: skip
        assert self._launcher.stdout.readline() == "ready\n"
        seen = Path(f"/proc/{self._launcher.pid}/root{out}") if self.has_disk else out
        self.files = RunFiles(seen / "rollouts.jsonl")

    def start(self, *, file_limit=None):
        request = {"words": self._words, "log": str(self.log), "file_limit": file_limit}
        self._launcher.stdin.write(json.dumps(request) + "\n")
        self._launcher.stdin.flush()
        return int(self._launcher.stdout.readline())

    def exit_code(self):
        """Return how the collector ended, once it has."""
        return int(self._launcher.stdout.readline())

    def start_without_room(self):
        """Start one that has room for some 20 KB and no more; return how to give it more."""
        if not self.has_disk:
            self.start(file_limit=self.files.rollouts.stat().st_size + 20_000)
            return lambda: None
        ballast = self.files.folder / "ballast"
        room = os.statvfs(self.files.folder)
        ballast.write_bytes(b"x" * (room.f_bavail * room.f_bsize - 20_000))
        self.start()
        return ballast.unlink

    def close(self):
        self._launcher.stdin.close()
        self._launcher.wait(30)
        self._launcher.stdout.close()

    def rows(self, path):
        """Return the whole lines of a file as a kill left it: only its last line may be cut."""
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
        return [json.loads(line) for line in lines[:-1]]

    def done(self):
        """Return the rollouts whose result is a whole line."""
        return {rollout_of(row) for row in self.rows(self.files.rollouts)}

    def failed(self):
        """Return (rollout, attempt) of each failed try."""
        return [(rollout_of(row), row.get("_ng_attempt_index", 0)) for row in self.rows(self.files.failures)]


def rollout_of(row):
    return f"{row['_ng_task_index']}-{row['_ng_rollout_index']}"


@pytest.fixture
def collectors(tmp_path, head):
    rows = ({"responses_create_params": {"input": f"question {n}"}, "agent_ref": {"name": "stub"}} for n in range(ROWS))
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    started = Collectors(tmp_path, head)
    yield started
    started.close()


@dataclass
class Life:
    """What one collector did: `arrived` is what the agent saw of it, the rest what the files hold after its end."""

    code: int
    done_before: set
    arrived: list
    done: set
    failed: set
    ran_out: bool

    def check(self):
        sent = [rollout for rollout, _ in self.arrived]
        assert not set(sent) & self.done_before, "nothing that was durably done is dispatched again"
        assert max(Counter(self.arrived).values(), default=1) == 1, "no try is sent twice"
        assert self.done >= self.done_before, "nothing that was durably done is lost"
        cut_off = {(rollout, attempt) for rollout, attempt in self.arrived if rollout not in self.done} - self.failed
        # On a full disk: what could not be written, and what had taken its place before the run was stopped.
        most = 2 * IN_FLIGHT if self.ran_out else IN_FLIGHT if self.code < 0 else 0
        assert len(cut_off) <= most, "only a kill cuts off, and only what was in flight"


def test_two_thousand_rollouts_survive_kills_a_dying_agent_and_a_full_disk(agent, collectors):
    chance = random.Random(7)
    lives = []

    def live(end, *, start=collectors.start, ran_out=False):
        """Run one collector until `end(what start returned)`, and write down what it did."""
        done, before = collectors.done(), len(agent.received())
        end(start())
        code = collectors.exit_code()
        agent.settle()
        failed = set(collectors.failed())
        lives.append(Life(code, done, agent.received()[before:], collectors.done(), failed, ran_out))
        lives[-1].check()
        return code

    def arrivals(least, most):
        """Wait until this collector has sent a random number of rollouts; no more than a few beyond it are answered."""
        enough = len(agent.received()) + chance.randint(least, most)
        agent.allow(enough + IN_FLIGHT)
        wait_until(lambda: len(agent.received()) >= enough)

    def killed_early(pid):
        time.sleep(chance.uniform(0.0, 0.3))
        os.kill(pid, signal.SIGKILL)

    def killed_at_work(pid):
        arrivals(1, 80)
        time.sleep(chance.uniform(0.0, 0.03))
        os.kill(pid, signal.SIGKILL)

    def agent_killed_too(pid):
        arrivals(40, 80)
        agent.kill()
        agent.start()
        killed_at_work(pid)

    def runs_out_of_room(more_room):
        agent.allow(len(agent.received()) + 500)
        give_room.append(more_room)

    give_room = []
    for number in range(KILLS):
        end = agent_killed_too if number in AGENT_DIES_IN else killed_early if number % 4 == 0 else killed_at_work
        assert live(end) == -signal.SIGKILL
        if number == DISK_FILLS_AFTER:
            size = collectors.files.rollouts.stat().st_size
            assert live(runs_out_of_room, start=collectors.start_without_room, ran_out=True) == 1
            assert_a_full_disk_was_said(collectors, size)
            give_room[0]()
    agent.allow(10 * ROWS * REPEATS)
    assert len(collectors.done()) < ROWS * REPEATS, "the kills must hit a run that goes on"
    for _ in range(3):
        if live(lambda _: None) == 0:
            break
    assert_every_rollout_is_there_once(collectors.files)
    assert_attempts_are_accounted_for(collectors, agent.received(), lives)


def assert_a_full_disk_was_said(collectors, size_before):
    reason = "No space left on device" if collectors.has_disk else "File too large"
    assert f"cannot be written: {reason}" in collectors.log.read_text()
    content = collectors.files.rollouts.read_bytes()
    assert content.endswith(b"\n"), "what did not fit is taken back whole"
    assert size_before < len(content) <= size_before + 24_000, "everything that had room is there"
    [progress] = read_progress(collectors.files.rollouts)
    # Where nothing fits any more, the state cannot be saved either: that the process is gone says it.
    assert progress.status.state == "failed" or (collectors.has_disk and progress.stale)
    assert progress.status.counts.succeeded == content.count(b"\n")


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
    assert [path.name for path in files.folder.glob("*.tmp")] + list(files.folder.glob(".*.tmp")) == []
    run_ids = {json.loads(line)["_ng_run_id"] for line in files.rollouts.read_text().splitlines()}
    assert run_ids == {read_manifest(files).run_id}, "all of it is one run"


def assert_attempts_are_accounted_for(collectors, received, lives):
    failed = {}
    for row in collectors.rows(collectors.files.failures):
        assert is_attempt(row)
        failed.setdefault(rollout_of(row), []).append(row.get("_ng_attempt_index", 0))
    assert failed, "the agent's death left failures"
    arrived = {}
    for rollout, attempt in received:
        arrived.setdefault(rollout, set()).add(attempt)
    for row in collectors.rows(collectors.files.rollouts):
        attempts = failed.get(rollout_of(row), [])
        assert attempts == list(range(len(attempts))), "each failed try has its own number"
        assert row.get("_ng_attempt_index", 0) == len(attempts)
        assert [prior["attempt"] for prior in row.get("_ng_prior_failures", [])] == attempts
        assert len(attempts) in arrived[rollout_of(row)]
        assert max(arrived[rollout_of(row)]) == len(attempts), "no number was used before its time"
    assert sum(len(life.arrived) for life in lives) == len(received), "every arrival is of one collector"
    assert [life.code for life in lives].count(-signal.SIGKILL) == KILLS

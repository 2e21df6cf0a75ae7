from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.servers import process

ROOT = Path(__file__).parent / "public_api"


class Running:
    """A server started as its launcher starts it: from its folder, with the configuration in the environment."""

    def __init__(self, port: int, log: Path, **settings: Any) -> None:
        self.port, self.log = port, log
        block = {"entrypoint": "app.py", "host": "127.0.0.1", "port": port, "domain": "games", "step": 3}
        top = {key: settings.pop(key) for key in ("dry_run",) if key in settings}
        config = {"game": {"resources_servers": {"counter_game": {**block, **settings}}}, **top}
        environment = {
            **os.environ,
            "NEMO_GYM_CONFIG_DICT": json.dumps(config),
            "NEMO_GYM_CONFIG_PATH": "game",
            "PYTHONPATH": str(ROOT),
        }
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "app.py"],
                cwd=ROOT / "resources_servers" / "counter_game",
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def call(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.loads(answer.read())

    def wait_until_it_answers(self, deadline_s: float = 30) -> None:
        end = time.monotonic() + deadline_s
        while True:
            try:
                self.call("/livez")
                return
            except (urllib.error.URLError, ConnectionError):
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < end, self.log.read_text()
                time.sleep(0.05)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(10)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


@pytest.fixture
def start(closed_port: int, tmp_path: Path) -> Iterator[Any]:
    running: list[Running] = []

    def run(**settings: Any) -> Running:
        running.append(Running(closed_port, tmp_path / "log", **settings))
        return running[-1]

    yield run
    for server in running:
        server.stop()


def test_a_users_server_boots_from_its_own_file_and_answers_every_liveness_route(start: Any) -> None:
    server = start()
    server.wait_until_it_answers()
    for path in process.LIVENESS_PATHS:
        assert server.call(path) == {"status": "ok"}
    assert server.call("/increment", {"times": 2}) == {"count": 6}, "its own settings come from its own block"
    with pytest.raises(urllib.error.HTTPError) as failed:
        server.call("/break_down", {})
    assert json.loads(failed.value.read()) == "RuntimeError('the counter is stuck')"
    assert server.stop() in (0, -signal.SIGTERM)
    logged = server.log.read_text()
    assert "the counter is stuck" in logged
    assert all(line.startswith("(game) ") for line in logged.splitlines())


def test_a_server_with_two_workers_boots_from_its_module_level_app(start: Any) -> None:
    server = start(num_workers=2)
    server.wait_until_it_answers()
    assert server.call("/increment", {})["count"] % 3 == 0
    assert server.stop() in (0, -signal.SIGTERM)


def test_a_dry_run_builds_the_server_and_serves_nothing(start: Any) -> None:
    server = start(dry_run=True)
    assert server.process.wait(30) == 0, server.log.read_text()


def test_listening_beyond_this_machine_without_a_token_is_refused_at_start(start: Any) -> None:
    server = start(host="0.0.0.0")
    assert server.process.wait(30) == 1
    assert "NEMO_GYM_SERVER_TOKEN" in server.log.read_text()


def test_only_a_worker_makes_a_module_level_app(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not process.is_nemo_gym_fastapi_entrypoint("/somewhere/app.py")
    with process.worker_markers("app.py", 2):
        assert process.is_nemo_gym_fastapi_entrypoint("/somewhere/app.py")
        assert not process.is_nemo_gym_fastapi_entrypoint("/somewhere/other.py")
    assert not process.is_nemo_gym_fastapi_worker()


def test_output_lines_get_the_servers_name_also_when_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    process.prefix_output("game")
    process.prefix_output("game")
    for part in ("one", " line\n", "two\nthree\n", "", "four"):
        sys.stdout.write(part)
    assert out.getvalue() == "(game) one line\n(game) two\n(game) three\n(game) four"


def test_the_limit_of_open_files_is_only_ever_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    process.raise_open_files_limit(1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_ray_is_started_only_for_servers_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class FakeRay:
        @staticmethod
        def is_initialized() -> bool:
            return bool(calls)

        @staticmethod
        def init(**options: Any) -> None:
            calls.append(options)

    process.start_ray({}, enabled=None)
    monkeypatch.setitem(sys.modules, "ray", FakeRay)  # type: ignore[arg-type]
    process.start_ray({}, enabled=False)
    assert calls == []
    process.start_ray({"ray_head_node_address": "10.0.0.1:1"}, enabled=None)
    process.start_ray({}, enabled=True)
    assert calls == [{"address": "10.0.0.1:1", "ignore_reinit_error": True}]

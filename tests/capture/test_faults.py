"""Killed writers, full and read-only disks: what was answered is there, what is missing is named (C3, C5)."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.capture import CaptureMiddleware, CaptureStore

KILLS = 50
PATHS = ("/v1/responses", "/v1/chat/completions")


def _serve_until_killed(root: str, acknowledge: int) -> None:
    """Take calls of different sizes; write the id of each that has been answered to the end, one line each."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        size = len((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"text": "' + b"x" * size + b'"}'})

    app = CaptureMiddleware(application, store=CaptureStore(root))

    async def caller(number: int) -> None:
        rng = random.Random(number)

        async def receive() -> Any:
            return {"type": "http.request", "body": b'{"a": "' + b"y" * rng.choice((9, 3000, 3000, 100_000)) + b'"}'}

        while True:
            scope = {"type": "http", "method": "POST", "path": f"/ng-rollout/{number % 2}-0{PATHS[0]}", "headers": []}

            async def send(message: Any, scope: Any = scope) -> None:
                if message["type"] == "http.response.body":
                    os.write(acknowledge, f"{scope['ng_model_call_id']}\n".encode())

            await app(scope, receive, send)

    async def main() -> None:
        await asyncio.gather(*(caller(number) for number in range(6)))

    asyncio.run(main())


def test_fifty_kills_while_appending_lose_nothing_that_was_answered(tmp_path: Path) -> None:
    """After each: every acknowledged call is readable, what was cut damages one line at most, the next append works."""
    rng = random.Random(11)
    for kill in range(KILLS):
        if kill % 10 == 0:
            store, answered = CaptureStore(tmp_path / str(kill)), set[str]()
        readable, writable = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(readable)
            try:
                _serve_until_killed(str(store.root), writable)
            finally:
                os._exit(1)
        os.close(writable)
        told = os.read(readable, 1 << 16)  # it is appending now
        time.sleep(rng.uniform(0, 0.02))
        os.kill(pid, signal.SIGKILL)
        while piece := os.read(readable, 1 << 16):
            told += piece
        os.close(readable)
        os.waitpid(pid, 0)
        answered |= {line.decode() for line in told.split(b"\n")[:-1]}
        store.record(f"{kill % 2}-0", {"model_call_id": f"after-{kill}"})
        found = [store.read_available(rollout_id) for rollout_id in ("0-0", "1-0")]
        known = {line["model_call_id"] for lines, _ in found for _, line in lines}
        assert answered <= known
        assert {f"after-{number}" for number in range(kill // 10 * 10, kill + 1)} <= known
        assert sum(damaged for _, damaged in found) <= 2 * (kill % 10 + 1)
        if kill % 10 == 9:  # what died is named, and only that
            dead = {call.model_call_id for call in store.open_calls()}
            assert store.recover() == len(dead)
            assert not dead & answered
            assert store.open_calls() == []
            assert len(answered) >= 10


ON_A_SMALL_DISK = """
import asyncio, json, subprocess, sys
from pathlib import Path
from nemo_gym.capture import CaptureMiddleware, CaptureStore

root, kind = Path(sys.argv[1]), sys.argv[2]

def mount(*words):
    subprocess.run(["mount", *words, str(root)], check=True)

mount("-t", "tmpfs", "-o", "size=256k" if kind == "full" else "size=4m", "tmpfs")
store = CaptureStore(root)

async def application(scope, receive, send):
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b'{"text": "' + b"x" * 50_000 + b'"}'})

app = CaptureMiddleware(application, store=store)

async def call(number):
    body = []
    async def receive():
        return {"type": "http.request", "body": b'{"n": %d}' % number}
    async def send(message):
        body.append(message.get("body", b""))
    scope = {"type": "http", "method": "POST", "path": "/ng-rollout/0-0/v1/responses", "headers": []}
    await app(scope, receive, send)
    return len(b"".join(body))

async def calls(numbers):
    return [await call(number) for number in numbers]

sizes = asyncio.run(calls(range(3)))
if kind == "full":
    (root / "ballast").write_bytes(b"x" * 1000)
    sizes += asyncio.run(calls(range(3, 10)))
else:
    app.writer.close()  # a file open for writing would keep the disk from becoming read-only
    mount("-o", "remount,ro")
    sizes += asyncio.run(calls(range(3, 10)))
failed = app.writer.counters.failed
why = app.writer.counters.last_error
if kind == "full":
    mount("-o", "remount,size=4m")
else:
    mount("-o", "remount,rw")
sizes += asyncio.run(calls(range(10, 13)))
app.writer.close()
lines = store.read("0-0")
missing = store.missing_calls("0-0", {line["model_call_id"] for line in lines})
print(json.dumps({
    "sizes": sorted(set(sizes)), "served": len(sizes), "numbers": [line["request"]["n"] for line in lines],
    "failed": failed, "why": why, "missing": missing, "incomplete": store.is_incomplete("0-0"),
}))
"""


def _small_disks_can_be_made() -> bool:
    if shutil.which("unshare") is None:
        return False
    words = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _small_disks_can_be_made(), reason="needs a mount namespace of its own")
@pytest.mark.parametrize(("kind", "reason"), [("full", "No space left"), ("read-only", "Read-only file system")])
def test_without_room_calls_are_served_the_marker_says_why_and_later_writes_recover(
    tmp_path: Path, kind: str, reason: str
) -> None:
    words = ["unshare", "-rm", sys.executable, "-c", ON_A_SMALL_DISK, str(tmp_path), kind]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["served"], found["sizes"]) == (13, [50_012])
    assert found["numbers"][:3] == [0, 1, 2]
    assert found["numbers"][-3:] == [10, 11, 12]
    assert found["failed"] >= 5
    assert reason in found["why"]
    assert len(found["numbers"]) + len(found["missing"]) == 13
    assert all(reason in call["reason"] for call in found["missing"])
    assert found["incomplete"]

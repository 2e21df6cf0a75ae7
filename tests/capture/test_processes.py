"""Many writers, killed writers, real sockets (acceptance items 2 to 5)."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from nemo_gym.capture import (
    CaptureStore,
    attach_model_call_capture,
    capture_health,
    install_model_call_capture,
)

CHAT = [
    b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]}\n\n',
    b'data: {"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
]


def _append(root: str, writer: int, count: int) -> None:
    store = CaptureStore(root)
    for number in range(count):
        store.record("0-0", {"writer": writer, "n": number, "pad": "x" * 500})


def test_eight_processes_append_200_lines_each_to_one_rollout_c5(store: CaptureStore) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_append, args=(str(store.root), number, 200)) for number in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    lines = store.read("0-0")
    assert len({(line["writer"], line["n"]) for line in lines}) == len(lines) == 1600
    for writer in range(8):
        assert [line["n"] for line in lines if line["writer"] == writer] == list(range(200))


VICTIM = """
import asyncio, sys
from nemo_gym.capture import CaptureMiddleware, CaptureStore

async def inner(scope, receive, send):
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b'{"text": "' + b"x" * 200_000 + b'"}'})

app = CaptureMiddleware(inner, store=CaptureStore(sys.argv[1]))

async def receive():
    return {"type": "http.request", "body": b"{}"}

async def send(message):
    if message["type"] == "http.response.body":
        print("done", flush=True)

async def hang(scope, receive, send):
    print("hanging", flush=True)
    await asyncio.Event().wait()

async def main():
    scope = {"type": "http", "method": "POST", "path": "/ng-rollout/0-0/v1/responses", "headers": []}
    app.app = hang
    lost = asyncio.create_task(app(dict(scope), receive, send))
    await asyncio.sleep(0)
    app.app = inner
    while True:
        await asyncio.gather(*(app(dict(scope), receive, send) for _ in range(4)))

asyncio.run(main())
"""


async def test_a_killed_server_loses_nothing_that_was_answered_and_names_the_rest(store: CaptureStore) -> None:
    """kill -9 in the middle of appending, a few rounds: earlier records stay readable, the next append too."""
    rng = random.Random(7)
    answered = 0
    for killed in range(1, 5):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", VICTIM, str(store.root), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(rng.randint(3, 9)):
            line = await asyncio.wait_for(process.stdout.readline(), 60)
            answered += line == b"done\n"
        process.send_signal(signal.SIGKILL)
        rest = await process.stdout.read()
        answered += rest.count(b"done\n")
        await process.wait()
        lines, invalid = store.read_available("0-0")
        assert len(lines) >= answered
        assert invalid <= killed
        known = {str(line["model_call_id"]) for _, line in lines}
        assert {call["reason"] for call in store.missing_calls("0-0", known)} == {"its server process died"}
    assert store.is_incomplete("0-0")
    record: dict[str, Any] = {}
    row = {"_ng_task_index": 0, "_ng_rollout_index": 0}
    attach_model_call_capture(record, row=row, capture_dirs=[store.root], include_payloads=False)
    incomplete = [
        gap for gap in record["ng_model_call_capture"]["gaps"] if gap["code"] == "model_call_capture_incomplete"
    ]
    assert incomplete[0]["detail"].count(",") >= 3
    assert store.recover() >= 4
    assert store.open_calls() == []
    assert store.is_incomplete("0-0"), "the marker has the names now"


class CancelWhenTheClientLeaves:
    """What a server puts outermost: the handler ends when its client does."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        messages: asyncio.Queue[Any] = asyncio.Queue()

        async def pump() -> None:
            while (await _put(messages, await receive()))["type"] != "http.disconnect":
                pass
            work.cancel()

        work = asyncio.create_task(self.app(scope, messages.get, send))
        watch = asyncio.create_task(pump())
        try:
            await work
        except asyncio.CancelledError:
            pass
        finally:
            watch.cancel()


async def _put(queue: asyncio.Queue[Any], message: Any) -> Any:
    await queue.put(message)
    return message


class Server:
    """A FastAPI model server with capture, served by uvicorn on a free port in a thread."""

    def __init__(self, root: Path) -> None:
        self.started = threading.Semaphore(0)
        self.app = FastAPI()

        @self.app.post("/v1/responses")
        async def responses(request: Request) -> Any:
            body = await request.json()
            if body.get("hang"):
                self.started.release()
                await asyncio.Event().wait()
            return {"id": "r1", "output": [], "usage": {"input_tokens": 12, "output_tokens": 8}}

        @self.app.post("/v1/chat/completions")
        async def chat(request: Request) -> Any:
            hang = (await request.json()).get("hang")

            async def events() -> Any:
                yield CHAT[0]
                if hang:
                    self.started.release()
                    await asyncio.Event().wait()
                yield CHAT[1]
                yield CHAT[2]

            return StreamingResponse(events(), media_type="text/event-stream")

        config = {"observability_enabled": True, "model_call_capture_dir": str(root)}
        self.writer = install_model_call_capture(self.app, config, model_server_name="policy")
        self.app.add_middleware(CancelWhenTheClientLeaves)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.server = uvicorn.Server(uvicorn.Config(self.app, log_level="error", timeout_graceful_shutdown=1))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)

    def start(self) -> None:
        self.thread.start()
        deadline = time.monotonic() + 30
        while not self.server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()

    async def open(self, path: str, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + data)
        await writer.drain()
        return reader, writer

    async def post(self, path: str, body: dict[str, Any]) -> tuple[bytes, bytes]:
        reader, writer = await self.open(path, body)
        answer = await reader.read()
        writer.close()
        head, _, rest = answer.partition(b"\r\n\r\n")
        return head, rest


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.start()
    yield server
    server.stop()


async def test_a_real_server_records_what_a_real_client_saw(server: Server, tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    head, body = await server.post("/ng-rollout/0-0/v1/responses", {"input": "hi"})
    stream_head, stream = await server.post("/ng-rollout/0-0/v1/chat/completions/", {"stream": True})
    lines = store.read("0-0")
    assert b" 200 " in head
    assert [line["model_call_id"].encode() in seen for line, seen in zip(lines, (head, stream_head), strict=True)]
    assert json.loads(body) == lines[0]["response"]
    assert all(event in stream for event in CHAT)
    assert (lines[1]["terminal"], lines[1]["error_category"]) == ("complete", None)
    assert capture_health(server.app)["written"] == 2


@pytest.mark.parametrize("rollout_id", ["a%20b", "%C3%A9", "a%2Fb", "..", "%2e%2e", "x" * 300, "-x", ""])
async def test_a_real_client_sees_that_its_id_is_unusable(server: Server, tmp_path: Path, rollout_id: str) -> None:
    beside = [path for path in tmp_path.parent.iterdir() if path.is_file() or "capture" in path.name]
    head, body = await server.post(f"/ng-rollout/{rollout_id}/v1/responses", {})
    assert b" 400 " in head.splitlines()[0]
    assert b"x-ng-model-call-id" in head
    assert "error" in json.loads(body)
    written = [path for path in tmp_path.rglob("*") if path.is_file() and ".open-calls" not in path.parts]
    assert written == [], "neither in the directory nor in one below it"
    assert [path for path in tmp_path.parent.iterdir() if path.is_file() or "capture" in path.name] == beside


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_64_clients_that_leave_at_once_leave_64_records(server: Server, tmp_path: Path, path: str) -> None:
    store = CaptureStore(tmp_path)
    opened = await asyncio.gather(*(server.open(f"/ng-rollout/0-0{path}", {"hang": True}) for _ in range(64)))
    for _ in opened:
        assert await asyncio.to_thread(server.started.acquire, timeout=30)
    if path.endswith("completions"):
        for reader, _ in opened:
            await reader.readuntil(b"\n\n")
    for _, writer in opened:
        writer.transport.abort()
    deadline = time.monotonic() + 30
    while len(lines := store.read("0-0")) < 64:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert len({line["model_call_id"] for line in lines}) == 64
    assert {line["error_category"] for line in lines} == {"cancelled"}
    assert {json.dumps(line["request"]) for line in lines} == {'{"hang": true}'}
    if path.endswith("completions"):
        texts = {line["response"]["choices"][0]["message"]["content"] for line in lines}
        assert texts == {"a"}


async def test_the_record_is_there_when_the_last_byte_is(server: Server, tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    for number in range(50):
        path = "/v1/responses" if number % 2 else "/v1/chat/completions"
        head, _ = await server.post(f"/ng-rollout/{number}-0{path}", {})
        assert store.read(f"{number}-0")[0]["model_call_id"].encode() in head


def test_shutting_down_makes_everything_durable_and_leaves_only_records(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start()
    asyncio.run(server.post("/ng-rollout/0-0/v1/responses", {}))
    server.stop()
    assert list((tmp_path / ".open-calls").iterdir()) == []
    assert len(CaptureStore(tmp_path).read("0-0")) == 1

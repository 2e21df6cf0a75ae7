"""Model-call capture: what it adds to a server's calls, streams, and memory, beside the least that durability costs."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import uvloop

from bench.capture_server import ANSWER, CHUNK, CHUNKS, HUGE, HUGE_EVENTS
from bench.figures import Figure, cpu_seconds, kernel_seconds, repeated
from nemo_gym.capture import CaptureMiddleware, CaptureStore

RUNS = 7
CALLERS = 32
CALLS = 6400
STREAMS = 24
FLOOR_THREADS = 8
REQUEST = json.dumps({"model": "m", "input": "x" * 2000}).encode()
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Load:
    """What one load cost, per call or line.

    `cpu` is of the process that is measured, `kernel` of the kernel's own threads meanwhile (None where they cannot be
    seen), both in microseconds; `rate` is calls per second.
    """

    cpu: float
    kernel: float | None
    rate: float


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of all loads: no middleware, capture off, on with many rollouts and with one, and the floors."""

    bare: Load
    off: Load
    many: Load
    one: Load
    lines: Load
    chunk: float
    chunk_floor: float


def run() -> list[Figure]:
    """Return CPU per call and per chunk, throughput kept, and memory, each of several runs taken in turns."""
    turns: list[Turn] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        serving("none") as without,
        serving("off") as off,
        serving(f"{folder}/on") as on,
    ):
        for number in range(RUNS + 1):
            bare = calls(without, rollouts=CALLERS, name=f"m{number}")
            idle = calls(off, rollouts=CALLERS, name=f"m{number}")
            many = calls(on, rollouts=CALLERS, name=f"m{number}")
            line = next(Path(folder, "on").glob("m0-0.*")).read_bytes().splitlines(keepends=True)[0]
            lines = durable_lines(Path(folder), line)
            one = calls(on, rollouts=1, name=f"o{number}")
            chunk = streams(on, number) - streams(off, number)
            if number:  # the first turn warms everything up
                turns.append(Turn(bare, idle, many, one, lines, chunk, decoded_chunks()))
    return [*call_figures(turns), chunk_figure(turns), event(), memory()]


def call_figures(turns: list[Turn]) -> list[Figure]:
    """What capture adds to a call through the middleware, on against off, beside the lines of eight threads."""
    floor = [turn.lines.cpu for turn in turns]
    many = [turn.many.cpu - turn.off.cpu for turn in turns]
    one = [turn.one.cpu - turn.off.cpu for turn in turns]
    kept = [100 * turn.one.rate / turn.off.rate for turn in turns]
    name = "2 KB call, 32 rollouts: CPU added"
    figures = [
        Figure(path=name, unit="us", values=many, floor=floor, ratio_budget=2.2, in_turns=True),
        Figure(path="2 KB call, one rollout: CPU added", unit="us", values=one, floor=floor, in_turns=True),
        Figure(path="2 KB call, one rollout: throughput kept", unit="%", values=kept, budget=40, more_is_better=True),
    ]
    whole = [
        (turn.many.cpu + turn.many.kernel - turn.off.cpu - turn.off.kernel, turn.lines.cpu + turn.lines.kernel)
        for turn in turns
        if turn.many.kernel is not None and turn.off.kernel is not None and turn.lines.kernel is not None
    ]
    if whole:
        values, least = map(list, zip(*whole, strict=True))
        name = "  the same, with the kernel's threads"
        figures.insert(1, Figure(path=name, unit="us", values=values, floor=least, in_turns=True))
    return [*figures, *bare_figures(turns)]


def bare_figures(turns: list[Turn]) -> list[Figure]:
    """The same beside a server without the middleware, which gives a call neither an id nor a rollout."""
    added = [turn.off.cpu - turn.bare.cpu for turn in turns]
    kept = [100 * turn.one.rate / turn.bare.rate for turn in turns]
    return [
        Figure(path="2 KB call, capture off: CPU added by the middleware", unit="us", values=added),
        Figure(
            path="2 KB call, one rollout: of the throughput without middleware",
            unit="%",
            values=kept,
            more_is_better=True,
        ),
    ]


def chunk_figure(turns: list[Turn]) -> Figure:
    """What capture adds to a chunk, beside decoding its event and keeping the text."""
    values, floor = [turn.chunk for turn in turns], [turn.chunk_floor for turn in turns]
    return Figure(path="60-byte chunk: CPU added", unit="us", values=values, floor=floor, budget=6, in_turns=True)


class Meter:
    """Takes the time from its making on; `load` says what it cost per unit, given the CPU seconds of the process."""

    def __init__(self) -> None:
        self._kernel, self._began = kernel_seconds(), time.perf_counter()

    def load(self, cpu: float, units: int) -> Load:
        """Return the load of `units` calls or lines."""
        elapsed, kernel = time.perf_counter() - self._began, kernel_seconds()
        syncing = None if kernel is None or self._kernel is None else (kernel - self._kernel) / units * 1e6
        return Load(cpu / units * 1e6, syncing, units / elapsed)


def calls(port: int, *, rollouts: int, name: str) -> Load:
    """Post `CALLS` calls by `CALLERS` callers that keep their connections."""
    before, meter = usage(port)["cpu"], Meter()
    paths = [f"/ng-rollout/{name}-{caller % rollouts}/v1/responses" for caller in range(CALLERS)]
    uvloop.run(load(port, paths, REQUEST, CALLS // CALLERS, ANSWER[-16:]))
    found = meter.load(0.0, CALLS)  # before asking the server, which takes time of its own
    return replace(found, cpu=(usage(port)["cpu"] - before) / CALLS * 1e6)


def streams(port: int, number: int) -> float:
    """Return CPU microseconds of the server per chunk of streams taken by four callers."""
    before = usage(port)["cpu"]
    paths = [f"/ng-rollout/s{number}-{caller}/v1/chat/completions" for caller in range(4)]
    uvloop.run(load(port, paths, REQUEST, STREAMS // 4, b"\r\n0\r\n\r\n"))
    return (usage(port)["cpu"] - before) / (STREAMS * CHUNKS) * 1e6


def decoded_chunks() -> float:
    """Return CPU microseconds per chunk for decoding each event as JSON and appending its text: a floor."""
    kept: list[bytes] = []
    texts: list[str] = []
    before = cpu_seconds()
    for _ in range(STREAMS * CHUNKS):
        kept.append(CHUNK)
        texts.append(orjson.loads(CHUNK[6:])["choices"][0]["delta"]["content"])
    return (cpu_seconds() - before) / (STREAMS * CHUNKS) * 1e6


class Caller(asyncio.Protocol):
    """Posts the same request again as soon as the answer has ended. As little as a caller can cost."""

    def __init__(self, request: bytes, count: int, end: bytes) -> None:
        self.request, self.left, self.end = request, count, end
        self.tail = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        """Send the first request."""
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        """Go on at the end of an answer."""
        self.tail = data if len(data) >= len(self.end) else self.tail[-len(self.end) :] + data
        if self.tail.endswith(self.end):
            self.left -= 1
            if self.left:
                self.transport.write(self.request)
            else:
                self.transport.close()
                self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail when the server went away."""
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed the connection"))


async def load(port: int, paths: list[str], body: bytes, count: int, end: bytes) -> None:
    """Post `body` `count` times to each path, all paths at the same time."""
    loop = asyncio.get_running_loop()
    callers = []
    for path in paths:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        request = head.encode() + body
        _, caller = await loop.create_connection(lambda request=request: Caller(request, count, end), "127.0.0.1", port)
        callers.append(caller)
    await asyncio.gather(*(caller.done for caller in callers))


def durable_lines(folder: Path, line: bytes) -> Load:
    """Return the load, per line, of eight threads that lock, write and sync, 32 files between them."""
    count = CALLS // FLOOR_THREADS
    files = [os.open(folder / f"floor-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND) for number in range(CALLERS)]

    def append(mine: list[int]) -> None:
        for number in range(count):
            fd = mine[number % len(mine)]
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.write(fd, line)
            os.fdatasync(fd)
            fcntl.flock(fd, fcntl.LOCK_UN)

    threads = [threading.Thread(target=append, args=(files[start::FLOOR_THREADS],)) for start in range(FLOOR_THREADS)]
    meter = Meter()
    before = cpu_seconds()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = cpu_seconds() - before
    found = meter.load(used, count * FLOOR_THREADS)
    for fd in files:
        os.close(fd)
    return found


def event() -> Figure:
    """One 8 MiB event in 4 KiB pieces through the middleware, with its record; the floor copies the bytes."""
    body = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"word " * (8 * MIB // 5) + b'"}}]}\n\n'
    pieces = [body[start : start + 4096] for start in range(0, len(body), 4096)]

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def ignore(message: Any) -> None:
        return

    async def nothing() -> Any:
        return {"type": "http.request", "body": b"{}"}

    def copied() -> float:
        before = cpu_seconds()
        target = bytearray()
        for piece in pieces:
            target += piece
        return cpu_seconds() - before

    with tempfile.TemporaryDirectory() as folder:
        middleware = CaptureMiddleware(application, store=CaptureStore(folder))
        scope = {"type": "http", "method": "POST", "path": "/ng-rollout/0-0/v1/chat/completions", "headers": []}

        def through() -> float:
            before = cpu_seconds()
            asyncio.run(middleware(dict(scope), nothing, ignore))
            return cpu_seconds() - before

        values = repeated(through)
        assert middleware.writer is not None
        middleware.writer.close()
    return Figure(path="8 MiB event in 4 KiB pieces: CPU", unit="s", values=values, floor=repeated(copied), budget=0.2)


def memory() -> Figure:
    """How far a server's memory grows over a 50 MB stream, in sizes of the stream."""
    values = []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as folder, serving(folder) as port:
            uvloop.run(load(port, ["/ng-rollout/w-0/v1/chat/completions"], REQUEST, 1, b"\r\n0\r\n\r\n"))
            idle = usage(port)["resident"]
            uvloop.run(load(port, ["/ng-rollout/0-0/v1/messages"], REQUEST, 1, b"\r\n0\r\n\r\n"))
            size = HUGE_EVENTS * len(HUGE)
            values.append((usage(port)["peak"] - idle) / size)
    return Figure(path="50 MB stream: peak memory above idle", unit="x its size", values=values, budget=2)


@contextmanager
def serving(directory: str) -> Iterator[int]:
    """Start a server in a process of its own; yields its port."""
    words = [sys.executable, "-m", "bench.capture_server", directory]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def usage(port: int) -> dict[str, float]:
    """Return what a server says of its own CPU and memory."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/usage") as answer:
        found: dict[str, float] = json.load(answer)
        return found

"""Model servers: CPU of a plain call beside a bare echo; the first token beside the backend's own, per dialect pair."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import uvicorn
from starlette.types import Receive, Scope, Send

from bench.figures import Figure

DIALECTS = ("responses", "chat", "messages")
PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions", "messages": "/v1/messages"}
CALLS, CONNECTIONS, RUNS = 1500, 8, 5
STREAMS_PER_RUN = 8
FILLER = "The quick brown fox jumps over the lazy dog. " * 44  # 2 KB


def run() -> list[Figure]:
    """Return the CPU per plain call, whole server, capture off, and what a server adds to the first token."""
    figures = []
    with served("echo") as (echo, url):
        floor = cpu_per_call(echo, url, "/v1/responses", request_of("responses"))
    with served("typed") as (process, url):
        for dialect in DIALECTS:
            values = cpu_per_call(process, url, PATHS[dialect], request_of(dialect))
            figures.append(
                Figure(
                    path=f"{dialect}, 2 KB, typed handler", unit="CPU us/call", values=values, floor=floor, budget=300
                )
            )
    with served("backend") as (_, backend):
        for wire in DIALECTS:
            with served("front", wire, backend) as (_, front):
                for client in DIALECTS:
                    added = asyncio.run(added_to_first_token(front, backend, client, wire))
                    path = f"first token, {client} from a {wire} backend"
                    figures.append(Figure(path=path, unit="ms after", values=added, budget=5.0))
    return figures


def cpu_per_call(process: psutil.Process, url: str, path: str, body: bytes) -> list[float]:
    """Return the server's CPU microseconds per call, of several runs after one that is thrown away."""
    port = int(url.rpartition(":")[2])
    values = []
    for number in range(RUNS + 1):
        before = sum(process.cpu_times()[:2])
        asyncio.run(load(port, path, body))
        if number:
            values.append((sum(process.cpu_times()[:2]) - before) / CALLS * 1e6)
    return values


async def load(port: int, path: str, body: bytes) -> None:
    """Make the calls over a few kept connections; the client's own cost is not what is measured."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body

    async def caller() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(CALLS // CONNECTIONS):
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            length = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()

    await asyncio.gather(*(caller() for _ in range(CONNECTIONS)))


async def added_to_first_token(front: str, backend: str, client: str, wire: str) -> list[float]:
    """Return, per run, how many milliseconds later the first text arrives through the server than straight from it."""
    added = []
    for number in range(RUNS + 1):
        straight, through = [], []
        for _ in range(STREAMS_PER_RUN):
            straight.append(await first_token_ms(backend, wire))
            through.append(await first_token_ms(front, client))
        if number:
            added.append(sorted(through)[STREAMS_PER_RUN // 2] - sorted(straight)[STREAMS_PER_RUN // 2])
    return added


async def first_token_ms(url: str, dialect: str) -> float:
    """Return the milliseconds until the first text of a stream."""
    body = request_of(dialect, stream=True)
    port = int(url.rpartition(":")[2])
    head = f"POST {PATHS[dialect]} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = time.perf_counter()
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    seen, ms = b"", 0.0
    while piece := await reader.read(65536):
        seen += piece
        if not ms and b"forty-two" in seen:
            ms = (time.perf_counter() - begun) * 1000
    writer.close()
    assert ms, seen[:500]
    return ms


def request_of(dialect: str, *, stream: bool = False) -> bytes:
    """Return a request of 2 KB."""
    body: dict[str, Any] = {"model": "m", "stream": stream}
    if dialect == "responses":
        body |= {"input": [{"role": "user", "content": FILLER}], "max_output_tokens": 100}
    else:
        body |= {"messages": [{"role": "user", "content": FILLER}], "max_tokens": 100}
    return json.dumps(body).encode()


# The servers, each in a process of its own


@contextlib.contextmanager
def served(*words: str) -> Iterator[tuple[psutil.Process, str]]:
    """Start one of the servers below; yields its process and its URL."""
    command = [sys.executable, "-m", "bench.model_server", *words]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    try:
        yield psutil.Process(started.pid), started.stdout.readline().strip()
    finally:
        started.terminate()
        started.wait(20)


def answer_in(dialect: str, text: str = FILLER) -> dict[str, Any]:
    """Return a finished answer."""
    from nemo_gym.dialects import conversion

    part = {"type": "output_text", "text": text, "annotations": []}
    response: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1.0,
        "status": "completed",
        "model": "m",
        "output": [{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 500,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 500,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 1000,
        },
    }
    if dialect == "chat":
        return conversion.responses_to_chat_response(response, requested_model="m")[0]
    if dialect == "messages":
        return conversion.responses_to_messages_response(response, requested_model="m")[0]
    return response


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """The floor: read JSON, write JSON."""
    import orjson

    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    content = orjson.dumps(orjson.loads(body))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def backend(scope: Scope, receive: Receive, send: Send) -> None:
    """Streams an answer in the dialect of the path, its text at once, and the end a moment later."""
    if scope["type"] != "http":
        return
    from nemo_gym.dialects import conversion

    while (await receive()).get("more_body"):
        pass
    dialect: Any = next(name for name, path in PATHS.items() if scope["path"] == path)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for event in conversion.replay_events(dialect, answer_in(dialect, "forty-two"), include_usage=True):
        await send({"type": "http.response.body", "body": event, "more_body": True})
        if b"forty-two" in event:
            await asyncio.sleep(0.005)
    await send({"type": "http.response.body", "body": b""})


def typed_server() -> Any:
    """A model server with typed handlers that answer at once."""
    from nemo_gym.base_responses_api_model import SimpleResponsesAPIModel
    from nemo_gym.openai_utils import (
        NeMoGymChatCompletion,
        NeMoGymChatCompletionCreateParamsNonStreaming,
        NeMoGymResponse,
        NeMoGymResponseCreateParamsNonStreaming,
    )

    response, completion = NeMoGymResponse(**answer_in("responses")), NeMoGymChatCompletion(**answer_in("chat"))

    class Typed(SimpleResponsesAPIModel):
        async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
            return response

        async def chat_completions(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> NeMoGymChatCompletion:
            return completion

    Typed.responses.__annotations__ |= {"body": NeMoGymResponseCreateParamsNonStreaming}
    Typed.chat_completions.__annotations__ |= {"body": NeMoGymChatCompletionCreateParamsNonStreaming}
    return made(Typed)


def front_server(wire: str, url: str) -> Any:
    """A shipped model server before the backend."""
    from nemo_gym.builtin.responses_api_models.anthropic_model.app import AnthropicModel
    from nemo_gym.builtin.responses_api_models.openai_model.app import OpenAIModel

    if wire == "messages":
        return made(AnthropicModel, anthropic_base_url=url, anthropic_api_key="k", anthropic_model="m")
    return made(OpenAIModel, openai_base_url=f"{url}/v1", openai_api_key="k", openai_model="m", wire=wire)


def made(server_class: Any, **settings: Any) -> Any:
    """Make a model server without a run around it."""
    from nemo_gym.server_utils import ServerClient

    class NoClient(ServerClient):
        def __init__(self) -> None:
            pass

    config_class = server_class.model_fields["config"].annotation
    config = config_class(host="127.0.0.1", port=1, entrypoint="app.py", name="m", **settings)
    return server_class.model_construct(config=config, server_client=NoClient.__new__(NoClient)).served_app()


class Announced(uvicorn.Server):
    """A server that prints its URL once it listens."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        print(f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}", flush=True)


def serve(words: list[str]) -> None:
    """Serve what the first word names until the process is ended."""
    kind = words[0]
    apps: dict[str, Any] = {"echo": lambda: echo, "backend": lambda: backend, "typed": typed_server}
    app = front_server(*words[1:]) if kind == "front" else apps[kind]()
    options = {"loop": "uvloop", "http": "httptools", "log_level": "error", "access_log": False}
    Announced(uvicorn.Config(app, host="127.0.0.1", port=0, **options)).run()


if __name__ == "__main__":
    serve(sys.argv[1:])

"""The server that `bench.capture` measures: a trivial ASGI application behind uvicorn.

`python -m bench.capture_server DIR|off|none` prints its port: with capture into DIR, with the same middleware and
capture off, or without the middleware. `/usage` answers its own CPU seconds and peak memory.
"""

from __future__ import annotations

import json
import resource
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn

from nemo_gym.capture import CaptureMiddleware, CaptureStore

ANSWER = json.dumps(
    {"id": "r", "object": "response", "output": [], "text": "y" * 1900, "usage": {"input_tokens": 9}}
).encode()
CHUNKS = 1000
HUGE_EVENTS = 800
BEGIN = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant",'
    b'"content":[],"usage":{"input_tokens":9}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":'
    b'{"type":"text","text":""}}\n\n'
)
END = b'event: message_stop\ndata: {"type":"message_stop"}\n\ndata: [DONE]\n\n'
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"hello"}}]}\n\n'
HUGE = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%s"}}\n\n' % (b"word " * 13107)
)
_START = {"type": "http.response.start", "status": 200}
_JSON = {**_START, "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]}
_SSE = {**_START, "headers": [(b"content-type", b"text/event-stream")]}


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answer 2 KB at `/v1/responses`; stream small or huge events at the two other paths; tell usage elsewhere."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    if scope["path"] == "/v1/responses":
        await send(_JSON)
        await send({"type": "http.response.body", "body": ANSWER})
    elif scope["path"].startswith("/v1/"):
        await send(_SSE)
        if scope["path"] == "/v1/messages":
            await send({"type": "http.response.body", "body": BEGIN, "more_body": True})
        chunk, count = (CHUNK, CHUNKS) if scope["path"] == "/v1/chat/completions" else (HUGE, HUGE_EVENTS)
        for _ in range(count):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": END})
    else:
        await send(_JSON | {"headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": json.dumps(usage()).encode()})


def usage() -> dict[str, float]:
    """Return CPU seconds so far, and peak and present memory in bytes."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "cpu": used.ru_utime + used.ru_stime,
        "peak": used.ru_maxrss * 1024,
        "resident": pages * resource.getpagesize(),
    }


def main(directory: str) -> None:
    """Serve until terminated."""
    store = None if directory in ("off", "none") else CaptureStore(directory)
    app: Any = _without_prefix if directory == "none" else CaptureMiddleware(application, store=store)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off", loop="uvloop", http="httptools")
    uvicorn.Server(config).run(sockets=[listener])


async def _without_prefix(scope: Any, receive: Any, send: Any) -> None:
    """Serve the same paths bare, under the prefix that the callers send."""
    if scope["type"] == "http" and scope["path"].startswith("/ng-rollout/"):
        scope["path"] = "/" + scope["path"].split("/", 3)[3]
    await application(scope, receive, send)


if __name__ == "__main__":
    main(sys.argv[1])

"""A head server and an agent that answer at once: `python -m bench.instant_agent [CAPTURE_DIR]` prints their ports.

Bare asyncio protocols, so that the process measured against them never waits for them. With a capture directory the
agent writes ten captured model calls of 8 KB for each rollout before it answers, and reports ten tool calls.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

CALLS = 10
CALL_BYTES = 8_000
REPLY_BYTES = 2_000


def plain_reply() -> bytes:
    """Return what `/run` answers without evidence, 2 KB of JSON."""
    reply = {
        "response": {"id": "resp", "output": [], "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}},
        "reward": 1.0,
    }
    padding = REPLY_BYTES - len(json.dumps(reply)) - len(', "text": ""')
    return json.dumps({**reply, "text": "x" * padding}).encode()


def evidence_reply() -> bytes:
    """Return what `/run` answers with observations of ten calls and ten tools."""
    tools = [
        {
            "kind": "tool_call", "invocation_id": "root", "tool_call_id": f"tool-{n}", "tool_name": "lookup",
            "duration_ms": 20, "timing_source": "harness", "status": "completed",
        }
        for n in range(CALLS)
    ]  # fmt: skip
    conversation = [
        item
        for n in range(CALLS)
        for item in (
            {"type": "function_call", "call_id": f"tool-{n}", "name": "lookup", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"tool-{n}", "output": "42"},
        )
    ]
    invocation = {
        "kind": "agent_invocation", "invocation_id": "root", "conversation": conversation,
        "model_calls": [{"model_call_id": f"call-{n}"} for n in range(CALLS)],
    }  # fmt: skip
    observations = {"source": "bench", "records": [invocation, *tools], "gaps": []}
    usage = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}
    response = {"id": "resp", "output": conversation, "usage": usage}
    return json.dumps({"response": response, "reward": 1.0, "ng_agent_observations": observations}).encode()


def capture_lines() -> bytes:
    """Return the captured calls of one rollout: ten lines of 8 KB."""
    lines = []
    for n in range(CALLS):
        output = [{"type": "function_call", "call_id": f"tool-{n}", "name": "lookup", "arguments": "{}"}]
        line = {
            "model_call_id": f"call-{n}", "dialect": "responses", "status_code": 200, "call_index": n,
            "started_at": 1.0 + n, "completed_at": 1.5 + n, "latency_total_ms": 500.0,
            "request": {"model": "m", "input": "y" * (CALL_BYTES - 700)},
            "response": {
                "id": f"resp-{n}", "model": "m", "output": output, "status": "completed",
                "usage": {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12},
            },
        }  # fmt: skip
        lines.append(json.dumps(line))
    return ("\n".join(lines) + "\n").encode()


def _http(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Agent(asyncio.Protocol):
    """Answers each request on its connection in turn."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._data = bytearray()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._data[:end]).lower()
            if b"transfer-encoding: chunked" in head:
                # The request of the metrics: read to its end without keeping it.
                if not self._data.endswith(b"0\r\n\r\n"):
                    del self._data[end + 4 : -5]
                    return
                self._data.clear()
                self._transport.write(self._answers.metrics)
                return
            length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0)
            if len(self._data) < end + 4 + length:
                return
            body = bytes(self._data[end + 4 : end + 4 + length])
            del self._data[: end + 4 + length]
            self._transport.write(self._answers.to(head, body))


class Answers:
    """What is answered, encoded once."""

    def __init__(self, capture_dir: Path | None) -> None:
        self._capture_dir = capture_dir
        self._run = _http(plain_reply() if capture_dir is None else evidence_reply())
        self._lines = capture_lines()
        self.metrics = _http(b'{"agent_metrics":{},"key_metrics":{},"group_level_metrics":[]}')
        self.config = b""

    def to(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"get"):
            return self.config
        if self._capture_dir is not None:
            row = json.loads(body)
            name = f"{row['_ng_task_index']}-{row['_ng_rollout_index']}.capture.jsonl"
            (self._capture_dir / name).write_bytes(self._lines)
        return self._run


async def _serve(capture_dir: Path | None) -> None:
    answers = Answers(capture_dir)
    loop = asyncio.get_running_loop()
    agent = await loop.create_server(lambda: Agent(answers), "127.0.0.1", 0, backlog=1024)
    head = await loop.create_server(lambda: Agent(answers), "127.0.0.1", 0)
    ports = [server.sockets[0].getsockname()[1] for server in (agent, head)]
    config: dict[str, Any] = {
        "head_server": {"host": "127.0.0.1", "port": ports[1]},
        "instant": {
            "responses_api_agents": {"instant_agent": {"entrypoint": "app.py", "host": "127.0.0.1", "port": ports[0]}}
        },
    }
    if capture_dir is not None:
        config |= {"observability_enabled": True, "model_call_capture_dir": str(capture_dir)}
    answers.config = _http(json.dumps(json.dumps(config)).encode())
    print(*ports, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]) if len(sys.argv) > 1 else None))

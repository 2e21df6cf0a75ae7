"""Calling a route of the app from inside the process, and changing what a route takes and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.records import codec

ChangeBody: TypeAlias = Callable[[bytes], bytes]
ChangeAnswer: TypeAlias = Callable[[Scope, bytes, dict[str, Any]], Awaitable[dict[str, Any]]]


class Answer:
    """What an app sent: status, headers, body."""

    def __init__(self) -> None:
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""

    async def send(self, message: Message) -> None:
        """Take a message of the app."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

    @property
    def is_json(self) -> bool:
        """Whether the app said that its body is JSON."""
        return any(name.lower() == b"content-type" and b"json" in value for name, value in self.headers)

    def decoded(self) -> Any:
        """Return the JSON value, or None where the body is none."""
        try:
            return codec.decode(self.body) if self.is_json else None
        except ValueError:
            return None

    async def forward(self, send: Send) -> None:
        """Send it on, with the length that the body has now."""
        headers = [(name, value) for name, value in self.headers if name.lower() != b"content-length"]
        headers.append((b"content-length", str(len(self.body)).encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


async def call(app: ASGIApp, scope: Scope, body: bytes) -> Answer:
    """Run an app on a body that is there already; raises what the app lets out."""
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    answer = Answer()
    await app(scope, receive, answer.send)
    return answer


def changed(app: ASGIApp, *, body: ChangeBody, answer: ChangeAnswer) -> ASGIApp:
    """Return an app whose body is changed before, and whose JSON object is changed after it succeeded."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        given = await _whole(receive)
        got = await call(app, scope, body(given))
        value = got.decoded()
        if got.status < 400 and isinstance(value, dict):
            got.body = codec.encode(await answer(scope, given, value))
        await got.forward(send)

    return run


async def _whole(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)

"""What stands between a server and the application during one captured call: it copies what passes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable

from nemo_gym.capture.bodies import RAW_HALF_BYTES, KeptBytes
from nemo_gym.capture.correlation import Message, Receive, Send
from nemo_gym.capture.exchange import Exchange
from nemo_gym.capture.hold import TerminalHold
from nemo_gym.dialects import make_accumulator
from nemo_gym.dialects.accumulate import StreamAccumulator

_START, _BODY = "http.response.start", "http.response.body"


class CallObserver:
    """`receive` and `send` for the application. `started` is the monotonic time the latencies count from."""

    __slots__ = (
        "_accumulator",
        "_behind",
        "_exchange",
        "_flowing",
        "_hold",
        "_id_header",
        "_keep",
        "_opened",
        "_opening",
        "_receive",
        "_send",
        "started",
    )

    def __init__(self, exchange: Exchange, receive: Receive, send: Send, hold: TerminalHold, id_header: bytes) -> None:
        self._exchange, self._receive, self._send, self._hold = exchange, receive, send, hold
        self._id_header = id_header
        self._accumulator = exchange.accumulator
        self._flowing: StreamAccumulator | None = None
        """The accumulator of a stream whose times are taken and whose end has not been seen."""
        self._keep = exchange.response.add
        self._opening: Message | None = None
        """The start of an answer that waits for the body."""
        self._opened: asyncio.Task[None] | None = None
        """The start of an answer that is being sent because the body did not come at once."""
        self._behind = False
        """Whether something was kept back, so that what follows must see to the order."""
        self.started = 0.0

    def end(self) -> None:
        """Let go of the answer: the exchange has it, and the request may still wait for a while."""
        self._accumulator = self._flowing = None

    async def receive(self) -> Message:
        """Pass the next message on to the application, keeping request bytes."""
        message = await self._receive()
        kind = message["type"]
        if kind == "http.request":
            body = message.get("body")
            if body:
                self._exchange.request.add(bytes(body))
        elif kind == "http.disconnect":
            self._exchange.disconnected = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Pass a message of the application on, keeping response bytes; the end of the answer is held.

        What does not wait goes straight on, without a coroutine of its own: it is most of a stream.
        """
        if message["type"] != _BODY:
            return self._start(message) if message["type"] == _START else self._send_behind(message)
        flowing, body = self._flowing, message.get("body")
        if flowing is not None and body and type(body) is bytes and message.get("more_body"):
            self._keep(body)
            flowing.feed(body)
            end = flowing.terminal_offset
            if end is None:
                return self._send(message)
        else:
            end = self._see(message)
            if end is None:
                return self._send_behind(message) if self._behind else self._send(message)
        opening = self._opening
        if opening is not None and not end:
            self._opening = None
            return self._hold.put_first(opening, message)
        self._flowing, self._behind = None, True
        return self._hold_from(end, message)

    def _start(self, message: Message) -> Awaitable[None]:
        """Pass the start of a stream on. That of another answer goes together with its body if that is there too.

        Servers send the two in one packet when they get them in one turn of the loop, which costs both sides half.
        """
        message = self._begun(message)
        if self._accumulator is not None or self._behind:
            return self._send_behind(message) if self._behind else self._send(message)
        self._opening, self._behind = message, True
        self._hold.loop.call_soon(self._body_is_late)
        return _nothing()

    def _body_is_late(self) -> None:
        if self._opening is not None:
            opening, self._opening = self._opening, None
            self._opened = self._hold.loop.create_task(_awaited(self._send(opening)))

    @property
    def is_opening(self) -> bool:
        """Whether the start of the answer may not have been sent yet, and is not held either."""
        return self._opening is not None or self._opened is not None

    async def open(self) -> None:
        """Have the start of the answer sent, if it still waits for a body."""
        opened, opening = self._opened, self._opening
        self._opening = self._opened = None
        if opened is not None:
            await opened
        if opening is not None:
            await self._send(opening)

    async def _send_behind(self, message: Message) -> None:
        """Send what comes after something that may still wait."""
        if self._hold.pending:
            await self._hold.put(message)
        else:
            await self.open()
            await self._send(message)

    async def _hold_from(self, end: int, message: Message) -> None:
        """Hold a message, or what follows the first `end` bytes of it when nothing is held yet."""
        if not self._hold.pending:
            await self.open()
            if end:  # only the bytes of the terminal event wait
                body = message["body"]
                await self._send({"type": _BODY, "body": body[:end], "more_body": True})
                message = {**message, "body": body[end:]}
        await self._hold.put(message)

    def _begun(self, message: Message) -> Message:
        exchange = self._exchange
        exchange.status = message["status"]
        headers = list(message.get("headers", ()))
        found = {name.lower(): value for name, value in headers}
        if self._id_header in found:  # forwarded from a server behind: this call has its own id
            headers = [item for item in headers if item[0].lower() != self._id_header]
        encoding = found.get(b"content-encoding")
        if encoding is not None:
            exchange.response_encoding = encoding.decode("latin-1")
        content_type = found.get(b"content-type", b"")
        if content_type.partition(b";")[0].strip().lower() == b"text/event-stream":
            self._accumulator = exchange.accumulator = make_accumulator(
                exchange.dialect, content_encoding=exchange.response_encoding
            )
            exchange.response = KeptBytes(2 * RAW_HALF_BYTES)
            self._keep = exchange.response.add
        headers.append((self._id_header, exchange.model_call_id.encode()))
        return {**message, "headers": headers}

    def _see(self, message: Message) -> int | None:
        """Keep the bytes of a body message; returns where in them the end of the answer begins, None when later."""
        exchange, accumulator = self._exchange, self._accumulator
        body = message.get("body")
        end: int | None = None
        if body:
            body = body if type(body) is bytes else bytes(body)
            exchange.response.add(body)
            if accumulator is None:
                if exchange.ttft is None:
                    exchange.ttft = time.perf_counter() - self.started
            else:
                accumulator.feed(body)
                end = accumulator.terminal_offset
                if exchange.first_content is None:
                    self._time(accumulator)
        if not message.get("more_body", False):
            exchange.response_complete = True
            return 0 if end is None else end
        return end

    def _time(self, accumulator: StreamAccumulator) -> None:
        exchange = self._exchange
        if exchange.ttft is None and accumulator.first_event_seen:
            exchange.ttft = time.perf_counter() - self.started
        if accumulator.first_content_seen:
            exchange.first_content = time.perf_counter() - self.started
            self._flowing = accumulator


async def _nothing() -> None:
    """What a call to `send` waits for when nothing is sent yet."""


async def _awaited(awaitable: Awaitable[None]) -> None:
    await awaitable

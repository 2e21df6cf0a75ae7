"""What stands between a server and the application during one captured call: it copies what passes."""

from __future__ import annotations

import time

from nemo_gym.capture.bodies import RAW_HALF_BYTES, KeptBytes
from nemo_gym.capture.correlation import Message, Receive, Send
from nemo_gym.capture.exchange import Exchange
from nemo_gym.capture.hold import TerminalHold
from nemo_gym.dialects import make_accumulator
from nemo_gym.dialects.accumulate import StreamAccumulator

_START, _BODY = "http.response.start", "http.response.body"


class CallObserver:
    """`receive` and `send` for the application. `started` is the monotonic time the latencies count from."""

    __slots__ = ("_accumulator", "_exchange", "_hold", "_id_header", "_receive", "_send", "started")

    def __init__(self, exchange: Exchange, receive: Receive, send: Send, hold: TerminalHold, id_header: bytes) -> None:
        self._exchange, self._receive, self._send, self._hold = exchange, receive, send, hold
        self._id_header = id_header
        self._accumulator = exchange.accumulator
        self.started = 0.0

    def end(self) -> None:
        """Let go of the answer: the exchange has it, and the request may still wait for a while."""
        self._accumulator = None

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

    async def send(self, message: Message) -> None:
        """Pass a message of the application on, keeping response bytes; the end of the answer is held."""
        kind = message["type"]
        if kind != _BODY:
            message = self._begun(message) if kind == _START else message
            await (self._hold.put(message) if self._hold.pending else self._send(message))
            return
        end = self._see(message)
        if self._hold.pending:
            await self._hold.put(message)
        elif end is None:
            await self._send(message)
        elif end == 0:
            await self._hold.put(message)
        else:  # only the bytes of the terminal event wait
            body = message["body"]
            await self._send({"type": _BODY, "body": body[:end], "more_body": True})
            await self._hold.put({**message, "body": body[end:]})

    def _begun(self, message: Message) -> Message:
        exchange = self._exchange
        exchange.status = message["status"]
        headers = []
        content_type = b""
        for item in message.get("headers", ()):
            name = item[0].lower()
            if name == b"content-type":
                content_type = item[1]
            elif name == b"content-encoding":
                exchange.response_encoding = item[1].decode("latin-1")
            elif name == self._id_header:
                continue  # forwarded from a server behind: this call has its own id
            headers.append(item)
        if content_type.partition(b";")[0].strip().lower() == b"text/event-stream":
            self._accumulator = exchange.accumulator = make_accumulator(
                exchange.dialect, content_encoding=exchange.response_encoding
            )
            exchange.response = KeptBytes(2 * RAW_HALF_BYTES)
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

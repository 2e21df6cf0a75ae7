"""The terminal hold: the bytes that end an answer wait for its record, with a deadline."""

from __future__ import annotations

import asyncio

from nemo_gym.capture.batch import Waiter
from nemo_gym.capture.correlation import Message, Send
from nemo_gym.capture.shared_timer import SharedTimer


class TerminalHold:
    """Messages that wait, in order. One per call; used on the event loop only.

    The deadline counts from the first held message. When it passes, what is held goes out, also while the application
    is still running.
    """

    __slots__ = ("_durable", "_flushing", "_messages", "_send", "_timer", "recording", "settled")

    def __init__(self, send: Send, timer: SharedTimer) -> None:
        self._send, self._timer = send, timer
        self._messages: list[Message] = []
        self._durable: asyncio.Future[bool | None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self.recording = False
        self.settled = False
        """Whether nothing is waited for any more."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that it belongs to."""
        return self._timer.loop

    @property
    def pending(self) -> bool:
        """Whether something was ever held."""
        return self._durable is not None

    async def put(self, message: Message) -> None:
        """Hold a message; after the deadline it is sent on at once."""
        if self._flushing is not None:
            await self._flushing
            await self._send(message)
            return
        self.expect()
        self._messages.append(message)

    async def put_first(self, *messages: Message) -> None:
        """Hold the first messages of a call."""
        self.expect()
        self._messages += messages

    def expect(self) -> None:
        """Have the record waited for, also when nothing is held yet: the answer may be made further out."""
        if self._durable is None:
            self._durable = self._timer.loop.create_future()
            self._timer.add(self)

    def waiter(self) -> Waiter | None:
        """Return what the writer calls when the record is durable, or None when nothing waits for it."""
        return None if self._durable is None else (self._timer.loop, self.settle)

    async def release(self) -> bool:
        """Wait until the record is durable or the deadline has passed, then send; returns False on the deadline.

        A record that failed releases too: the writer has marked it already.
        """
        assert self._durable is not None
        outcome = await self._durable
        if self._flushing is not None:
            await self._flushing
        else:
            messages, self._messages = self._messages, []
            for message in messages:
                await self._send(message)
        return outcome is not None

    def abandon(self) -> None:
        """Stop waiting: the request was cancelled, so nobody reads what is held."""
        self.settled = True

    def settle(self, durable: bool) -> None:
        """Say what became of the record; the first word counts."""
        self.settled = True
        if self._durable is not None and not self._durable.done():
            self._durable.set_result(durable)

    def expire(self) -> None:
        """Let go of what is held, unless the hold was settled or abandoned."""
        if self.settled or self._durable is None or self._durable.done():
            return
        self.settled = True
        self._durable.set_result(None)
        if not self.recording:  # the application still runs: it will not come to `release` for a while
            self._flushing = self._timer.loop.create_task(self._flush())

    async def _flush(self) -> None:
        messages, self._messages = self._messages, []
        for message in messages:
            await self._send(message)

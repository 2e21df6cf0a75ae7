"""Making files durable from an event loop that goes on meanwhile."""

from __future__ import annotations

import asyncio
import os

from nemo_gym.store.kernel_sync import KernelSync


class LoopSync:
    """Has files synced by the kernel, or by a thread where the kernel does not offer it. Belongs to one event loop.

    A thread that waits for the interpreter after each sync costs a busy loop more than the sync itself.
    """

    def __init__(self) -> None:
        self._kernel: KernelSync | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._number = 0

    async def sync(self, fd: int) -> None:
        """Return when everything written to `fd` so far is durable; raises OSError.

        The descriptor must stay open until this returns or is cancelled.
        """
        if self._loop is None:
            self._open()
        self._number += 1
        number = self._number
        if self._loop is None or self._kernel is None or not self._kernel.start([(fd, number)]):
            await asyncio.to_thread(os.fdatasync, fd)
            return
        self._waiting[number] = self._loop.create_future()
        await self._waiting[number]

    def close(self) -> None:
        """Stop listening; what is still waited for is cancelled. A later `sync` starts anew."""
        if self._loop is not None and self._kernel is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._kernel.eventfd)
        self._loop = self._kernel = None
        while self._waiting:
            self._waiting.popitem()[1].cancel()

    def _open(self) -> None:
        self._loop, self._kernel = asyncio.get_running_loop(), KernelSync.open()
        if self._kernel is not None:
            self._loop.add_reader(self._kernel.eventfd, self._finished, self._kernel)

    def _finished(self, kernel: KernelSync) -> None:
        for number, error in kernel.finished():
            waiting = self._waiting.pop(number, None)
            if waiting is None or waiting.done():
                continue
            if error is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(error)

"""Ctrl-C and SIGTERM for a command that runs an event loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_until_interrupted(
    main: Coroutine[Any, Any, int], *, on_second: Callable[[], None] | None = None, fast_loop: bool = False
) -> int:
    """Run `main` and return its exit code, or 128 + the signal's number when one ended it.

    The first signal cancels `main`, which then cleans up; a further one calls `on_second`. A terminal that closes ends
    nothing that `nohup` started. `fast_loop` is for what does thousands of small things: they take about a tenth less
    CPU on it, and it takes a moment to load.
    """
    if not fast_loop:
        return asyncio.run(_watch(main, on_second))
    import uvloop

    return uvloop.run(_watch(main, on_second))


async def _watch(main: Coroutine[Any, Any, int], on_second: Callable[[], None] | None) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(main)
    received: list[int] = []

    def interrupt(number: int) -> None:
        received.append(number)
        if len(received) == 1:
            task.cancel()
        elif on_second is not None:
            on_second()

    heeded = [number for number in _SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    for number in heeded:
        loop.add_signal_handler(number, interrupt, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0]
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)

"""Bounded, structured concurrency: many rows at once, outcomes in completion order, nothing left running at the end.

A driver task owns a task group with one task per admitted row, or, where nobody takes the outcomes, with as many tasks
as rows may run at once, each going on with the next row. It ends when every row has an outcome, or when it is
cancelled; either way every row's task has ended before it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from nemo_gym.records.codec import JsonObject

ResultT = TypeVar("ResultT")
_ROWS_IN_A_ROW = 64
"""After so many rows the loop gets its turn, also when none of them waited for anything."""


class Run(Protocol):
    """What a dispatch needs from the outside: what it does before, for each row, and at the end."""

    async def open(self) -> None:
        """Prepare; called once, before the first row."""

    async def background(self) -> None:
        """Run beside the rows until cancelled; an error here ends the dispatch."""

    async def run(self, row: JsonObject) -> Any:
        """Return the row's outcome, or raise."""

    async def close(self, error: BaseException | None, remaining: Iterator[JsonObject]) -> None:
        """Finish; `error` is None when every row has an outcome, `remaining` are the rows that were never started."""

    def is_fatal(self, error: BaseException) -> bool:
        """Return whether an error of one row ends the whole dispatch."""


class _Done(NamedTuple):
    row: JsonObject
    result: Any
    error: BaseException | None


class Dispatch:
    """The running side of one dispatch. Consumers take outcomes with `take`; `cancel` and `wait` end it."""

    def __init__(self, rows: Iterable[JsonObject], run: Run, *, max_resident: int | None, total: int | None) -> None:
        self._rows = iter(rows)
        self._run = run
        self._max_resident = max_resident
        self._slots = None if max_resident is None else asyncio.Semaphore(max_resident)
        self._total = total
        self._finished = 0
        self._unbegun: dict[int, JsonObject] = {}
        self._ready: deque[_Done] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._driver: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._ending = False
        self._closing: asyncio.Future[None] | None = None
        self._keeps_outcomes = True
        self.resident = 0
        self.most_resident = 0

    def start(self) -> None:
        """Begin; needs a running loop. Idempotent."""
        if self._driver is None:
            self._driver = asyncio.get_running_loop().create_task(self._drive(), name="gym-dispatch")
            self._driver.add_done_callback(_retrieve)

    def cancel(self) -> None:
        """Ask everything to end; safe from any thread and after the loop has closed."""
        driver = self._driver
        if driver is None or driver.done():
            return
        # A closed loop cannot run anything any more: there is nothing left to cancel.
        with contextlib.suppress(RuntimeError):
            driver.get_loop().call_soon_threadsafe(driver.cancel)

    async def aclose(self) -> None:
        """End everything and wait for it; idempotent."""
        if self._driver is not None and not self._driver.done():
            self._driver.cancel()
            await asyncio.wait({self._driver})

    async def take(self) -> tuple[JsonObject, Any]:
        """Return the next finished row and its outcome, or raise what that row raised."""
        self.start()
        while not self._ready:
            if self._driver is not None and self._driver.done():
                raise self._failure or asyncio.CancelledError("the dispatch was closed before this row finished")
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()
                else:
                    self._waiting.remove(waiter)
                raise
        done = self._ready.popleft()
        self._leave()
        if done.error is not None:
            raise done.error
        return done.row, done.result

    async def run_out(self) -> None:
        """Return when every row has run, outcomes being dropped; raise what ended the dispatch before."""
        self._keeps_outcomes = False
        self.start()
        assert self._driver is not None
        try:
            await asyncio.wait({self._driver})
        finally:
            await self.aclose()
        if self._failure is not None:
            raise self._failure

    async def _drive(self) -> None:
        error: BaseException | None = None
        try:
            await self._run.open()
            async with asyncio.TaskGroup() as outer:
                background = outer.create_task(self._run.background())
                async with asyncio.TaskGroup() as group:
                    await self._admit(group)
                background.cancel()
        except BaseExceptionGroup as raised:
            error = self._failure = _first(raised)
        except BaseException as raised:
            error = self._failure = raised
            raise
        finally:
            await self._close(error)
            self._wake_all()

    async def _admit(self, group: asyncio.TaskGroup) -> None:
        """Start a task for each row, in order, as places become free."""
        if not self._keeps_outcomes and self._max_resident is not None:
            for _ in range(self._max_resident if self._total is None else min(self._max_resident, self._total)):
                group.create_task(self._one_by_one())
            return
        while True:
            if self._slots is not None:
                await self._slots.acquire()
            row = next(self._rows, None)
            if row is None:
                return
            self._unbegun[id(row)] = row
            self._enter()
            group.create_task(self._one(row))

    async def _one_by_one(self) -> None:
        """Run the next row that nobody runs, until there is none."""
        for row in self._rows:
            self._enter()
            await self._one(row)
            if not self._finished % _ROWS_IN_A_ROW:
                await asyncio.sleep(0)

    async def _one(self, row: JsonObject) -> None:
        self._unbegun.pop(id(row), None)  # a caller may pass one object several times
        error: BaseException | None = None
        result: Any = None
        try:
            result = await self._run.run(row)
        except Exception as raised:  # noqa: BLE001 - it is raised again, from this row's awaitable
            error = raised
        self._finished += 1
        if error is not None and self._run.is_fatal(error):
            # Ends the group; whoever waits gets this error once everything is closed.
            self._ending = True
            raise error
        if self._finished == self._total and not self._ending:
            # The last outcome is handed over only when everything is closed, so that who has it finds complete files.
            await self._close(None)
        self._hand_over(_Done(row, result, error))

    async def _close(self, error: BaseException | None) -> None:
        """Close the run once, to its end: a cancellation waits for that, and what closing raises is raised once."""
        first = self._closing is None
        if self._closing is None:
            run, self._run = self._run, _CLOSED
            remaining = itertools.chain(self._unbegun.values(), self._rows)
            self._closing = asyncio.ensure_future(run.close(error, remaining))
        cancelled: asyncio.CancelledError | None = None
        while not self._closing.done():
            try:
                await asyncio.wait({self._closing})
            except asyncio.CancelledError as raised:
                cancelled = raised
        if first:
            self._closing.result()
        if cancelled is not None:
            raise cancelled

    def _hand_over(self, done: _Done) -> None:
        if self._keeps_outcomes:
            self._ready.append(done)
            self._wake()
        else:
            self.resident -= 1

    def _enter(self) -> None:
        self.resident += 1
        self.most_resident = max(self.most_resident, self.resident)

    def _leave(self) -> None:
        self.resident -= 1
        if self._slots is not None:
            self._slots.release()

    def _wake(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._waiting:
            self._wake()


class Completions(Generic[ResultT]):
    """What `run_examples` returns: awaitables of (row, result), one per row, in completion order.

    Iterate and await each (`for completion in completions: row, result = await completion`), or iterate with
    `async for row, result in completions`. Awaitables may be awaited concurrently. `aclose` ends everything that
    still runs and waits for it; leaving an `async with` block does the same. Cancelling a task that awaits one, and
    dropping the last reference, end everything too.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        *,
        total: int,
        start_on_next: bool,
        on_empty: Callable[[], None] | None = None,
    ) -> None:
        self._dispatch = dispatch
        self._left = total
        self._start_on_next = start_on_next and total > 0
        self._on_empty = on_empty if total == 0 else None

    def __iter__(self) -> Iterator[Awaitable[tuple[JsonObject, ResultT]]]:
        return self

    def __next__(self) -> Coroutine[Any, Any, tuple[JsonObject, ResultT]]:
        if self._start_on_next:
            self._dispatch.start()
        if self._left <= 0:
            self._end()
            raise StopIteration
        self._left -= 1
        return self._take()

    def __aiter__(self) -> AsyncIterator[tuple[JsonObject, ResultT]]:
        return self

    async def __anext__(self) -> tuple[JsonObject, ResultT]:
        if self._left <= 0:
            self._end()
            raise StopAsyncIteration
        self._left -= 1
        return await self._take()

    async def __aenter__(self) -> Completions[ResultT]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __len__(self) -> int:
        """How many results were not handed out yet."""
        return self._left

    async def aclose(self) -> None:
        """End every row that still runs, wait for it, and close the recording; idempotent."""
        self._left = 0
        await self._dispatch.aclose()

    def __del__(self) -> None:
        self._dispatch.cancel()

    def _end(self) -> None:
        on_empty, self._on_empty = self._on_empty, None
        if on_empty is not None:
            on_empty()

    async def _take(self) -> tuple[JsonObject, ResultT]:
        try:
            return await self._dispatch.take()
        except asyncio.CancelledError:
            self._left = 0
            self._dispatch.cancel()
            raise


class _Closed:
    async def open(self) -> None: ...

    async def background(self) -> None: ...

    async def run(self, row: JsonObject) -> Any: ...

    async def close(self, error: BaseException | None, remaining: Iterator[JsonObject]) -> None: ...

    def is_fatal(self, error: BaseException) -> bool:
        return True


_CLOSED: Run = _Closed()


def _retrieve(driver: asyncio.Task[None]) -> None:
    """Mark the driver's error as seen: consumers get it from their own awaitable."""
    if not driver.cancelled():
        driver.exception()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first plain exception in a group."""
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


__all__ = ["Completions", "Dispatch", "Run"]

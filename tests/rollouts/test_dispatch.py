"""A dispatch closes its run once and to the end, whatever happens meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from nemo_gym.rollouts.dispatch import Completions, Dispatch


class Run:
    """Rows that end when they are told to; closing takes until it is told to."""

    def __init__(self, *, closing_error=None):
        self.go = asyncio.Event()
        self.may_close = asyncio.Event()
        self.closing = asyncio.Event()
        self.closed_with = []
        self.begun = 0
        self.closing_error = closing_error

    async def open(self):
        pass

    async def background(self):
        await asyncio.Event().wait()

    async def run(self, row):
        self.begun += 1
        await self.go.wait()
        if row.get("fails"):
            raise ValueError("a row broke")
        return row

    async def close(self, error, remaining):
        self.closing.set()
        await self.may_close.wait()
        self.closed_with.append(error)
        if self.closing_error is not None:
            raise self.closing_error

    def is_fatal(self, error):
        return True


PLACES = pytest.mark.parametrize("places", [None, 8], ids=["a task per row", "tasks that go on"])


async def begun(run, rows, places):
    dispatch = Dispatch(rows, run, max_resident=places, total=len(rows))
    running = asyncio.ensure_future(dispatch.run_out())
    while run.begun < len(rows):
        await asyncio.sleep(0)
    return running


@PLACES
@pytest.mark.parametrize("failing", [0, 1, 2])
async def test_an_error_beside_the_last_rows_closes_the_run_with_it(failing, places):
    """The rows end in one turn of the loop, so the last one ends before the error has cancelled it."""
    run = Run()
    running = await begun(run, [{"fails": number == failing} for number in range(3)], places)
    run.may_close.set()
    run.go.set()
    with pytest.raises(ValueError, match="a row broke"):
        await running
    [error] = run.closed_with
    assert isinstance(error, ValueError)


@PLACES
@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancellation_waits_until_the_run_is_closed(times, places):
    run = Run()
    running = await begun(run, [{}, {}], places)
    run.go.set()
    await run.closing.wait()
    for _ in range(times):
        running.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    assert run.closed_with == []
    run.may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    for _ in range(20):
        await asyncio.sleep(0)
    assert run.closed_with == [None], "every row had ended before"


@PLACES
async def test_what_closing_raises_reaches_the_caller(places):
    run = Run(closing_error=OSError("the disk is full"))
    run.may_close.set()
    running = await begun(run, [{}], places)
    run.go.set()
    with pytest.raises(OSError, match="the disk is full"):
        await running
    assert len(run.closed_with) == 1


async def test_a_consumer_that_leaves_while_the_run_is_closed_waits_for_it():
    run = Run()
    completions = Completions(Dispatch([{}], run, max_resident=None, total=1), total=1, start_on_next=True)
    taking = asyncio.ensure_future(next(completions))
    run.go.set()
    await run.closing.wait()
    leaving = asyncio.ensure_future(completions.aclose())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not leaving.done()
    run.may_close.set()
    await leaving
    assert run.closed_with == [None]
    with pytest.raises(asyncio.CancelledError):
        await taking


class Instant:
    """Rows that end without waiting for anything."""

    def __init__(self):
        self.rows, self.left, self.turns = [], None, 0

    async def open(self):
        pass

    async def background(self):
        while True:
            self.turns += 1
            await asyncio.sleep(0)

    async def run(self, row):
        self.rows.append(row["number"])

    async def close(self, error, remaining):
        self.left = [row["number"] for row in remaining]

    def is_fatal(self, error):
        return True


@PLACES
async def test_rows_start_in_order_and_the_loop_gets_its_turns_also_when_no_row_waits(places):
    run = Instant()
    await Dispatch(({"number": number} for number in range(5000)), run, max_resident=places, total=5000).run_out()
    assert run.rows == list(range(5000))
    assert run.left == []
    assert places is None or run.turns >= 5000 // (64 * places)


async def test_a_cancelled_dispatch_hands_over_every_row_that_was_not_begun():
    run = Instant()
    rows = ({"number": number} for number in range(100_000))
    running = asyncio.ensure_future(Dispatch(rows, run, max_resident=8, total=100_000).run_out())
    while not run.rows:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert run.left
    assert run.rows + run.left == list(range(100_000))

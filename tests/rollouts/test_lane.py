"""Blocking work in batches: each caller gets its own outcome."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from nemo_gym.rollouts.budget import DispatchLatencyTracker
from nemo_gym.rollouts.lane import SLOW_RUNS, SLOW_S, Lane


async def test_each_caller_gets_its_own_value_or_error_and_one_thread_works_at_a_time():
    lane, busy, most, order = Lane(), [], [], []

    def work(number):
        busy.append(number)
        most.append(len(busy))
        order.append(number)
        busy.remove(number)
        if number % 3 == 0:
            raise ValueError(str(number))
        return number

    jobs = [asyncio.ensure_future(lane.run(lambda number=number: work(number))) for number in range(100)]
    outcomes = await asyncio.gather(*jobs, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == [str(number) for number in range(100)]
    assert [isinstance(outcome, ValueError) for outcome in outcomes] == [number % 3 == 0 for number in range(100)]
    assert order == list(range(100))
    assert max(most) == 1


async def test_cancelled_work_that_has_not_begun_is_left_out_and_the_lane_goes_on():
    lane, gate, done = Lane(), threading.Event(), []
    first = asyncio.ensure_future(lane.run(gate.wait))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(lane.run(lambda: done.append(2)))
    third = asyncio.ensure_future(lane.run(lambda: done.append(3)))
    await asyncio.sleep(0)
    second.cancel()
    gate.set()
    await asyncio.gather(first, third)
    with pytest.raises(asyncio.CancelledError):
        await second
    assert done == [3]
    await lane.run(lambda: done.append(4))
    assert done == [3, 4]


async def test_cancelled_work_that_has_begun_is_over_before_its_caller_is_told():
    lane, begun, gate, done = Lane(), threading.Event(), threading.Event(), []

    def work():
        begun.set()
        gate.wait(20)
        done.append(1)

    running = asyncio.ensure_future(lane.run(work))
    await asyncio.to_thread(begun.wait, 20)
    running.cancel()
    await asyncio.sleep(0)
    assert not running.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert done == [1]


async def test_short_work_is_done_at_once_until_it_is_slow_or_other_work_waits():
    lane, here = Lane(), threading.get_ident()
    assert await lane.run(threading.get_ident, short=True) == here
    assert await lane.run(threading.get_ident) != here
    gate = threading.Event()
    first = asyncio.ensure_future(lane.run(gate.wait))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(lane.run(threading.get_ident, short=True))
    await asyncio.sleep(0)
    assert not second.done()  # it came later
    gate.set()
    assert await second != here
    await first

    def slow():
        time.sleep(2 * SLOW_S)
        return threading.get_ident()

    assert [await lane.run(slow, short=True) for _ in range(SLOW_RUNS)] == [here] * SLOW_RUNS
    assert await lane.run(threading.get_ident, short=True) != here


async def test_short_work_that_fails_tells_its_caller_and_the_lane_goes_on():
    lane = Lane()
    with pytest.raises(ZeroDivisionError):
        await lane.run(lambda: 1 / 0, short=True)
    assert await lane.run(lambda: 1, short=True) == 1


def test_the_margin_of_many_durations_follows_them_closely():
    tracker = DispatchLatencyTracker()
    for number in range(1, 3001):
        tracker.record(number)
        margin = tracker.drain_margin(None)
        assert margin is None or abs(margin - tracker.quantile(0.75)) <= 0.02 * number + 1

"""What waits and what does not: the start of an answer, its end, and the deadline that all holds share."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nemo_gym.capture.hold import TerminalHold
from nemo_gym.capture.shared_timer import SharedTimer

ANSWER = b'{"id":"r"}'
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
STREAM_START = {**START, "headers": [(b"content-type", b"text/event-stream")]}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def test_start_and_body_go_out_in_one_turn_when_the_record_is_durable(captured: Any, tools: Any) -> None:
    """Servers put what they get in one turn into one packet."""
    turns: list[tuple[int, str]] = []
    turn = 0

    def count() -> None:
        nonlocal turn
        turn += 1
        ticking.append(asyncio.get_running_loop().call_soon(count))

    ticking: list[asyncio.Handle] = []

    async def note(message: dict[str, Any]) -> None:
        turns.append((turn, message["type"]))
        assert len(app.store.read("0-0")) == 1, "it could be read before anything was sent"

    app = captured(tools.json_app(ANSWER))
    count()
    answer = await app.call("/ng-rollout/0-0/v1/responses", on_message=note)
    ticking[-1].cancel()
    assert answer.body == ANSWER
    assert [kind for _, kind in turns] == ["http.response.start", "http.response.body"]
    assert turns[0][0] == turns[1][0]


async def test_a_start_does_not_wait_for_a_body_that_comes_later(captured: Any, tools: Any) -> None:
    started = asyncio.Event()

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await asyncio.wait_for(started.wait(), 10)
        await send(body(ANSWER))

    async def note(message: dict[str, Any]) -> None:
        started.set()

    app = captured(inner)
    answer = await app.call("/ng-rollout/0-0/v1/responses", on_message=note)
    assert [message["type"] for message in answer.messages] == ["http.response.start", "http.response.body"]
    assert app.lines()[0]["response"] == {"id": "r"}


async def test_a_slow_start_stays_before_the_body(captured: Any) -> None:
    """The server is still taking the start when the body comes."""

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        for _ in range(3):
            await asyncio.sleep(0)
        await send(body(ANSWER[:4], more=True))
        await send(body(ANSWER[4:]))

    ended: list[str] = []

    async def note(message: dict[str, Any]) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        ended.append(message["type"])

    app = captured(inner)
    answer = await app.call("/ng-rollout/0-0/v1/responses", on_message=note)
    assert answer.body == ANSWER
    assert ended == ["http.response.start", "http.response.body", "http.response.body"]


@pytest.mark.parametrize("pieces", [[ANSWER], [ANSWER[:3], ANSWER[3:]], [b"", ANSWER, b""], [ANSWER, b""]])
@pytest.mark.parametrize("turns", [0, 1])
async def test_an_answer_in_pieces_keeps_its_order(captured: Any, pieces: list[bytes], turns: int) -> None:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        for number, piece in enumerate(pieces, start=1):
            for _ in range(turns):
                await asyncio.sleep(0)
            await send(body(piece, more=number < len(pieces)))

    app = captured(inner)
    answer = await app.call("/ng-rollout/0-0/v1/responses")
    assert [message.get("body") for message in answer.messages] == [None, *pieces]
    assert app.lines()[0]["response"] == {"id": "r"}


@pytest.mark.parametrize("start", [START, STREAM_START])
async def test_what_was_begun_is_seen_outside_before_an_error_is(captured: Any, start: dict[str, Any]) -> None:
    """Who maps errors to answers must know that one has begun."""

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send(start)
        raise ValueError("after the start")

    seen: list[str] = []

    async def note(message: dict[str, Any]) -> None:
        seen.append(message["type"])

    app = captured(inner)
    with pytest.raises(ValueError, match="after the start"):
        await app.call("/ng-rollout/0-0/v1/responses", on_message=note)
    assert seen == ["http.response.start"]


async def test_an_application_that_sends_a_start_only_has_it_sent(captured: Any) -> None:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send(START)

    app = captured(inner)
    answer = await app.call("/ng-rollout/0-0/v1/responses")
    assert [message["type"] for message in answer.messages] == ["http.response.start"]
    assert len(app.lines()) == 1


async def test_sends_can_be_tasks(captured: Any) -> None:
    """Applications hand what `send` returns to tasks; it must be a coroutine on every way."""

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        content = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
        for message in (STREAM_START, body(content, more=True), body(content, more=True), body(b"data: [DONE]\n\n")):
            await asyncio.create_task(send(message))

    app = captured(inner)
    answer = await app.call("/ng-rollout/0-0/v1/chat/completions")
    assert answer.body.count(b"data:") == 3
    assert app.lines()[0]["response"]["choices"][0]["message"]["content"] == "aa"


async def test_holds_expire_in_order_unless_they_are_settled() -> None:
    loop = asyncio.get_running_loop()
    clock = SharedTimer(loop, 0.05)
    sent: list[int] = []

    def hold_of(number: int) -> TerminalHold:
        async def send(message: Any) -> None:
            sent.append(number)

        return TerminalHold(send, clock)

    holds = [hold_of(number) for number in range(6)]
    for hold in holds:
        await hold.put({"type": "http.response.body"})
        hold.recording = True
    holds[0].settle(True)
    holds[2].settle(False)
    holds[3].abandon()
    outcomes = await asyncio.gather(*(holds[number].release() for number in (0, 1, 2, 4, 5)))
    assert outcomes == [True, False, True, False, False]
    assert sorted(sent) == [0, 1, 2, 4, 5]
    late = hold_of(9)
    await late.put({"type": "http.response.body"})
    assert await late.release() is False, "the clock rings again after it had nothing to do"


async def test_settled_holds_are_not_kept_until_their_deadline() -> None:
    clock = SharedTimer(asyncio.get_running_loop(), 3600)

    async def send(message: Any) -> None:
        return

    for _ in range(1000):
        hold = TerminalHold(send, clock)
        await hold.put({"type": "http.response.body"})
        hold.settle(True)
        assert await hold.release()
    assert clock.waiting <= 2

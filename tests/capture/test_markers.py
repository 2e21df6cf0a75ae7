"""The lines that name a call without a record: none is lost, whoever writes them and whenever that becomes possible."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from nemo_gym.capture import CaptureStore, await_quiescence
from nemo_gym.capture.inspection import inspect_rollout
from nemo_gym.capture.markers import Marker, MarkerBook
from nemo_gym.capture.open_calls import OpenCallLedger, void_open_calls
from nemo_gym.capture.writer import CaptureWriter

CALL = "a" * 32


def _named(store: CaptureStore, rollout_id: str) -> dict[str, str]:
    return {call["model_call_id"]: call["reason"] for call in store.missing_calls(rollout_id, set())}


@pytest.fixture
def book(tmp_path: Path) -> tuple[CaptureStore, OpenCallLedger, MarkerBook]:
    store = CaptureStore(tmp_path)
    ledger = OpenCallLedger(tmp_path)
    return store, ledger, MarkerBook(store, ledger)


def test_a_line_that_cannot_be_written_is_owed_and_holds_up_no_other(
    book: tuple[CaptureStore, OpenCallLedger, MarkerBook],
) -> None:
    store, _, markers = book
    obstacle = store.incomplete_path_for("0-0")
    obstacle.mkdir()
    markers.write("0-0", [Marker("a", "full disk"), Marker("b", "full disk")])
    markers.write("0-1", [Marker("c", "full disk")])
    for _ in range(3):
        markers.pay()
    assert _named(store, "0-1") == {"c": "full disk"}
    obstacle.rmdir()
    markers.pay()
    assert not markers.owes
    assert _named(store, "0-0") == {"a": "full disk", "b": "full disk"}


def test_while_its_line_is_owed_a_call_stays_announced(book: tuple[CaptureStore, OpenCallLedger, MarkerBook]) -> None:
    store, ledger, markers = book
    slot = ledger.begin("0-0", CALL, 1.0)
    obstacle = store.incomplete_path_for("0-0")
    obstacle.mkdir()
    markers.write("0-0", [Marker(CALL, "full disk", slot)])
    assert [call.model_call_id for call in store.open_calls()] == [CALL]
    obstacle.rmdir()
    markers.pay()
    assert store.open_calls() == []
    assert _named(store, "0-0") == {CALL: "full disk"}


async def test_a_call_whose_line_is_owed_is_missing_and_not_waited_for(
    book: tuple[CaptureStore, OpenCallLedger, MarkerBook],
) -> None:
    """On a full disk every rollout would wait in vain, and who looks would be told that all is well."""
    store, ledger, markers = book
    slot, other = ledger.begin("0-0", CALL, 1.0), ledger.begin("0-0", "b" * 32, 1.0)
    ledger.end(other)
    obstacle = store.incomplete_path_for("0-0")
    obstacle.mkdir()
    markers.write("0-0", [Marker(CALL, "full disk", slot)])
    assert await await_quiescence(store, "0-0", timeout_s=60) == []
    obstacle.rmdir()
    assert store.is_incomplete("0-0")
    found = inspect_rollout(store, "0-0")
    assert (found.serving, [call["model_call_id"] for call in found.missing]) == (0, [CALL])
    assert _named(store, "0-0") == {CALL: "not written, nor could the marker be"}
    ledger.close()  # as its process would at its death
    assert store.recover() == 1
    assert _named(store, "0-0") == {CALL: "not written, nor could the marker be"}
    assert list((store.root / ".open-calls").iterdir()) == []


def test_a_slot_that_is_used_again_announces_a_call_that_is_served(
    book: tuple[CaptureStore, OpenCallLedger, MarkerBook],
) -> None:
    store, ledger, markers = book
    markers.write("0-0", [Marker(CALL, "full disk", ledger.begin("0-0", CALL, 1.0))])
    ledger.begin("0-1", "b" * 32, 1.0)
    assert [(call.model_call_id, call.served) for call in store.open_calls()] == [("b" * 32, True)]


def test_a_rollout_that_was_cleared_meanwhile_is_owed_nothing(
    book: tuple[CaptureStore, OpenCallLedger, MarkerBook],
) -> None:
    store, ledger, markers = book
    slot = ledger.begin("0-0", CALL, 1.0)
    obstacle = store.incomplete_path_for("0-0")
    obstacle.mkdir()
    markers.write("0-0", [Marker(CALL, "full disk", slot)])
    void_open_calls(store.root, "0-0")
    obstacle.rmdir()
    markers.pay()
    assert not markers.owes
    assert _named(store, "0-0") == {}


class _Slow(CaptureStore):
    """A store whose marker lines take until `go_on`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def mark_incomplete(self, rollout_id: str, *, model_call_id: str | None = None, reason: str | None = None) -> None:
        self.begun.set()
        assert self.go_on.wait(30)
        super().mark_incomplete(rollout_id, model_call_id=model_call_id, reason=reason)


@pytest.mark.parametrize("ending", ["flush", "close"])
def test_a_writer_that_ends_waits_for_lines_that_another_thread_writes(tmp_path: Path, ending: str) -> None:
    store = _Slow(tmp_path)
    writer = CaptureWriter(store)
    payer = threading.Thread(
        target=writer._markers.write, args=("0-0", [Marker(name, "full disk") for name in "abcde"])
    )
    payer.start()
    assert store.begun.wait(30)
    ended = threading.Thread(target=getattr(writer, ending))
    ended.start()
    ended.join(0.1)  # long enough for one that does not wait
    waited = ended.is_alive()
    store.go_on.set()
    ended.join(30)
    payer.join(30)
    assert waited
    assert sorted(_named(store, "0-0")) == list("abcde")
    writer.close()

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.capture import (
    CaptureStore,
    CaptureWriter,
    await_quiescence,
    open_calls,
    process,
    read_available_model_call_records,
)
from nemo_gym.capture.batch import CaptureFile, Job
from nemo_gym.capture.exchange import Exchange
from nemo_gym.capture.open_calls import OpenCallLedger
from nemo_gym.errors import DataError

CASES = Path(__file__).parents[1] / "cases" / "public-bugs"
RECORD_FILES = [
    entry
    for entry in map(json.loads, (CASES / "index.jsonl").read_text().splitlines())
    if entry["file"].startswith("records_")
]


def test_lines_end_at_newlines_and_nowhere_else(store: CaptureStore) -> None:
    pieces = [b'{"a":1}', b"a\rb", b"\x0b", b"\x1c", b"\xc2\x85", b"\xe2\x80\xa8", b" ", b"\r", b"", b"\x00", b"last"]
    for data in (b"\n".join(pieces), b"\n".join(pieces) + b"\n", b"\n" * 3, b""):
        store.path_for("0-0").write_bytes(data)
        found = [line.removesuffix(b"\n") for line in store.lines("0-0")]
        assert found == [line for line in data.split(b"\n") if line and not line.isspace()]


def test_record_appends_lines_that_read_gives_back_in_order(store: CaptureStore) -> None:
    for number in range(3):
        store.record("0-0", {"n": number, "path": Path("/x"), "odd": "\ud800"})
    assert [line["n"] for line in store.read("0-0")] == [0, 1, 2]
    assert store.path_for("0-0").name == "0-0.capture.jsonl"
    assert store.read("0-0")[0]["path"] == "/x"
    assert store.read("missing") == []


def test_files_are_for_the_owner_only(store: CaptureStore) -> None:
    store.record("0-0", {})
    store.mark_incomplete("0-0", model_call_id="c", reason="r")
    store.mark_incomplete("0-1")
    for path in store.root.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_root_is_made_with_its_parents(tmp_path: Path) -> None:
    assert CaptureStore(str(tmp_path / "a" / "b")).root == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("rollout_id", ["", ".", "..", ".hidden", "-x", "a/b", "a b", "é", "a\n", "a.", "x" * 201])
def test_an_unusable_id_raises_everywhere(store: CaptureStore, rollout_id: str) -> None:
    for method in (store.path_for, store.incomplete_path_for, store.read, store.read_available, store.mark_incomplete):
        with pytest.raises(ValueError):
            method(rollout_id)
    with pytest.raises(ValueError):
        store.record(rollout_id, {})
    assert list(store.root.iterdir()) == []


def test_the_longest_id_fits_into_file_names(store: CaptureStore) -> None:
    store.record("x" * 200, {})
    store.mark_incomplete("x" * 200)
    assert store.is_incomplete("x" * 200)


def test_strict_reading_names_the_damaged_line(store: CaptureStore) -> None:
    store.path_for("0-0").write_bytes(b'{"a":1}\n\n{"b":\n{"c":3}\n')
    with pytest.raises(DataError, match=r"line 3 \(byte 9\)"):
        store.read("0-0")
    lines, invalid = store.read_available("0-0")
    assert lines == [(0, {"a": 1}), (2, {"c": 3})]
    assert invalid == 1


def test_lines_of_another_type_are_left_to_other_readers(store: CaptureStore) -> None:
    store.path_for("0-0").write_bytes(b'{"type":"intent"}\n{"a":1}\n[]\n')
    assert store.read_available("0-0") == ([(1, {"a": 1})], 1)


@pytest.mark.parametrize("entry", RECORD_FILES, ids=[entry["file"] for entry in RECORD_FILES])
def test_publicly_reported_record_files_give_what_can_be_read(store: CaptureStore, entry: dict[str, Any]) -> None:
    store.path_for("0-0").write_bytes((CASES / entry["file"]).read_bytes())
    lines, invalid = store.read_available("0-0")
    expect = entry["expect"]
    assert [line["i"] for _, line in lines] == expect["loaded"]
    assert invalid == expect.get("damaged_lines", 0) + expect.get("torn_tail", 0)
    if expect.get("non_finite"):
        assert lines[0][1]["reward"] is None
        assert len(store.read("0-0")) == 2
    records, _ = read_available_model_call_records(store, "0-0")
    assert [record.call_index for record in records] == [index for index, _ in lines]


def test_an_append_after_a_torn_line_damages_nothing_else(store: CaptureStore) -> None:
    path = store.path_for("0-0")
    path.write_bytes(b'{"n":1}\n{"n":2,"x":"ab')
    store.record("0-0", {"n": 3})
    lines, invalid = store.read_available("0-0")
    assert [line["n"] for _, line in lines] == [1, 3]
    assert invalid == 1


def test_a_failed_write_leaves_no_half_line(store: CaptureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.record("0-0", {"n": 1})
    write, calls = os.write, []

    def short(fd: int, data: Any) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return write(fd, bytes(data)[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(OSError, match="No space"):
        store.record("0-0", {"n": 2, "text": "long enough to be cut"})
    monkeypatch.undo()
    assert store.path_for("0-0").read_bytes() == b'{"n":1}\n'


def test_a_short_write_is_continued(store: CaptureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:3]))
    store.record("0-0", {"n": 12345})
    assert store.read("0-0") == [{"n": 12345}]


def test_a_removed_directory_is_made_again(store: CaptureStore) -> None:
    store.root.rmdir()
    store.record("0-0", {"n": 1})
    assert store.read("0-0") == [{"n": 1}]


def test_the_marker_names_calls_until_they_arrive(store: CaptureStore) -> None:
    assert not store.is_incomplete("0-0")
    store.mark_incomplete("0-0", model_call_id="c1", reason="full disk")
    (line,) = map(json.loads, store.incomplete_path_for("0-0").read_text().splitlines())
    assert set(line) == {"time", "model_call_id", "reason"}
    assert store.is_incomplete("0-0")
    assert [call["model_call_id"] for call in store.missing_calls("0-0", set())] == ["c1"]
    store.record("0-0", {"model_call_id": "c1"})
    assert not store.is_incomplete("0-0")


def test_an_empty_or_unreadable_marker_counts(store: CaptureStore) -> None:
    store.mark_incomplete("0-0")
    assert store.incomplete_path_for("0-0").read_bytes() == b""
    assert store.is_incomplete("0-0")
    store.incomplete_path_for("0-1").write_bytes(b"garbage\n")
    assert store.is_incomplete("0-1")


def test_deleting_takes_both_files_and_only_that_rollout(store: CaptureStore) -> None:
    for rollout_id in ("0-0", "0-0-a1"):
        store.record(rollout_id, {})
        store.mark_incomplete(rollout_id)
    store.delete("0-0")
    store.delete("0-0")
    assert sorted(path.name for path in store.root.iterdir()) == [
        "0-0-a1.capture.incomplete",
        "0-0-a1.capture.jsonl",
    ]


async def test_quiescence_waits_for_calls_of_any_process(store: CaptureStore) -> None:
    ledger = OpenCallLedger(store.root)
    slot = ledger.begin("0-0", "a" * 32, 1.0)
    ledger.begin("0-1", "b" * 32, 2.0)
    assert [call.model_call_id for call in await await_quiescence(store, "0-0", 0.03)] == ["a" * 32]
    waiting = asyncio.create_task(await_quiescence(store, "0-0", 10))
    await asyncio.sleep(0)
    ledger.end(slot)
    assert await waiting == []
    assert [call.rollout_id for call in store.open_calls()] == ["0-1"]


def test_slots_are_used_again(store: CaptureStore) -> None:
    ledger = OpenCallLedger(store.root)
    for number in range(100):
        ledger.end(ledger.begin("0-0", f"{number:032}", 1.0))
    (path,) = (store.root / ".open-calls").iterdir()
    assert path.stat().st_size == 2 * 288, "one for the head, one for the call"
    ledger.close()
    assert list((store.root / ".open-calls").iterdir()) == []


def test_without_room_for_announcements_capture_goes_on(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    (tmp_path / ".open-calls").write_text("in the way")
    ledger = OpenCallLedger(store.root)
    assert ledger.begin("0-0", "a" * 32, 1.0) is None
    ledger.end(None)
    assert not ledger.is_void(None, "a" * 32)
    assert store.open_calls() == []


@pytest.mark.parametrize("removed", ["file", "folder", "root"])
def test_calls_are_announced_again_after_their_file_was_removed(tmp_path: Path, removed: str) -> None:
    """Otherwise a call that dies with its process misses silently, for as long as the server has run before."""
    store = CaptureStore(tmp_path / "captures")
    ledger = OpenCallLedger(store.root)
    served, ended = ledger.begin("0-0", "a" * 32, 1.0), ledger.begin("0-1", "b" * 32, 1.0)
    folder = store.root / ".open-calls"
    if removed == "file":
        next(folder.iterdir()).unlink()
    else:
        shutil.rmtree(folder if removed == "folder" else store.root)
    assert not folder.exists() or not list(folder.iterdir())
    ledger.end(ended)
    ledger._look_at = 0.0
    ledger.begin("0-2", "c" * 32, 3.0)
    assert sorted(call.rollout_id for call in store.open_calls()) == ["0-0", "0-2"]
    assert all(call.alive for call in store.open_calls())
    store.delete("0-0")
    assert ledger.is_void(served, "a" * 32), "clearing reaches what began before the removal"
    ledger.close()
    assert not any(call.alive for call in open_calls.open_calls(store.root)), "the new file's lock is given back"


def test_calls_are_announced_as_soon_as_there_is_room(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    (tmp_path / ".open-calls").write_text("in the way")
    ledger = OpenCallLedger(store.root)
    assert ledger.begin("0-0", "a" * 32, 1.0) is None
    (tmp_path / ".open-calls").unlink()
    ledger._look_at = 0.0
    assert ledger.begin("0-1", "b" * 32, 2.0) is not None
    assert [call.rollout_id for call in store.open_calls()] == ["0-1"]


def test_a_call_that_could_not_be_announced_takes_no_slot(tmp_path: Path) -> None:
    ledger = OpenCallLedger(tmp_path)
    ledger.end(ledger.begin("0-0", "a" * 32, 1.0))
    held = ledger.begin("0-0", "b" * 32, 1.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * 288, hard))
    try:
        assert [ledger.begin("0-0", f"{number:032}", 1.0) for number in range(5)] == [None] * 5
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    ledger.end(ledger.begin("0-0", "c" * 32, 1.0))
    ledger.end(held)
    (path,) = (tmp_path / ".open-calls").iterdir()
    assert path.stat().st_size == 3 * 288, "one for the head, two for the calls"
    ledger.close()
    assert not path.exists()


async def test_a_call_begun_before_a_clear_is_not_recorded_after_it_c11(captured: Any, tools: Any) -> None:
    """A killed attempt that is redispatched under its id must not find the old attempt's late calls."""
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        inside.set()
        await go_on.wait()
        await tools.json_app(b"{}")(scope, receive, send)

    app = captured(inner)
    old = asyncio.create_task(app.call("/ng-rollout/0-0/v1/responses"))
    await inside.wait()
    app.store.delete("0-0")
    assert app.store.open_calls("0-0") == []
    go_on.set()
    assert (await old).status == 200
    new = await app.call("/ng-rollout/0-0/v1/responses")
    assert [line["model_call_id"] for line in app.lines()] == [new.headers["x-ng-model-call-id"]]
    assert app.writer.counters.void == 1


def test_a_writer_survives_a_fork(store: CaptureStore) -> None:
    own = CaptureWriter(store)

    def one(call_id: str) -> None:
        exchange = Exchange(model_call_id=call_id, rollout_id="0-0", dialect="chat", model_ref=b"null")
        exchange.status, exchange.response_complete = 200, True
        own.submit(exchange, own.ledger.begin("0-0", call_id, 1.0))

    one("a" * 32)
    assert own.flush(10)
    pid = os.fork()
    if pid == 0:
        one("b" * 32)
        os._exit(0 if own.flush(10) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    one("c" * 32)
    assert own.flush(10)
    assert sorted(line["model_call_id"][0] for line in store.read("0-0")) == ["a", "b", "c"]
    own.close()


def test_a_line_that_does_not_fit_takes_no_other_with_it(store: CaptureStore, caplog: pytest.LogCaptureFixture) -> None:
    """A real limit on the file's size: the large call is marked, the small ones around it are recorded (C3)."""
    own = CaptureWriter(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, hard))
    try:
        with own._lock:  # queue the three while nothing can be taken, so that they are one batch
            own._files["0-0"] = file = CaptureFile("0-0", str(store.path_for("0-0")))
            for call_id, size in (("a" * 32, 10), ("b" * 32, 600 << 10), ("c" * 32, 10)):
                exchange = Exchange(model_call_id=call_id, rollout_id="0-0", dialect="chat", model_ref=b"null")
                exchange.request.add(b"x" * size)
                file.jobs.append(Job(exchange, own.ledger.begin("0-0", call_id, 1.0), None))
            own._fresh.append(file)
        assert own.flush(10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [line["model_call_id"][0] for line in store.read("0-0")] == ["a", "c"]
    assert [call["model_call_id"][0] for call in store.missing_calls("0-0", {"a" * 32, "c" * 32})] == ["b"]
    assert (own.counters.written, own.counters.failed) == (2, 1)
    assert "was not recorded" in caplog.text
    assert store.open_calls() == []
    own.close()


def test_an_exchange_that_cannot_become_a_line_is_marked(store: CaptureStore) -> None:
    own = CaptureWriter(store)
    exchange = Exchange(model_call_id="a" * 32, rollout_id="0-0", dialect="chat", model_ref=b"null")
    exchange.model_ref = "no bytes"  # type: ignore[assignment]
    own.submit(exchange, own.ledger.begin("0-0", "a" * 32, 1.0))
    assert own.flush(10)
    assert own.counters.failed == 1
    assert store.is_incomplete("0-0")
    own.close()


def test_call_ids_are_never_shared_with_a_fork() -> None:
    process.new_call_id()  # there is a supply, which a child inherits
    readers, children = [], []
    for _ in range(3):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:  # pragma: no cover - another process
            os.write(write, "".join(process.new_call_id() for _ in range(300)).encode() + b"%d" % process.pid)
            os._exit(0)
        os.close(write)
        readers.append(read)
        children.append(pid)
    ids = [process.new_call_id() for _ in range(300)]
    for read, pid in zip(readers, children, strict=True):
        with os.fdopen(read, "rb") as pipe:
            said = pipe.read().decode()
        os.waitpid(pid, 0)
        ids += [said[at : at + 32] for at in range(0, 9600, 32)]
        assert said[9600:] == str(pid)
    assert len(set(ids)) == 1200
    assert all(len(bytes.fromhex(call_id)) == 16 for call_id in ids)

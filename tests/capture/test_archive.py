from __future__ import annotations

import pytest

from nemo_gym.capture import CaptureStore, read_model_call_records
from nemo_gym.errors import DataError


def fill(store: CaptureStore, turns: int) -> list[dict[str, object]]:
    history: list[dict[str, object]] = []
    for turn in range(turns):
        history.append({"role": "user", "content": f"{turn} " + str(hash((turn, "salt"))) * 100})
        store.record("0-0", {"model_call_id": str(turn), "request": {"messages": history}})
    return store.read("0-0")


def test_a_sealed_capture_reads_as_before_and_is_much_smaller(store: CaptureStore) -> None:
    lines = fill(store, 50)
    size = store.path_for("0-0").stat().st_size
    assert store.seal("0-0")
    (sealed,) = store.root.iterdir()
    assert sealed.name == "0-0.capture.jsonl.zst"
    assert sealed.stat().st_size * 20 < size
    assert store.read("0-0") == lines
    assert len(read_model_call_records(store, "0-0")) == 50
    assert not store.seal("0-0")


def test_lines_after_sealing_come_behind_and_can_be_sealed_too(store: CaptureStore) -> None:
    fill(store, 2)
    store.seal("0-0")
    store.record("0-0", {"model_call_id": "late"})
    assert [line["model_call_id"] for line in store.read("0-0")] == ["0", "1", "late"]
    assert store.seal("0-0")
    assert [line["model_call_id"] for line in store.read("0-0")] == ["0", "1", "late"]


def test_a_crash_between_sealing_and_removing_doubles_nothing(store: CaptureStore) -> None:
    fill(store, 3)
    data = store.path_for("0-0").read_bytes()
    store.seal("0-0")
    store.path_for("0-0").write_bytes(data)
    assert len(store.read("0-0")) == 3


def test_a_damaged_sealed_file_is_named(store: CaptureStore) -> None:
    fill(store, 1)
    store.seal("0-0")
    (sealed,) = store.root.iterdir()
    sealed.write_bytes(sealed.read_bytes()[:-5])
    with pytest.raises(DataError, match="zst"):
        store.read("0-0")


def test_deleting_takes_the_sealed_file_too(store: CaptureStore) -> None:
    fill(store, 1)
    store.seal("0-0")
    store.delete("0-0")
    assert list(store.root.iterdir()) == []
    assert store.read("0-0") == []

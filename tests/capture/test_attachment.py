from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.capture import (
    CaptureStore,
    attach_model_call_capture,
    clear_model_call_captures_for_rollouts,
)

ROW = {"_ng_task_index": 3, "_ng_rollout_index": 1, "_ng_attempt_index": 2}
ID = "3-1-a2"
CALL = {
    "model_call_id": "c1",
    "dialect": "chat",
    "request": {"messages": []},
    "response": {"id": "r1", "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
    "response_raw": "text",
    "latency_ms": 5,
}


def attach(store: CaptureStore, record: dict[str, Any], *, payloads: bool = False, row: Any = ROW) -> Any:
    return attach_model_call_capture(record, row=row, capture_dirs=[store.root], include_payloads=payloads)


def codes(record: dict[str, Any]) -> list[Any]:
    return [(gap["code"], gap.get("detail")) for gap in record["ng_model_call_capture"].get("gaps", [])]


def test_attachment_is_additive_and_leaves_payloads_out_c18_c19(store: CaptureStore) -> None:
    store.record(ID, CALL)
    record = {"reward": 1.0, "response": {"output": [], "token_ids": [1]}, "logprobs": [0.1]}
    before = copy.deepcopy(record)
    attached = attach(store, record)
    capture = record.pop("ng_model_call_capture")
    assert record == before
    assert attached.capture is capture
    assert attached.complete
    assert list(capture) == ["rollout_id", "metrics", "calls"]
    assert capture["rollout_id"] == ID
    assert capture["metrics"] == {
        "tokens_in": 1,
        "tokens_out": 2,
        "tokens_reasoning": None,
        "tokens_total": 3,
        "cached_tokens": None,
        "latency_total_ms": 5.0,
        "num_calls": 1,
    }
    assert not {"request", "response", "request_raw", "response_raw"} & set(capture["calls"][0])


def test_payloads_are_attached_when_asked_for(store: CaptureStore) -> None:
    store.record(ID, CALL)
    record: dict[str, Any] = {}
    attach(store, record, payloads=True)
    (call,) = record["ng_model_call_capture"]["calls"]
    assert call["request"] == CALL["request"]
    assert call["response_raw"] == "text"


def test_nothing_happens_without_directories_or_identity(store: CaptureStore) -> None:
    record: dict[str, Any] = {}
    assert attach(store, record, row={"_ng_task_index": 1}) is None
    assert attach_model_call_capture(record, row=ROW, capture_dirs=[], include_payloads=True) is None
    assert record == {}


def test_no_file_is_a_gap(store: CaptureStore) -> None:
    record: dict[str, Any] = {}
    assert not attach(store, record).complete
    assert codes(record) == [("model_call_capture_no_records", None)]
    assert record["ng_model_call_capture"]["metrics"]["num_calls"] == 0
    store.path_for(ID).touch()
    attach(store, record)
    assert codes(record) == [("model_call_capture_no_records", None)]


def test_damaged_lines_are_counted_and_the_good_ones_kept(store: CaptureStore) -> None:
    store.record(ID, CALL)
    with store.path_for(ID).open("ab") as file:
        file.write(b"damaged\n[]\n")
    store.record(ID, CALL)
    record: dict[str, Any] = {}
    attach(store, record)
    assert codes(record) == [("model_call_capture_records_unreadable", "count=2")]
    assert [call["call_index"] for call in record["ng_model_call_capture"]["calls"]] == [0, 3]


def test_a_marker_is_a_gap_instead_of_no_records(store: CaptureStore) -> None:
    store.mark_incomplete(ID)
    record: dict[str, Any] = {}
    attach(store, record)
    assert codes(record) == [("model_call_capture_incomplete", None)]


def test_a_marker_that_names_calls_names_them_in_the_gap(store: CaptureStore) -> None:
    store.record(ID, CALL)
    store.mark_incomplete(ID, model_call_id="c1", reason="late")
    store.mark_incomplete(ID, model_call_id="c2", reason="full disk")
    record: dict[str, Any] = {}
    attach(store, record)
    assert codes(record) == [("model_call_capture_incomplete", "calls=c2")]


def test_a_capture_that_cannot_be_opened_is_a_gap(store: CaptureStore) -> None:
    store.path_for(ID).mkdir()
    record: dict[str, Any] = {}
    attach(store, record)
    assert codes(record) == [("model_call_capture_unreadable", None)]
    assert record["ng_model_call_capture"]["calls"] == []


def test_an_unusable_explicit_id_raises(store: CaptureStore) -> None:
    with pytest.raises(ValueError):
        attach(store, {}, row={"_ng_rollout_id": "../x"})


def test_clearing_removes_exactly_the_ids_about_to_be_dispatched_c11(store: CaptureStore) -> None:
    for rollout_id in ("3-1", "3-1-a1", ID, "3-2"):
        store.record(rollout_id, CALL)
        store.mark_incomplete(rollout_id)
    clear_model_call_captures_for_rollouts([ROW, {"no": "identity"}], [store.root])
    assert sorted(path.name for path in store.root.iterdir()) == sorted(
        f"{rollout_id}.capture.{kind}" for rollout_id in ("3-1", "3-1-a1", "3-2") for kind in ("jsonl", "incomplete")
    )
    clear_model_call_captures_for_rollouts([{"_ng_rollout_id": "x"}], [])


def test_several_directories_are_read_one_after_the_other(tmp_path: Path) -> None:
    stores = [CaptureStore(tmp_path / name) for name in ("a", "b")]
    for number, store in enumerate(stores):
        store.record(ID, {"model_call_id": str(number)})
    record: dict[str, Any] = {}
    attach_model_call_capture(record, row=ROW, capture_dirs=[store.root for store in stores], include_payloads=False)
    calls = record["ng_model_call_capture"]["calls"]
    assert [(call["call_index"], call["model_call_id"]) for call in calls] == [(0, "0"), (1, "1")]

"""The strict evidence records: what the schemas accept, refuse and say."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.records.codec import Encoded, encode
from nemo_gym.records.conversation import ITEM_TYPES, checked_item, checked_items
from nemo_gym.records.evidence import (
    AgentInvocation,
    AgentObservationBundle,
    ModelCallRef,
    ToolCallObservation,
    TrajectoryModelCall,
    TrajectoryRecord,
    ValidationError,
    dump,
    dump_to_write,
    read,
    with_model_calls,
)

SERVER = {"type": "responses_api_models", "name": "policy"}


def turn(**changes):
    return {
        "invocation_id": "root",
        "task_id": "t",
        "rollout_id": "r",
        "turn_no": 1,
        "timestamp": 1.0,
        "step_count": 0,
        **changes,
    }


def trajectory(**changes):
    return {"task_id": "t", "rollout_id": "r", **changes}


def tool(**changes):
    return {"kind": "tool_call", "invocation_id": "root", "tool_call_id": "t1", **changes}


def invocation(name, **changes):
    return {"kind": "agent_invocation", "invocation_id": name, **changes}


def bundle(*records):
    return {"source": "a", "records": list(records)}


ACCEPTED = {
    "reference by id": (ModelCallRef, {"model_call_id": "c"}),
    "reference by pair": (ModelCallRef, {"model_ref": SERVER, "response_id": "r"}),
    "empty id beside a pair": (ModelCallRef, {"model_call_id": "", "model_ref": SERVER, "response_id": "r"}),
    "duration alone": (ToolCallObservation, tool(duration_ms=5)),
    "duplicate tools in a bundle": (AgentObservationBundle, bundle(tool(), tool())),
    "duplicate tools in a trajectory": (TrajectoryRecord, trajectory(tool_calls=[tool(), tool()])),
    "absent parent": (AgentObservationBundle, bundle(invocation("x", parent_invocation_id="gone"))),
    "self-parent in a trajectory": (
        TrajectoryRecord,
        trajectory(invocations=[invocation("x", parent_invocation_id="x")]),
    ),
    "turn of an unknown invocation": (TrajectoryRecord, trajectory(turns=[turn(invocation_id="nobody")])),
    "same turn number in two invocations": (
        TrajectoryRecord,
        trajectory(turns=[turn(), turn(invocation_id="other")]),
    ),
    "two calls without an id": (TrajectoryRecord, trajectory(model_calls=[{}, {}])),
    "int where a float is due": (ToolCallObservation, tool(started_at=1, completed_at=2)),
}

REFUSED = {
    "reference to nothing": (ModelCallRef, {}),
    "pair with an empty response id": (ModelCallRef, {"model_ref": SERVER, "response_id": ""}),
    "server of another type": (
        ModelCallRef,
        {"model_ref": {"type": "resources_servers", "name": "x"}, "response_id": "r"},
    ),
    "extra key in a server reference": (ModelCallRef, {"model_ref": {**SERVER, "x": 1}, "response_id": "r"}),
    "negative duration": (ToolCallObservation, tool(duration_ms=-1)),
    "NaN duration": (ToolCallObservation, tool(duration_ms=math.nan)),
    "infinite duration": (ToolCallObservation, tool(duration_ms=math.inf)),
    "NaN start": (ToolCallObservation, tool(started_at=math.nan)),
    "end before start": (ToolCallObservation, tool(started_at=2.0, completed_at=1.0)),
    "unknown status": (ToolCallObservation, tool(status="done")),
    "unknown field": (ToolCallObservation, tool(surprise=1)),
    "self-parent in a bundle": (AgentObservationBundle, bundle(invocation("x", parent_invocation_id="x"))),
    "parent cycle in a bundle": (
        AgentObservationBundle,
        bundle(invocation("x", parent_invocation_id="y"), invocation("y", parent_invocation_id="x")),
    ),
    "repeated invocation in a bundle": (AgentObservationBundle, bundle(invocation("x"), invocation("x"))),
    "record without a kind": (AgentObservationBundle, bundle({"invocation_id": "x"})),
    "record of an unknown kind": (AgentObservationBundle, bundle({"kind": "thought"})),
    "repeated invocation in a trajectory": (
        TrajectoryRecord,
        trajectory(invocations=[invocation("x"), invocation("x")]),
    ),
    "turn number 0": (TrajectoryRecord, trajectory(turns=[turn(turn_no=0)])),
    "repeated turn number": (TrajectoryRecord, trajectory(turns=[turn(), turn()])),
    "turn of another task": (TrajectoryRecord, trajectory(turns=[turn(task_id="other")])),
    "turn of another rollout": (TrajectoryRecord, trajectory(turns=[turn(rollout_id="other")])),
    "turn without a timestamp": (TrajectoryRecord, trajectory(turns=[turn(timestamp=None)])),
    "another schema version": (TrajectoryRecord, trajectory(schema_version="2.0")),
    "repeated call id": (TrajectoryRecord, trajectory(model_calls=[{"model_call_id": "c"}, {"model_call_id": "c"}])),
    "bool for an int": (TrajectoryModelCall, {"token_stats": {"prompt_tokens": True}}),
    "text for an int": (TrajectoryModelCall, {"token_stats": {"prompt_tokens": "3"}}),
    "float for an int": (TrajectoryModelCall, {"token_stats": {"prompt_tokens": 3.0}}),
    "negative count": (TrajectoryModelCall, {"token_stats": {"prompt_tokens": -1}}),
    "unknown conversation item": (AgentInvocation, invocation("x", conversation=[{"type": "thought"}])),
    "conversation item that is no object": (AgentInvocation, invocation("x", conversation=["hi"])),
    "function call without an id": (
        AgentInvocation,
        invocation("x", conversation=[{"type": "function_call", "name": "f", "arguments": "{}"}]),
    ),
    "message of an unknown role": (AgentInvocation, invocation("x", conversation=[{"role": "robot", "content": "x"}])),
    "not an object": (TrajectoryRecord, []),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepts_what_the_schema_allows(name):
    kind, data = ACCEPTED[name]
    read(kind, data)


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_a_validation_error_what_the_schema_forbids(name):
    kind, data = REFUSED[name]
    with pytest.raises(ValidationError) as caught:
        read(kind, data)
    assert type(caught.value).__name__ == "ValidationError"


def test_an_error_names_the_path_of_the_bad_value():
    with pytest.raises(ValidationError, match=r"\$\.records\[1\]\.duration_ms"):
        read(AgentObservationBundle, bundle(invocation("x"), tool(duration_ms=-1)))
    with pytest.raises(ValidationError, match=r"conversation\[1\].*\$\.records\[0\]"):
        read(AgentObservationBundle, bundle(invocation("x", conversation=[{"role": "user", "content": ""}, 5])))


def test_payloads_are_kept_by_reference_and_never_copied():
    item = {"type": "function_call_output", "call_id": "t", "output": "x"}
    body = {"input": [item]}
    assert read(AgentInvocation, invocation("x", conversation=[item])).conversation[0] is item
    assert dump(read(TrajectoryModelCall, {"request": body}))["request"] is body


def test_an_untyped_item_gets_the_type_that_its_shape_implies_and_the_input_stays_as_it_was():
    items = [
        {"role": "user", "content": "q"},
        {"call_id": "t", "name": "f", "arguments": "{}"},
        {"call_id": "t", "output": "x"},
        {"id": "r", "summary": []},
    ]
    read_items = read(AgentInvocation, invocation("x", conversation=items)).conversation
    assert [item["type"] for item in read_items] == ["message", "function_call", "function_call_output", "reasoning"]
    assert all("type" not in item for item in items)


def test_a_dump_reads_back_equal_and_has_every_field():
    record = read(
        TrajectoryRecord,
        trajectory(
            invocations=[invocation("x", model_calls=[{"model_call_id": "c"}])],
            turns=[turn()],
            model_calls=[{"model_call_id": "c"}],
            tool_calls=[tool(output="x")],
            gaps=[{"code": "g"}],
        ),
    )
    dumped = dump(record)
    assert read(TrajectoryRecord, dumped) == record
    assert dumped["model_calls"][0]["token_stats"] == dict.fromkeys(
        ("prompt_tokens", "completion_tokens", "reasoning_tokens", "total_tokens", "cached_tokens")
    )
    assert dumped["invocations"][0]["kind"] == "agent_invocation"


_ITEMS = st.dictionaries(
    st.sampled_from(["type", "role", "content", "call_id", "name", "arguments", "output", "id", "summary"]),
    st.sampled_from(["message", "user", "x", None, 1, []]) | st.sampled_from(sorted(ITEM_TYPES)),
)


@given(st.lists(_ITEMS | st.sampled_from([None, "hi", {"role": "user", "content": ""}]), max_size=4))
def test_a_list_of_items_is_checked_as_each_of_them_is(items: list[Any]) -> None:
    before = list(items)
    expected: list[Any] = []
    reason = None
    try:
        expected += map(checked_item, items)
    except ValueError as error:
        reason = f"conversation[{len(expected)}]: {error}"
    if reason is None:
        checked = checked_items(items)
        assert checked == expected
        assert (checked is items) == all(one is other for one, other in zip(expected, items, strict=True))
    else:
        with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
            checked_items(items)
    assert items == before


_PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(_PAYLOADS)
def test_what_is_only_written_is_written_as_any_dump_is(payload: Any) -> None:
    """Also where the payload holds what fast JSON refuses: lone surrogates, integers of any size, NaN."""
    body = Encoded(b'{"input": "q"}')
    bundle_record = read(
        AgentObservationBundle,
        bundle(
            invocation("x", model_calls=[{"model_call_id": "c", "model_ref": SERVER}], conversation=[_output(payload)]),
            tool(invocation_id="x"),
            {"kind": "context_compaction", "invocation_id": "x", "model_calls": [{"model_call_id": "c"}]},
            {"kind": "sandbox", "role": "agent"},
        ),
    )
    record = read(
        TrajectoryRecord,
        trajectory(
            invocations=[invocation("x", conversation=[_output(payload)])],
            turns=[turn(invocation_id="x", question=payload)],
            model_calls=[{"model_call_id": "c", "request": payload}, {"request": body, "response": body}],
            tool_calls=[tool(output=payload)],
            gaps=[{"code": "g"}],
        ),
    )
    for whole in (bundle_record, record):
        assert json.loads(encode(dump_to_write(whole))) == json.loads(encode(dump(whole)))
        assert dump_to_write(whole)["gaps"] == dump(whole)["gaps"]


@pytest.mark.parametrize("payload", ["\ud800", {"deep": object()}, {None: 1}])
def test_a_list_that_holds_what_only_the_codec_can_write_is_dumped(payload: Any) -> None:
    record = read(TrajectoryRecord, trajectory(tool_calls=[tool(output=payload)], turns=[turn()]))
    dumped = dump_to_write(record)
    assert dumped["tool_calls"] == dump(record)["tool_calls"]
    assert type(dumped["turns"]) is Encoded


def test_a_copy_with_other_references_is_the_same_record_otherwise() -> None:
    items = [{"role": "user", "content": ""}]
    record = read(AgentInvocation, invocation("x", conversation=items, model_calls=[{"model_call_id": "c"}]))
    refs = [ModelCallRef(model_call_id="d")]
    copied = with_model_calls(record, refs)
    assert copied == msgspec.structs.replace(record, model_calls=refs)
    assert copied.conversation is record.conversation
    assert record.model_calls == [ModelCallRef(model_call_id="c")]


def _output(payload: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "t", "output": payload}

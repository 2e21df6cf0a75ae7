"""The public pydantic models agree with the records that the core uses."""

from __future__ import annotations

import copy
import json
import math
import types
import typing

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym import rollout_observability as door
from nemo_gym.records import evidence, observation_models

NAMES = observation_models.__all__
SERVER = {"type": "responses_api_models", "name": "policy"}
REF = {"model_call_id": "c", "model_ref": SERVER, "response_id": "r"}
TOOL = {
    "kind": "tool_call",
    "invocation_id": "root",
    "tool_call_id": "t1",
    "sandbox_id": "s",
    "tool_name": "bash",
    "started_at": 1.0,
    "completed_at": 2.0,
    "duration_ms": 5.0,
    "timing_source": "executor",
    "status": "completed",
    "error_type": "e",
}
INVOCATION = {
    "kind": "agent_invocation",
    "invocation_id": "root",
    "parent_invocation_id": "p",
    "spawned_by_tool_call_id": "t",
    "status": "failed",
    "duration_ms": 1.0,
    "error_type": "e",
    "model_calls": [REF, {"model_call_id": "d"}],
    "conversation": [
        {"role": "user", "content": "q"},
        {"type": "function_call", "call_id": "t1", "name": "f", "arguments": "{}"},
    ],
}
CALL = {
    "model_call_id": "c",
    "started_at": 1.0,
    "completed_at": 2.0,
    "duration_ms": 3.0,
    "request": {"input": "x"},
    "response": "text",
    "response_metadata": {
        "response_id": "r",
        "model_ref": SERVER,
        "model": "m",
        "dialect": "chat",
        "status_code": 200,
        "response_status": "completed",
        "finish_reason": "stop",
        "upstream_attempted": True,
        "response_source": "upstream",
        "upstream_status_code": 200,
        "local_response_reason": "x",
        "error_category": "y",
        "latency_ttft_ms": 1.0,
    },
    "token_stats": {
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "reasoning_tokens": 0,
        "total_tokens": 3,
        "cached_tokens": 0,
    },
}
TURN = {
    "invocation_id": "root",
    "task_id": "t",
    "rollout_id": "r",
    "turn_no": 1,
    "timestamp": 1.0,
    "question": [1],
    "answer": "a",
    "reasoning_content": None,
    "resolved": True,
    "step_count": 0,
    "model_calls": [REF],
}
BUNDLE = {
    "source": "a",
    "records": [
        INVOCATION,
        {**INVOCATION, "invocation_id": "p", "parent_invocation_id": None},
        TOOL,
        {
            "kind": "context_compaction",
            "invocation_id": "root",
            "observed_at": 1.0,
            "trigger": "auto",
            "tokens_before": 5,
            "tokens_after": 1,
            "outcome": "completed",
            "summary": "s",
            "first_kept_item_id": "i",
            "before_model_call": REF,
            "model_calls": [REF],
            "after_model_call": REF,
        },
        {
            "kind": "sandbox",
            "role": "agent",
            "provider": "p",
            "sandbox_id": "s",
            "outcome": "oom",
            "exit_code": -9,
            "wall_time_s": 1.0,
            "cpu_time_s": 1.0,
            "peak_memory_mib": 1.0,
            "resource_usage_source": "cgroup",
            "error_type": "e",
        },
    ],
    "gaps": [{"code": "g", "invocation_id": "root", "detail": "d"}],
}
TRAJECTORY = {
    "schema_version": "1.0",
    "task_id": "t",
    "rollout_id": "r",
    "invocations": [INVOCATION],
    "turns": [TURN, {**TURN, "turn_no": 2}],
    "model_calls": [CALL, {**CALL, "model_call_id": "d"}],
    "tool_calls": [{**TOOL, "output": {"x": 1}}],
    "gaps": [{"code": "g"}],
}
WHOLES = {"AgentObservationBundle": BUNDLE, "TrajectoryRecord": TRAJECTORY}

junk = st.sampled_from([[], ["x"], {}, {"x": 1}, "tool_call"]) | st.sampled_from(
    [None, True, False, 0, 1, -1, 2**70, 1.0, 1.5, -1.5, math.nan, math.inf, "", "x", "completed", "1.0", "root"]
)


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


def changed(value, path, change, new):
    value = copy.deepcopy(value)
    if not path:
        return new
    *front, last = path
    target = value
    for step in front:
        target = target[step]
    if change == "replace":
        target[last] = new
    elif change == "delete":
        del target[last]
    elif isinstance(target, dict):
        target["surprise"] = new
    else:
        target.append(new)
    return value


def outcomes(name, data):
    try:
        record = evidence.dump(evidence.read(getattr(evidence, name), data))
    except evidence.ValidationError:
        record = None
    try:
        model = getattr(observation_models, name).model_validate(data).model_dump()
    except pydantic.ValidationError:
        model = None
    return record, model


@pytest.mark.parametrize("name", NAMES)
def test_each_model_has_the_fields_and_defaults_of_its_record(name):
    record, model = getattr(evidence, name), getattr(observation_models, name)
    fields = {field.name: field for field in msgspec.structs.fields(record)}
    model_fields = {key: info for key, info in model.model_fields.items() if key != "kind"}
    assert list(fields) == list(model_fields)
    for key, info in model_fields.items():
        assert info.is_required() == fields[key].required, key
    if "kind" in model.model_fields:
        assert model.model_fields["kind"].default == record.__struct_config__.tag


@pytest.mark.parametrize("name", NAMES)
def test_each_model_and_field_is_described(name):
    """A24: the observation schemas are documented field by field."""
    model = getattr(observation_models, name)
    assert model.__doc__
    for key, info in model.model_fields.items():
        assert info.description, f"{name}.{key}"
        assert info.description.endswith("."), f"{name}.{key}"


@pytest.mark.parametrize("name", WHOLES)
def test_both_accept_the_whole_example_and_dump_it_alike(name):
    record, model = outcomes(name, WHOLES[name])
    assert record is not None
    assert record == model


@settings(max_examples=400, deadline=None)
@given(data=st.data(), change=st.sampled_from(["replace", "replace", "delete", "add"]), new=junk)
def test_both_accept_and_refuse_the_same_damaged_inputs(data, change, new):
    name = data.draw(st.sampled_from(sorted(WHOLES)))
    path = data.draw(st.sampled_from(list(places(WHOLES[name]))))
    damaged = changed(WHOLES[name], path, change, new)
    record, model = outcomes(name, damaged)
    assert (record is None) == (model is None), (path, change, new)
    assert json.dumps(record, sort_keys=True) == json.dumps(model, sort_keys=True)


TURN = {"invocation_id": "root", "task_id": "t", "rollout_id": "q", "turn_no": 1, "timestamp": 1.0, "step_count": 0}
AGENT = {"kind": "agent_invocation", "invocation_id": "root"}


@pytest.mark.parametrize(
    ("kind", "data", "name", "value"),
    [
        ("ModelCallRef", {"model_call_id": "c"}, "model_call_id", None),
        ("ModelCallRef", {"model_ref": SERVER, "response_id": "r"}, "response_id", ""),
        ("ToolCallObservation", TOOL, "completed_at", 0.5),
        ("ToolCallObservation", TOOL, "started_at", 2.5),
        ("ToolCallObservation", TOOL, "duration_ms", -1.0),
        ("ToolCallObservation", TOOL, "no_such_field", 1),
        ("TrajectoryToolCall", TOOL, "completed_at", 0.5),
        ("AgentObservationBundle", {"source": "s", "records": [AGENT]}, "records", [AGENT, AGENT]),
        ("AgentObservationBundle", {"source": "s"}, "records", [{**AGENT, "parent_invocation_id": "root"}]),
        ("TrajectoryRecord", {"task_id": "t", "rollout_id": "q", "turns": [TURN]}, "task_id", "another"),
        ("TrajectoryRecord", {"task_id": "t", "rollout_id": "q"}, "turns", [TURN, TURN]),
        ("TrajectoryRecord", {"task_id": "t", "rollout_id": "q"}, "invocations", [AGENT, AGENT]),
        ("TrajectoryRecord", {"task_id": "t", "rollout_id": "q"}, "model_calls", [{"model_call_id": "c"}] * 2),
    ],
)
def test_a_refused_assignment_leaves_the_record_as_it_was(kind, data, name, value):
    """Also one that fits its own field and contradicts another: an agent that goes on must not send a bad record."""
    record = getattr(door, kind).model_validate(data)
    before, given = record.model_dump(), set(record.model_fields_set)
    with pytest.raises(pydantic.ValidationError):
        setattr(record, name, value)
    assert record.model_dump() == before
    assert record.model_fields_set == given
    assert record == getattr(door, kind).model_validate(data)


def test_assignment_is_validated():
    invocation = door.AgentInvocation(invocation_id="root")
    with pytest.raises(pydantic.ValidationError, match="duration_ms"):
        invocation.duration_ms = -1.0
    with pytest.raises(pydantic.ValidationError):
        invocation.surprise = 1
    invocation.status = "completed"
    assert invocation.status == "completed"


def test_an_error_names_the_path_of_the_bad_value():
    damaged = changed(BUNDLE, ("records", 2, "duration_ms"), "replace", -1)
    with pytest.raises(pydantic.ValidationError, match=r"records\.2\.tool_call\.duration_ms"):
        door.AgentObservationBundle.model_validate(damaged)


def test_conversation_items_may_be_models_and_become_objects():
    class Message(pydantic.BaseModel):
        role: str = "user"
        content: str

    invocation = door.AgentInvocation(invocation_id="root", conversation=[Message(content="q")])
    assert invocation.conversation == [{"role": "user", "content": "q", "type": "message"}]


def test_the_reference_in_a_servers_configuration_is_a_model_reference():
    from nemo_gym.config_types import ModelServerRef

    configured = ModelServerRef(type="responses_api_models", name="policy")
    assert door.ModelCallRef(model_ref=configured, response_id="r").model_dump()["model_ref"] == SERVER
    assert door.TrajectoryResponseMetadata(model_ref=configured).model_dump()["model_ref"] == SERVER


def test_a_bundle_survives_the_trip_through_json():
    bundle = door.AgentObservationBundle.model_validate(BUNDLE)
    text = bundle.model_dump_json()
    assert door.AgentObservationBundle.model_validate_json(text) == bundle
    assert evidence.dump(evidence.read(evidence.AgentObservationBundle, json.loads(text))) == bundle.model_dump()


def test_the_door_offers_every_schema():
    assert set(door.__all__) - set(NAMES) == {"UnknownSchemaVersionError", "read_trajectory", "trajectory_identity_of"}
    assert set(NAMES) <= set(door.__all__)
    assert all(getattr(door, name) is getattr(observation_models, name) for name in NAMES)


def test_the_schema_version_selects_the_reader():
    read = door.read_trajectory({"task_id": "t", "rollout_id": "0-0"})
    assert (read.schema_version, read.task_id) == ("1.0", "t")
    for version in ("2.0", 1.0, None, ["1.0"]):
        with pytest.raises(door.UnknownSchemaVersionError, match=r"it reads `1\.0`"):
            door.read_trajectory({"schema_version": version, "task_id": "t", "rollout_id": "0-0"})
    with pytest.raises(pydantic.ValidationError):
        door.read_trajectory({"schema_version": "1.0", "task_id": "t", "rollout_id": "0-0", "more": 1})


def test_literal_fields_offer_the_same_words():
    for name in NAMES:
        record = typing.get_type_hints(getattr(evidence, name))
        model = typing.get_type_hints(getattr(observation_models, name))
        for key in record:
            assert _words(record[key]) == _words(model[key]), f"{name}.{key}"


def _words(hint):
    if typing.get_origin(hint) is typing.Literal:
        return set(typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return set().union(*(_words(part) for part in typing.get_args(hint)))
    return set()

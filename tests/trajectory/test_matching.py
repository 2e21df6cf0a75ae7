"""The match rule: which captured call a reference means."""

from __future__ import annotations

import itertools

import pytest

from nemo_gym.records.evidence import ModelCallRef, TrajectoryModelCall, read
from nemo_gym.records.matching import CallIndex, identity_of


@pytest.fixture
def index(make):
    return CallIndex(
        [
            make.call("c1", "r1"),
            make.call("c2", "same"),
            make.call("c3", "same"),
            make.call("c4"),
            {"model_call_id": "c5", "response_id": "r5"},
            {"response_id": "r6", "model_ref": make.policy},
        ]
    )


def test_an_id_or_the_exact_pair_means_one_call(index, make):
    """A6."""
    assert index.match({"model_call_id": "c1"}) == [0]
    assert index.match(make.pair("r1")) == [0]
    assert index.match(make.full("c1", "r1")) == [0]
    assert index.match(make.pair("r6")) == [5]


def test_every_identifier_that_is_given_must_fit(index, make):
    """A6."""
    assert index.match({"model_call_id": "c1", "response_id": "r2"}) == []
    assert index.match({"model_call_id": "c1", "model_ref": {**make.policy, "name": "judge"}}) == []
    assert index.match(make.pair("r1", "judge")) == []
    assert index.match({"model_call_id": "c5", "model_ref": make.policy}) == []


def test_a_call_without_its_server_is_not_found_by_a_pair(index, make):
    assert index.match(make.pair("r5")) == []


def test_several_calls_under_one_pair_are_all_returned(index, make):
    assert index.match(make.pair("same")) == [1, 2]
    assert index.match({**make.pair("same"), "model_call_id": "c3"}) == [2]


def test_an_empty_identifier_counts_as_not_given(index, make):
    assert index.match({**make.pair("r1"), "model_call_id": ""}) == [0]
    assert index.match({"model_call_id": "c1", "response_id": ""}) == [0]


def test_a_reference_to_nothing_matches_nothing(index):
    assert index.match({}) == []
    assert index.match({"response_id": "r1"}) == []


def test_records_and_mappings_have_the_same_identity(make):
    ref = make.full("c1", "r1")
    stated = {"model_call_id": "c1", "response_metadata": make.pair("r1")}
    expected = ("c1", ("responses_api_models", "policy"), "r1")
    assert identity_of(ref) == identity_of(read(ModelCallRef, ref)) == expected
    assert identity_of(stated) == identity_of(read(TrajectoryModelCall, stated)) == expected


def test_every_form_of_a_reference_matches_the_calls_that_have_all_it_gives(make):
    """The rule itself, call by call, over every combination of identifiers that two calls may share or lack."""
    ids, servers, answers = (
        (None, "c1", "c2"),
        (None, make.policy, {**make.policy, "name": "judge"}),
        (None, "r1", "r2"),
    )
    forms = [
        {"model_call_id": call_id, "model_ref": server, "response_id": answer}
        for call_id, server, answer in itertools.product(ids, servers, answers)
    ]
    for calls in itertools.product(forms[:-1:5], forms[1::4]):
        index = CallIndex(calls)
        for ref in forms:
            named = ref["model_call_id"] is not None
            if not named and None in (ref["model_ref"], ref["response_id"]):
                continue
            expected = [
                position
                for position, call in enumerate(calls)
                if all(ref[name] is None or ref[name] == call[name] for name in ref)
            ]
            assert list(index.match(ref)) == expected
            assert list(index.match(read(ModelCallRef, ref))) == expected
            assert list(index.match(identity_of(ref))) == expected

"""The join: owners, canonical references and the gaps of what stays open."""

from __future__ import annotations

import copy

import pytest

from nemo_gym.records.evidence import ValidationError
from nemo_gym.trajectory import join_observations


def refs(joined, name="root"):
    (record,) = [r for r in joined["records"] if r.get("invocation_id") == name and r["kind"] == "agent_invocation"]
    return record["model_calls"]


def gaps(joined):
    return [(gap["code"], gap["invocation_id"], gap["detail"]) for gap in joined["gaps"]]


def join(bundle, calls):
    """Join, and check on the way that joining again changes nothing and that inputs stay as they were."""
    before = copy.deepcopy((bundle, calls))
    joined = join_observations(bundle, calls)
    assert (bundle, calls) == before
    assert join_observations(joined, calls) == joined
    return joined


def test_a_unique_match_is_replaced_by_the_captured_identity(make):
    joined = join(make.bundle(make.invocation("root", make.pair("r1"))), make.calls(make.call("c1", "r1")))
    assert refs(joined) == [make.full("c1", "r1")]
    assert gaps(joined) == []


def test_a_contradicted_reference_is_unmatched(make):
    ref = {"model_call_id": "c1", "response_id": "r2"}
    calls = make.calls(make.call("c1", "r1"), make.call("c2", "r2"))
    joined = join(make.bundle(make.invocation("root", ref)), calls)
    assert refs(joined) == [{**ref, "model_ref": None}]
    assert gaps(joined) == [
        ("model_call_reference_unmatched", "root", "c1"),
        ("model_call_ownership_unavailable", None, "capture:c1:call_index=0"),
        ("model_call_ownership_unavailable", None, "capture:c2:call_index=1"),
    ]


def test_the_first_claimant_keeps_a_call_and_the_later_one_gets_a_conflict(make):
    bundle = make.bundle(
        make.invocation("root", make.pair("r1")), make.invocation("sub", {"model_call_id": "c1"}, make.pair("r1"))
    )
    joined = join(bundle, make.calls(make.call("c1", "r1")))
    assert refs(joined) == [make.full("c1", "r1")]
    assert refs(joined, "sub")[1] == {**make.pair("r1"), "model_call_id": None}
    assert gaps(joined) == [("model_call_reference_conflict", "sub", "c1")]


def test_one_invocation_naming_one_call_twice_means_it_once(make):
    """D8."""
    bundle = make.bundle(make.invocation("root", {"model_call_id": "c1"}, make.pair("r1")))
    joined = join(bundle, make.calls(make.call("c1", "r1")))
    assert refs(joined) == [make.full("c1", "r1")]
    assert gaps(joined) == []


@pytest.mark.parametrize("order", [1, -1])
def test_time_and_order_never_make_an_owner(make, order):
    """A7: a call between two owned ones, made by nobody that says so, stays unowned."""
    calls = [make.call(f"c{n}", f"r{n}", started_at=n, completed_at=n + 1) for n in (1, 2, 3)][::order]
    bundle = make.bundle(make.invocation("root", make.pair("r1"), make.pair("r3")))
    joined = join(bundle, make.calls(*calls))
    assert gaps(joined) == [("model_call_ownership_unavailable", None, "capture:c2:call_index=1")]


def test_a_failed_call_is_owned_through_the_session_that_its_client_named(make):
    bundle = make.bundle(make.invocation("root", make.pair("r2")))
    calls = make.calls(
        make.call("c1", client_session_id="root"),
        make.call("c2", "r2", client_session_id="root"),
        make.call("c3", client_session_id="stranger"),
    )
    joined = join(bundle, calls)
    assert refs(joined) == [
        make.full("c2", "r2"),
        {"model_call_id": "c1", "model_ref": make.policy, "response_id": None},
    ]
    assert gaps(joined) == [("model_call_ownership_unavailable", None, "capture:c3:call_index=2")]


@pytest.mark.parametrize(
    "held",
    [
        {"model_call_id": "c1"},
        {"model_call_id": "c1", "response_id": "r1"},
        {
            "model_call_id": "c1",
            "model_ref": {"type": "responses_api_models", "name": "policy"},
        },
        {"model_ref": {"type": "responses_api_models", "name": "policy"}, "response_id": "r1"},
    ],
)
def test_a_session_adds_no_second_reference_to_a_call_that_is_named_already(make, held):
    calls = make.calls(make.call("c1", "r1", client_session_id="root"))
    joined = join(make.bundle(make.invocation("root", held)), calls)
    assert refs(joined) == [make.full("c1", "r1")]


def test_the_invocation_in_the_url_owns_its_calls(make):
    calls = make.calls(make.call("c1", invocation_id="root"))
    joined = join(make.bundle(make.invocation("root")), calls)
    assert [ref["model_call_id"] for ref in refs(joined)] == ["c1"]


def test_a_url_and_a_session_that_disagree_are_a_conflict_and_not_a_guess(make):
    calls = make.calls(make.call("c1", invocation_id="sub", client_session_id="root"))
    joined = join(make.bundle(make.invocation("root"), make.invocation("sub")), calls)
    assert gaps(joined) == [("model_call_reference_conflict", "sub", "c1")]


def test_a_call_without_an_id_of_its_own_gets_no_session_owner(make):
    calls = make.calls({"client_session_id": "root", "response_id": None})
    joined = join(make.bundle(make.invocation("root")), calls)
    assert gaps(joined) == [("model_call_ownership_unavailable", None, "capture:unknown:call_index=0")]


def test_compaction_calls_must_be_owned_by_the_same_invocation(make):
    bundle = make.bundle(
        make.compaction("root", model_calls=[make.pair(r) for r in ("mine", "other", "free", "gone", "same")]),
        make.invocation("root", make.pair("mine")),
        make.invocation("sub", make.pair("other")),
    )
    calls = make.calls(*[make.call(f"c-{n}-{r}", r) for n, r in enumerate(("mine", "other", "free", "same", "same"))])
    joined = join(bundle, calls)
    assert [ref["model_call_id"] for ref in joined["records"][0]["model_calls"]] == ["c-0-mine", None, None, None, None]
    assert gaps(joined)[:4] == [
        ("model_call_reference_conflict", "root", "model_calls:c-1-other"),
        ("model_call_ownership_unavailable", "root", "model_calls:c-2-free"),
        ("model_call_reference_unmatched", "root", "model_calls:gone"),
        ("model_call_reference_ambiguous", "root", "model_calls:same"),
    ]


def test_a_compaction_boundary_needs_no_owner_but_must_not_be_foreign(make):
    bundle = make.bundle(
        make.invocation("root"),
        make.invocation("sub", make.pair("theirs")),
        make.compaction("root", before_model_call=make.pair("free"), after_model_call=make.pair("theirs")),
    )
    joined = join(bundle, make.calls(make.call("c1", "free"), make.call("c2", "theirs")))
    compaction = joined["records"][2]
    assert compaction["before_model_call"] == make.full("c1", "free")
    assert compaction["after_model_call"]["model_call_id"] is None
    assert gaps(joined) == [
        ("model_call_reference_conflict", "root", "after_model_call:c2"),
        ("model_call_ownership_unavailable", None, "capture:c1:call_index=0"),
    ]


def test_a_later_join_clears_the_gaps_of_an_earlier_one_and_keeps_the_producers(make):
    own = [
        make.gap("model_call_ownership_unavailable"),
        make.gap("model_call_ownership_unavailable", "root", "my provider"),
        make.gap("custom", "root", "x"),
    ]
    bundle = make.bundle(
        make.invocation("root", make.pair("r1")),
        make.compaction("root", model_calls=[make.pair("sum")]),
        gaps=own,
    )
    partial = join(bundle, make.calls(make.call("c2", "sum")))
    assert len(partial["gaps"]) == 6
    partial["records"][0]["model_calls"].append(make.pair("sum"))
    whole = join(partial, make.calls(make.call("c1", "r1"), make.call("c2", "sum")))
    assert whole["gaps"] == own


def test_equal_gaps_are_written_once(make):
    bundle = make.bundle(
        make.invocation("root", make.pair("x"), make.pair("x")), gaps=[make.gap("g"), make.gap("g"), make.gap("g", "a")]
    )
    assert gaps(join(bundle, [])) == [
        ("g", None, None),
        ("g", "a", None),
        ("model_call_reference_unmatched", "root", "x"),
    ]


def test_an_invalid_bundle_raises_a_validation_error(make):
    with pytest.raises(ValidationError):
        join_observations(make.bundle(make.invocation("x"), make.invocation("x")), [])

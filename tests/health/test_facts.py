"""What is settled fast is what the plain rules say."""

from __future__ import annotations

from typing import Any

from health_records import POLICY, call, trajectory, turn
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.health.facts import RolloutFacts
from nemo_gym.health.lines import RecordFacts
from nemo_gym.health.payloads import TOOL_CALL_TYPES, has_tool_call
from nemo_gym.records import evidence
from nemo_gym.records.matching import CallIndex

OTHER = {**POLICY, "name": "other"}
_ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "function_call", "tool_use", 1, None, ["function_call"]]),
        "tool_calls": st.sampled_from([None, [], [{}], "yes", 0]),
        "content": st.sampled_from(["x", [{"type": "function_call"}]]),
    },
)
_PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.text(max_size=3) | _ITEMS, lambda inner: st.lists(inner, max_size=3), max_leaves=8
)


def _calls_a_tool(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_calls_a_tool, value))
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    return (isinstance(kind, str) and kind in TOOL_CALL_TYPES) or bool(value.get("tool_calls"))


@given(_PAYLOADS)
def test_a_tool_call_is_found_wherever_it_stands_in_lists(payload: Any) -> None:
    assert has_tool_call(payload) == _calls_a_tool(payload)


def _references() -> st.SearchStrategy[list[dict[str, Any]]]:
    ids = st.sampled_from([None, "", "c1", "c2", "c3", "gone"])
    answers = st.sampled_from([None, "", "r1", "r2", "r3"])
    reference = st.fixed_dictionaries(
        {"model_call_id": ids, "model_ref": st.sampled_from([None, POLICY, OTHER]), "response_id": answers}
    ).filter(lambda ref: bool(ref["model_call_id"] or (ref["model_ref"] and ref["response_id"])))
    return st.lists(reference, max_size=5)


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from([None, "", "r1", "r2", "r3"]), st.sampled_from([None, POLICY, OTHER])),
        max_size=4,
    ),
    _references(),
    _references(),
)
def test_references_are_bound_as_the_one_matching_rule_says(
    calls: list[tuple[bool, str | None, Any]], of_turn: list[Any], of_invocation: list[Any]
) -> None:
    record = trajectory(0, turns=[turn(1, model_calls=of_turn)])
    record["model_calls"] = [
        call(number, model_call_id=f"c{number}" if named else None, metadata={"response_id": answer, "model_ref": ref})
        for number, (named, answer, ref) in enumerate(calls, start=1)
    ]
    record["invocations"][0]["model_calls"] = of_invocation
    read = evidence.read(evidence.TrajectoryRecord, record)
    facts = RolloutFacts(
        RecordFacts(
            task_index=0,
            rollout_index=0,
            stage_index=None,
            rollout_id=None,
            run_id=None,
            trajectory=read,
            usage=None,
            problems=(),
        )
    )
    index = CallIndex(read.model_calls)
    for view, references in (
        (facts.turn_view, read.turns[0].model_calls),
        (facts.owned_view, read.turns[0].model_calls + read.invocations[0].model_calls),
    ):
        fits = {reference: index.match(reference) for reference in references}
        assert view.matched == sorted({found[0] for found in fits.values() if len(found) == 1})
        assert list(view.unmatched.items()) == [(ref, len(found)) for ref, found in fits.items() if len(found) != 1]

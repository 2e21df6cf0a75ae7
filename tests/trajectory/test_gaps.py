"""The registry of gap codes."""

from __future__ import annotations

import re

from nemo_gym.records import gaps
from nemo_gym.records.gaps import blocked_inputs
from nemo_gym.trajectory import GAP_REGISTRY


def test_every_code_constant_is_registered_under_its_own_name():
    constants = {value for name, value in vars(gaps).items() if name.isupper() and isinstance(value, str)}
    assert constants == set(GAP_REGISTRY)
    assert all(code == spec.code for code, spec in GAP_REGISTRY.items())


def test_codes_are_lower_snake_case_and_have_a_meaning():
    for spec in GAP_REGISTRY.values():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", spec.code)
        assert spec.meaning.endswith(".")


def test_the_parameters_are_those_of_the_detail():
    assert GAP_REGISTRY["model_call_ownership_unavailable"].parameters == ("call", "call_index")
    assert GAP_REGISTRY["turns_unavailable"].parameters == ()


def test_missing_evidence_blocks_its_dependents_and_unknown_codes_block_nothing():
    """A8."""
    assert blocked_inputs(["turns_unavailable"]) == {"turns"}
    assert blocked_inputs(["model_call_capture_incomplete", "trajectory_projection_failed"]) == {
        "model_calls",
        "trajectory",
    }
    assert blocked_inputs(["model_call_capture_no_records", "my_own_gap"]) == frozenset()


def test_exactly_the_reference_gaps_contradict():
    """A8."""
    assert {code for code, spec in GAP_REGISTRY.items() if spec.contradicts} == gaps.REFERENCE_CODES

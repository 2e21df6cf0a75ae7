"""The registry of gap codes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from nemo_gym.records import gaps
from nemo_gym.records.gaps import blocked_inputs
from nemo_gym.trajectory import GAP_REGISTRY

SOURCE = Path(gaps.__file__).parents[1]


def test_every_code_constant_is_registered_under_its_own_name():
    constants = {value for name, value in vars(gaps).items() if name.isupper() and isinstance(value, str)}
    assert constants == set(GAP_REGISTRY)
    assert all(code == spec.code for code, spec in GAP_REGISTRY.items())


def test_codes_are_lower_snake_case_and_have_a_meaning():
    for spec in GAP_REGISTRY.values():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", spec.code)
        assert spec.meaning.endswith(".")


def test_every_code_says_when_it_is_written_and_what_to_do():
    for spec in GAP_REGISTRY.values():
        assert spec.when.endswith(".")
        assert spec.remedy.endswith(".")
    used = {name for spec in GAP_REGISTRY.values() for name in spec.parameters}
    assert used == set(gaps.GAP_PARAMETERS)


def test_every_code_that_the_package_writes_is_registered():
    """Looked for in the source: the registry is the one place where a code is explained."""
    written = {code for path in SOURCE.rglob("*.py") for code in literal_codes(path.read_text(encoding="utf-8"))}
    assert "resolution_unavailable" in written
    assert written <= set(GAP_REGISTRY)


def literal_codes(source):
    """Return the codes that stand as text in a gap: an object of its three fields, or an `ObservationGap`."""
    for node in ast.walk(ast.parse(source)):
        fields = {}
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            fields = {key.value: value for key, value in zip(node.keys, node.values, strict=True)}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", None) == "ObservationGap":
            fields = {keyword.arg: keyword.value for keyword in node.keywords}
        if "code" in fields and set(fields) <= {"code", "invocation_id", "detail"}:
            yield from [fields["code"].value] if isinstance(fields["code"], ast.Constant) else []


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

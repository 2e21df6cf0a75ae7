"""The handed rollouts: what `attach_evidence` makes of a row, its capture file and what the agent returned."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

from nemo_gym.capture import CaptureStore
from nemo_gym.records.codec import encode
from nemo_gym.records.evidence import ValidationError
from nemo_gym.records.identity import rollout_id_of
from nemo_gym.rollouts.enrich import attach_evidence
from nemo_gym.trajectory import join_observations

CASES = {case["id"]: case for case in json.loads((Path(__file__).parents[1] / "cases" / "evidence.json").read_bytes())}
ATTACHMENTS = ("ng_agent_observations", "ng_model_call_capture", "ng_trajectory", "ng_perf")

PRINTED = json.loads("""
{
  "ng_model_call_capture": {
    "rollout_id": "0-0",
    "metrics": {"num_calls": 1, "tokens_in": 12, "tokens_out": 8},
    "calls": [{"model_call_id": "call-1", "tokens_in": 12, "tokens_out": 8}]
  },
  "ng_agent_observations": {
    "source": "example_agent",
    "records": [
      {
        "kind": "agent_invocation",
        "invocation_id": "root",
        "model_calls": [{"model_call_id": "call-1"}],
        "conversation": [
          {"type": "function_call", "call_id": "tool-1", "name": "lookup", "arguments": "{}"},
          {"type": "function_call_output", "call_id": "tool-1", "output": "42"}
        ]
      },
      {
        "kind": "tool_call", "invocation_id": "root", "tool_call_id": "tool-1",
        "tool_name": "lookup", "duration_ms": 200, "timing_source": "harness",
        "status": "completed"
      }
    ],
    "gaps": []
  },
  "ng_trajectory": {
    "schema_version": "1.0",
    "task_id": "task-7",
    "rollout_id": "0-0",
    "invocations": [{
      "kind": "agent_invocation",
      "invocation_id": "root",
      "model_calls": [{"model_call_id": "call-1"}],
      "conversation": [
        {"type": "function_call", "call_id": "tool-1", "name": "lookup", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "tool-1", "output": "42"}
      ]
    }],
    "turns": [],
    "model_calls": [{
      "model_call_id": "call-1",
      "request": {"input": "Look up the answer"},
      "response": {"output": [
        {"type": "function_call", "call_id": "tool-1", "name": "lookup", "arguments": "{}"}
      ]},
      "token_stats": {"prompt_tokens": 12, "completion_tokens": 8}
    }],
    "tool_calls": [{
      "kind": "tool_call", "invocation_id": "root", "tool_call_id": "tool-1",
      "tool_name": "lookup", "duration_ms": 200, "timing_source": "harness",
      "status": "completed", "output": "42"
    }],
    "gaps": [{"code": "turns_unavailable"}]
  },
  "ng_perf": {
    "num_turns": 1, "num_tool_calls": 1, "token_observability_coverage": 1.0,
    "prompt_tokens": 12, "completion_tokens": 8, "total_latency_ms": 910
  }
}
""")
"""The joined example as the specification prints it, optional fields left out."""

ALSO_PRESENT = {"status": "unknown", "total_tokens": 20, "tokens_total": 20, "call_index": 0}
"""What the printed example leaves out because it is a default or follows from what is printed."""

METADATA = (
    "response_id",
    "model_ref",
    "dialect",
    "status_code",
    "response_status",
    "upstream_attempted",
    "response_source",
    "upstream_status_code",
)


def enriched(case, tmp_path, **options):
    row = copy.deepcopy(case["row"])
    store = CaptureStore(tmp_path)
    for exchange in case["captured_exchanges"]:
        store.record(rollout_id_of(row), copy.deepcopy(exchange))
    result = copy.deepcopy(case["result_fields"])
    if case["ng_agent_observations"] is not None:
        result["ng_agent_observations"] = copy.deepcopy(case["ng_agent_observations"])
    if case["producer_ng_trajectory"] is not None:
        result["ng_trajectory"] = copy.deepcopy(case["producer_ng_trajectory"])
    returned = attach_evidence(
        row, result, capture_dirs=[tmp_path], rollout_latency_ms=case["rollout_latency_ms"], **options
    )
    assert returned is result
    assert row == case["row"]
    return result


def expected_of(case):
    expected = {name: case["expected"][name] for name in ATTACHMENTS}
    if case["id"] == "G10_projection_failure_duplicate_call_ids":
        return _quarantined(expected)
    return expected


def _quarantined(expected):
    """D6: two calls with one id do not cost the trajectory; the later call is kept without the id."""
    expected = copy.deepcopy(expected)
    capture, bundle = expected["ng_model_call_capture"], expected["ng_agent_observations"]
    calls = []
    for captured in capture["calls"]:
        calls.append(
            {
                "model_call_id": captured["model_call_id"],
                "started_at": captured["started_at"],
                "completed_at": captured["completed_at"],
                "duration_ms": captured["latency_total_ms"],
                "request": captured.pop("request"),
                "response": captured.pop("response"),
                "response_metadata": {name: captured[name] for name in METADATA},
                "token_stats": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
            }
        )
    calls[1].pop("model_call_id")
    del capture["gaps"]
    expected["ng_trajectory"] = {
        "schema_version": "1.0",
        "task_id": "task-7",
        "rollout_id": "0-0",
        "invocations": [record for record in bundle["records"] if record["kind"] == "agent_invocation"],
        "turns": [],
        "model_calls": calls,
        "tool_calls": [],
        "gaps": [
            *bundle["gaps"],
            {"code": "model_call_identity_duplicate", "detail": "c1"},
            {"code": "turns_unavailable"},
            {"code": "conversation_unavailable"},
        ],
    }
    expected["ng_perf"] = {
        "num_turns": 1,
        "num_tool_calls": 0,
        "token_observability_coverage": 1.0,
        "prompt_tokens": 10,
        "completion_tokens": 2,
    }
    return expected


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("attachment", ATTACHMENTS)
def test_a_handed_rollout_gets_the_expected_attachment(name, attachment, tmp_path, compact):
    case = CASES[name]
    result, expected = enriched(case, tmp_path), expected_of(case)
    assert compact(result.get(attachment)) == compact(expected[attachment])


@pytest.mark.parametrize("name", CASES)
def test_what_the_agent_returned_beside_the_evidence_stays_as_it_was(name, tmp_path):
    """C19."""
    case = CASES[name]
    result = enriched(case, tmp_path)
    assert {key: value for key, value in result.items() if key not in ATTACHMENTS} == case["result_fields"]


@pytest.mark.parametrize("options", [{}, {"include_payloads": False}, {"keep_captured_payloads": True}])
@pytest.mark.parametrize("name", CASES)
def test_a_handed_rollout_that_is_only_written_is_written_as_any_other(name, options, tmp_path):
    plain = enriched(CASES[name], tmp_path / "plain", include_perf_detail=True, **options)
    written = enriched(CASES[name], tmp_path / "written", include_perf_detail=True, encoded_bodies=True, **options)
    assert json.loads(encode(written)) == json.loads(encode(plain))


@pytest.mark.parametrize("name", CASES)
def test_joining_a_handed_rollout_again_changes_nothing(name, tmp_path):
    case = CASES[name]
    result = enriched(case, tmp_path)
    calls = result["ng_model_call_capture"]["calls"]
    if case["expected"]["join_idempotent"] == "ValidationError":
        with pytest.raises(ValidationError):
            join_observations(result["ng_agent_observations"], calls)
    else:
        assert join_observations(result["ng_agent_observations"], calls) == result["ng_agent_observations"]


def test_the_joined_example_comes_out_exactly_as_printed(tmp_path, compact):
    """A9: what is printed is there, and everything else is null, empty, or follows from it."""
    result = compact(enriched(CASES["G0_seed_joined_example"], tmp_path))
    result["ng_model_call_capture"]["calls"][0].pop("tool_calls")
    result["ng_trajectory"]["model_calls"][0]["response"].pop("usage")
    assert {name: result[name] for name in ATTACHMENTS} == _completed(PRINTED, result)


def test_the_page_about_records_shows_the_joined_example_exactly():
    page = (Path(__file__).parents[2] / "docs" / "records.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert json.loads(shown) == PRINTED


def _completed(printed, actual):
    """Return `printed` with the fields of `ALSO_PRESENT` that `actual` has with their expected value."""
    if isinstance(printed, dict):
        added = {k: v for k, v in ALSO_PRESENT.items() if k not in printed and actual.get(k) == v}
        return {k: _completed(v, actual.get(k)) for k, v in printed.items()} | added
    if isinstance(printed, list) and isinstance(actual, list) and len(printed) == len(actual):
        return [_completed(p, a) for p, a in zip(printed, actual, strict=True)]
    return printed

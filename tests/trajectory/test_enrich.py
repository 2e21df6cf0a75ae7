"""`attach_evidence`: attach, join, project, summarise, on a real capture directory."""

from __future__ import annotations

import copy
import json

import pytest

from nemo_gym.capture import CaptureStore
from nemo_gym.records.codec import encode
from nemo_gym.rollouts.enrich import attach_evidence, merge_model_call_capture_into_record

ROW = {"_ng_task_index": 0, "_ng_rollout_index": 0, "task_id": "t"}


@pytest.fixture
def captured(tmp_path, make):
    """Two captured calls of rollout 0-0."""
    store = CaptureStore(tmp_path)
    for number in (1, 2):
        store.record(
            "0-0",
            {
                "model_call_id": f"c{number}",
                "model_ref": make.policy,
                "dialect": "responses",
                "status_code": 200,
                "started_at": float(number),
                "completed_at": number + 0.5,
                "request": {"input": f"q{number}"},
                "response": {"id": f"r{number}", "output": [], "usage": {"input_tokens": 10, "output_tokens": 2}},
            },
        )
    return tmp_path


def observed(make):
    return make.bundle(make.invocation("root", make.pair("r1"), make.pair("r2")))


def test_one_call_attaches_joins_projects_and_summarises(captured, make):
    """A5, A27, A28."""
    result = attach_evidence(
        ROW,
        {"reward": 1.0, "ng_agent_observations": observed(make)},
        capture_dirs=[captured],
        rollout_latency_ms=12.5,
    )
    assert result["ng_agent_observations"]["records"][0]["model_calls"][0] == make.full("c1", "r1")
    assert result["ng_trajectory"]["model_calls"][1]["request"] == {"input": "q2"}
    assert "request" not in result["ng_model_call_capture"]["calls"][0]
    assert result["ng_perf"] == {
        "num_turns": 2,
        "num_tool_calls": 0,
        "token_observability_coverage": 1.0,
        "prompt_tokens": 20,
        "completion_tokens": 4,
        "total_latency_ms": 12.5,
    }


def test_nothing_else_of_the_result_changes(captured, make):
    """C19."""
    rest = {
        "reward": 1.0,
        "response": {"id": "x", "output": [{"type": "message", "prompt_token_ids": [1]}], "usage": None},
        "responses_create_params": {"input": "hi"},
    }
    result = attach_evidence(
        ROW, {**copy.deepcopy(rest), "ng_agent_observations": observed(make)}, capture_dirs=[captured]
    )
    assert {key: result[key] for key in rest} == rest
    assert set(result) - set(rest) == {"ng_agent_observations", "ng_model_call_capture", "ng_trajectory", "ng_perf"}


def test_with_observability_off_only_what_the_agent_returned_is_projected(make):
    """A28."""
    result = attach_evidence(
        ROW, {"ng_agent_observations": observed(make), "ng_perf": {"num_turns": 9}}, capture_dirs=[]
    )
    assert set(result) == {"ng_agent_observations", "ng_trajectory"}
    assert result["ng_agent_observations"] == observed(make)
    assert [gap["code"] for gap in result["ng_trajectory"]["gaps"]] == [
        "model_calls_unavailable",
        "turns_unavailable",
        "conversation_unavailable",
    ]


def test_with_observability_off_and_no_evidence_the_result_stays_as_it_is():
    assert attach_evidence(ROW, {"reward": 0.0}, capture_dirs=[]) == {"reward": 0.0}


def test_a_retry_reads_only_its_own_capture(captured, make):
    """C11."""
    result = attach_evidence(
        {**ROW, "_ng_attempt_index": 1}, {"ng_agent_observations": observed(make)}, capture_dirs=[captured]
    )
    assert result["ng_model_call_capture"]["rollout_id"] == "0-0-a1"
    assert result["ng_model_call_capture"]["calls"] == []
    assert result["ng_trajectory"]["rollout_id"] == "0-0-a1"


@pytest.mark.parametrize(
    ("change", "ids"),
    [
        ({}, ("t", "0-0")),
        ({"task_id": {"taskset": "e", "task_id": "alpha"}, "task_input": {}}, ("alpha", "0-0")),
        ({"trajectory_identity": {"task_id": "OV", "rollout_id": "OVR"}}, ("OV", "OVR")),
        ({"trajectory_identity": {"task_id": "OV", "rollout_id": "OVR", "version": 2}}, ("OV", "OVR")),
        ({"trajectory_identity": {"task_id": "OV"}}, ("t", "0-0")),
        ({"trajectory_identity": {"task_id": 1, "rollout_id": "OVR"}}, ("t", "0-0")),
        ({"trajectory_identity": ["OV", "OVR"]}, ("t", "0-0")),
        ({"trajectory_identity": {"task_id": "OV", "rollout_id": " "}}, ("t", "0-0")),
    ],
)
def test_ids_come_from_the_row_and_the_capture_from_its_key(captured, change, ids):
    """A20, D2, D10: an override changes the ids and never the capture that is read."""
    result = attach_evidence({**ROW, **change}, {}, capture_dirs=[captured])
    trajectory = result["ng_trajectory"]
    assert (trajectory["task_id"], trajectory["rollout_id"]) == ids
    assert len(trajectory["model_calls"]) == 2
    invalid = "trajectory_identity" in change and ids[0] != "OV"
    assert ("trajectory_identity_invalid" in [gap["code"] for gap in trajectory["gaps"]]) is invalid


@pytest.mark.parametrize("where", ["ng_agent_observations", "ng_trajectory"])
def test_redacted_images_keep_every_body_off_the_record(captured, make, where):
    """A10."""
    gap = make.gap("multimodal_history_redacted")
    evidence = {
        "ng_agent_observations": make.bundle(make.invocation("root"), gaps=[gap]),
        "ng_trajectory": make.trajectory(gaps=[gap]),
    }[where]
    result = attach_evidence(ROW, {where: evidence}, capture_dirs=[captured])
    assert gap in result["ng_trajectory"]["gaps"]
    assert [(call["request"], call["response"]) for call in result["ng_trajectory"]["model_calls"]] == [
        (None, None)
    ] * 2
    assert b'"q1"' not in encode(result)
    assert result["ng_trajectory"]["model_calls"][0]["token_stats"]["prompt_tokens"] == 10


def test_payloads_can_be_left_out_or_kept_in_both_places(captured):
    """A13."""
    without = attach_evidence(ROW, {}, capture_dirs=[captured], include_payloads=False)
    assert b'"q1"' not in encode(without)
    kept = attach_evidence(ROW, {}, capture_dirs=[captured], keep_captured_payloads=True)
    assert kept["ng_model_call_capture"]["calls"][0]["request"] == {"input": "q1"}
    assert kept["ng_trajectory"]["model_calls"][0]["request"] == {"input": "q1"}


@pytest.mark.parametrize(
    "evidence",
    [
        {"ng_agent_observations": "broken"},
        {"ng_agent_observations": {"source": 5}},
        {"ng_agent_observations": {"source": "a", "records": [None]}},
        {"ng_agent_observations": {"source": "a", "gaps": "x"}},
        {"ng_agent_observations": []},
        {"ng_trajectory": "broken"},
        {"ng_trajectory": {"task_id": 5}},
        {"ng_trajectory": {"gaps": [5]}},
        {"ng_model_call_capture": "stale"},
    ],
)
@pytest.mark.parametrize("observed_run", [True, False])
def test_bad_evidence_never_raises_and_is_named(captured, evidence, observed_run):
    result = attach_evidence(ROW, copy.deepcopy(evidence), capture_dirs=[captured] if observed_run else [])
    codes = [gap["code"] for gap in result["ng_trajectory"]["gaps"]]
    (key,) = evidence
    if key == "ng_agent_observations":
        assert result[key] == evidence[key]
        assert "agent_observations_invalid" in codes
        assert ("agent_observation_join_failed" in codes) is observed_run
    elif key == "ng_trajectory":
        assert "producer_trajectory_invalid" in codes


@pytest.mark.parametrize(
    "row", [{}, {"_ng_rollout_id": "../x"}, {"_ng_rollout_id": ""}, {**ROW, "_ng_attempt_index": "x"}]
)
def test_a_row_without_a_usable_id_has_no_capture_but_is_projected(captured, make, row):
    result = attach_evidence(row, {"ng_agent_observations": observed(make)}, capture_dirs=[captured])
    assert "ng_model_call_capture" not in result
    assert result["ng_trajectory"]["invocations"][0]["invocation_id"] == "root"


def test_a_damaged_line_costs_that_call_and_leaves_its_gap(captured, make):
    path = CaptureStore(captured).path_for("0-0")
    path.write_bytes(path.read_bytes() + b"{oops\n")
    result = attach_evidence(ROW, {"ng_agent_observations": observed(make)}, capture_dirs=[captured])
    assert len(result["ng_trajectory"]["model_calls"]) == 2
    assert make.gap("model_call_capture_records_unreadable", None, "count=1") in result["ng_trajectory"]["gaps"]


def test_merging_a_capture_attaches_and_joins_and_projects_nothing(captured, make):
    """C18, C19."""
    record = {**ROW, "reward": 1.0, "ng_agent_observations": observed(make)}
    assert merge_model_call_capture_into_record(record, [captured]) is record
    assert record["ng_model_call_capture"]["metrics"]["num_calls"] == 2
    assert "request" not in record["ng_model_call_capture"]["calls"][0]
    assert record["ng_agent_observations"]["records"][0]["model_calls"][0]["model_call_id"] == "c1"
    assert "ng_trajectory" not in record
    with_bodies = merge_model_call_capture_into_record(dict(ROW), [captured], include_payloads=True)
    assert with_bodies["ng_model_call_capture"]["calls"][0]["request"] == {"input": "q1"}


def test_merging_without_a_directory_changes_nothing(make):
    record = {**ROW, "ng_agent_observations": observed(make)}
    assert merge_model_call_capture_into_record(copy.deepcopy(record), []) == record


_ODD_BODIES = [
    b'{"input": "q"}',
    b'{"input": 1000000000000000000000000000000, "n": -0.0, "e": 1E5}',
    b'{"input": "\\ud800", "emoji": "\\ud83d\\ude00", "raw": "\xf0\x9f\x98\x80\xe2\x80\xa8"}',
    b'{ "input" : [ 1, { } ,null ] }',
    b'{"a": 1, "a": 2}',
    b'["no object"]',
    b"7",
    b"null",
    b'{"input": NaN}',
    b'{"input": "\xff"}',
    *(b'{"input": ' + b"[" * depth + b"]" * depth + b"}" for depth in (260, 600, 900, 2000)),
    *(b'{"n": %b}' % number for number in (b"1e999", b"-1E+400", b"1e309", b"1e-999", b"-" + b"9" * 400, b"9" * 5000)),
    b'{"n": "1e999", "sha": "0e0001e999"}',
]


def _evidence_with(tmp_path, make, request, response, *, encoded_bodies, status=200, include_payloads=True):
    lines = [
        b'{"model_call_id": "c%d", "status_code": %d, "request": %s, "response": %s}'
        % (number, status, request, response)
        for number in (1, 2)
    ]
    (tmp_path / "0-0.capture.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    bundle = make.bundle(make.invocation("root", {"model_call_id": "c1"}, {"model_call_id": "c2"}))
    result = attach_evidence(
        ROW, {"ng_agent_observations": bundle}, capture_dirs=[tmp_path], include_perf_detail=True,
        include_payloads=include_payloads, encoded_bodies=encoded_bodies,
    )  # fmt: skip
    return json.loads(encode(result))


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("include_payloads", [True, False])
@pytest.mark.parametrize("body", _ODD_BODIES, ids=range(len(_ODD_BODIES)))
def test_bodies_that_stay_encoded_are_written_as_decoded_ones_are(tmp_path, make, body, include_payloads, status):
    answer = b'{"id": "r", "model": "m", "usage": {"input_tokens": 3}}'
    for request, response in ((body, answer), (answer, body), (body, b"null")):
        plain, encoded = (
            _evidence_with(
                tmp_path, make, request, response, status=status, include_payloads=include_payloads, encoded_bodies=yes
            )
            for yes in (False, True)
        )
        assert encoded == plain


def test_a_retry_is_known_by_its_request_also_when_that_stays_encoded(tmp_path, make):
    for request in (b'{"a": 1, "b": 2}', b'{"b": 2, "a": 1}'):
        lines = [
            b'{"model_call_id": "c1", "status_code": 500, "request": {"a": 1, "b": 2}}',
            b'{"model_call_id": "c2", "status_code": 200, "request": %s}' % request,
        ]
        (tmp_path / "0-0.capture.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        bundle = make.bundle(make.invocation("root", {"model_call_id": "c1"}, {"model_call_id": "c2"}))
        result = {"ng_agent_observations": bundle}
        attach_evidence(ROW, result, capture_dirs=[tmp_path], include_perf_detail=True, encoded_bodies=True)
        assert result["ng_perf_detail"]["retries"] == {"count": 1}

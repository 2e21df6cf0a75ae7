"""Claude Code's compaction calls: attached only on an exact, unique equality with the saved summary."""

from __future__ import annotations

import json

import pytest

from nemo_gym.capture import CaptureStore
from nemo_gym.records.codec import encode
from nemo_gym.records.evidence import AgentObservationBundle, dump, read
from nemo_gym.rollouts.enrich import attach_evidence
from nemo_gym.trajectory import attach_summary_calls, join_bundle

PROMPT = "Your task is to create a detailed summary of the conversation so far, paying close attention to ..."
ANSWER = "<analysis>\nthinking\n</analysis>\n\n<summary>\n1. Intent:\n\n\n\n   all of it\n</summary>"
CLEAN = "Summary:\n1. Intent:\n\n   all of it"
NEW = (
    "This session is being continued from a previous conversation that ran out of context. "
    "The summary below covers the earlier portion of the conversation.\n\n"
)
OLD = (
    "This session is being continued from a previous conversation that ran out of context. "
    "The conversation is summarized below:\n"
)
TRANSCRIPT = (
    "\n\nIf you need specific details from before compaction (like exact code snippets, error messages, or content you "
    "generated), read the full transcript at: /home/x/y.jsonl"
)
GO_ON = (
    "\nPlease continue the conversation from where we left it off without asking the user any further questions. "
    "Continue with the last task that you were asked to work on."
)
UNAVAILABLE = {"code": "compaction_model_call_reference_unavailable", "invocation_id": "root", "detail": None}


@pytest.fixture
def summary_call(make):
    def _call(call_id="sum", answer=ANSWER, prompt=PROMPT, **fields):
        base = make.call(
            call_id,
            f"r-{call_id}",
            dialect="messages",
            status_code=200,
            request={"messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": prompt}]},
            response={"id": f"r-{call_id}", "content": [{"type": "text", "text": answer}]},
        )
        return {**base, **fields}

    return _call


def claude(make, *compactions, refs=("r1", "r2")):
    return read(
        AgentObservationBundle,
        {
            "source": "claude_code",
            "records": [make.invocation("root", *[make.pair(ref) for ref in refs]), *compactions],
            "gaps": [UNAVAILABLE],
        },
    )


def compaction(make, summary=NEW + CLEAN, **fields):
    ends = {"before_model_call": make.pair("r1"), "after_model_call": make.pair("r2")}
    return make.compaction("root", **{"outcome": "completed", "summary": summary, **ends, **fields})


def around(make, *summaries):
    return make.calls(make.call("c1", "r1"), *summaries, make.call("c2", "r2"))


def attached(bundle):
    return [ref.model_call_id for record in bundle.records[1:] for ref in record.model_calls]


@pytest.mark.parametrize(
    "summary", [NEW + CLEAN, OLD + CLEAN, NEW + CLEAN + TRANSCRIPT + GO_ON, OLD + CLEAN + "." + GO_ON]
)
def test_the_call_whose_cleaned_answer_is_the_saved_summary_is_attached_and_owned(make, summary_call, summary):
    calls = around(make, summary_call())
    found = attach_summary_calls(claude(make, compaction(make, summary)), calls)
    assert attached(found) == ["sum"]
    assert [ref.response_id for ref in found.records[0].model_calls] == ["r1", "r-sum", "r2"]
    assert found.gaps == []
    assert dump(join_bundle(found, calls))["gaps"] == []
    assert attach_summary_calls(found, calls) == found


@pytest.mark.parametrize(
    "change",
    [
        {"dialect": "chat"},
        {"status_code": 500},
        {"error_category": "upstream_error"},
        {"prompt": "Summarise!"},
        {"answer": ANSWER.replace("all", "most")},
        {"answer": ANSWER[:-20]},
        {"model_ref": {"type": "responses_api_models", "name": "other"}},
        {"model_call_id": None, "response_id": None},
        {"request": None},
        {"client_session_id": "root"},
    ],
)
def test_a_call_that_fails_one_condition_is_not_attached(make, summary_call, change):
    bundle = claude(make, compaction(make))
    assert attach_summary_calls(bundle, around(make, summary_call(**change))) == bundle


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "failed"},
        {"summary": None},
        {"summary": NEW + CLEAN + " And more."},
        {"summary": CLEAN},
        {"model_calls": [{"model_call_id": "x"}]},
        {"before_model_call": {"model_call_id": "c2"}, "after_model_call": None},
    ],
)
def test_a_compaction_that_fails_one_condition_gets_no_call(make, summary_call, change):
    bundle = claude(make, compaction(make, **change))
    assert attach_summary_calls(bundle, around(make, summary_call())) == bundle


def test_several_candidates_are_a_gap_and_not_a_choice(make, summary_call):
    calls = around(make, summary_call("s1"), summary_call("s2"))
    found = attach_summary_calls(claude(make, compaction(make)), calls)
    assert attached(found) == []
    assert [(gap.code, gap.detail) for gap in found.gaps][1:] == [
        ("compaction_model_call_match_ambiguous", "candidate_count=2")
    ]
    assert attach_summary_calls(found, calls) == found


def test_one_candidate_for_two_compactions_is_a_gap(make, summary_call):
    found = attach_summary_calls(claude(make, compaction(make), compaction(make)), around(make, summary_call()))
    assert attached(found) == []
    assert found.gaps[1].detail == "candidate_count=1"


def test_other_sources_are_left_alone(make, summary_call):
    bundle = read(AgentObservationBundle, make.bundle(make.invocation("root"), compaction(make)))
    assert attach_summary_calls(bundle, around(make, summary_call())) is bundle


@pytest.mark.parametrize("encoded_bodies", [True, False])
@pytest.mark.parametrize("include_payloads", [True, False])
def test_attaching_evidence_does_it_with_and_without_payloads_on_the_record(
    make, summary_call, tmp_path, include_payloads, encoded_bodies
):
    store = CaptureStore(tmp_path)
    for call in around(make, summary_call()):
        store.record("0-0", {**call, "response": call.get("response") or {"id": call["response_id"]}})
    result = {"ng_agent_observations": dump(claude(make, compaction(make)))}
    row = {"_ng_task_index": 0, "_ng_rollout_index": 0}
    attach_evidence(
        row, result, capture_dirs=[tmp_path], include_payloads=include_payloads, encoded_bodies=encoded_bodies
    )
    result = json.loads(encode(result))
    assert [ref["model_call_id"] for ref in result["ng_trajectory"]["invocations"][0]["model_calls"]] == [
        "c1",
        "sum",
        "c2",
    ]
    assert result["ng_agent_observations"]["gaps"] == []

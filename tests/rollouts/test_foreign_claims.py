"""What an agent claims about identity and capture is not believed; what it says about routing is obeyed."""

from __future__ import annotations

import json
import math

import pytest

from nemo_gym.health import run_health_checks
from nemo_gym.records import keys
from nemo_gym.records.codec import decode, encode_pretty
from nemo_gym.records.identity import attempt_of
from nemo_gym.records.rows import drop_foreign_keys
from nemo_gym.rollouts import RolloutCollectionHelper, RolloutFailureRecord
from nemo_gym.rollouts.enrich import attach_evidence

OBEYED = {
    "_ng_failure_class", "_ng_failure_type", "_ng_failure_message", "_ng_failure_http_status", "_ng_no_persist",
    "_ng_failure_response_body", "_ng_failure_terminal", "_ng_failure_stage", "_ng_failure_partial_response",
    "_ng_failure_judge_error", "_ng_failed_at",
}  # fmt: skip
EVERY_KEY = {value for name, value in vars(keys).items() if name.isupper() and str(value).startswith("_ng_")}
FORGED = {
    "_ng_task_index": 9, "_ng_rollout_index": 9, "_ng_attempt_index": 7, "_ng_rollout_id": "../forged",
    "_ng_run_id": "forged", "_ng_prior_failures": ["forged"], "_ng_omitted_rollout": True, "_ng_dispatch_drained": True,
    "_ng_unrouted_run_error": True, "_ng_rollout_failure": {"delivery": "not_sent"}, "_ng_task_id": "forged",
    "_ng_environment_server": "forged", "_ng_result_type": "forged", "_ng_anything": 1,
    "ng_model_call_capture": {"rollout_id": "0-0", "metrics": {"num_calls": 1}, "calls": [{"model_call_id": "forged"}]},
    "ng_perf": {"num_turns": 99}, "ng_perf_detail": {"forged": True},
}  # fmt: skip


def test_every_key_of_collection_but_the_routing_marks_is_dropped():
    result = dict.fromkeys([*EVERY_KEY, "reward", "ng_trajectory", "ng_agent_observations"], 1)
    drop_foreign_keys({}, result)
    assert set(result) == {*OBEYED, "reward", "ng_trajectory", "ng_agent_observations"}


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("failure", [{}, {"_ng_failure_class": "judge_failed", "_ng_failure_terminal": True}])
async def test_a_record_is_of_the_row_that_was_sent_whatever_the_agent_claims(
    servers, head, make_rows, tmp_path, read_rows, failure, captured
):
    if captured:
        servers.extra_config = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path / "captures")}
    servers.behaviours["agent_a"] = lambda row: {**row, **FORGED, **failure, "reward": 1.0}
    completions = RolloutCollectionHelper().run_examples(
        make_rows(1), head, record_output_dir=tmp_path, record_shard="s", route_failures_to_sidecar=True
    )
    [(row, result)] = [pair async for pair in completions]
    [record] = read_rows(tmp_path / f"rollouts-s{'_failures' if failure else ''}.jsonl")
    assert record["_ng_rollout_id"] == row["_ng_rollout_id"]
    assert (record["_ng_task_index"], record["_ng_rollout_index"]) == (0, 0)
    kept = {key for key, value in record.items() if key in FORGED and value == FORGED[key]}
    assert kept == set()
    assert {key: record[key] for key in failure} == failure
    calls = record.get("ng_model_call_capture", {}).get("calls", [])
    assert calls == [], "only what was captured is captured evidence"
    assert "forged" not in json.dumps(record)
    assert result["_ng_rollout_id"] == row["_ng_rollout_id"]


async def test_a_plain_result_keeps_what_the_agent_answered(servers, head, make_rows):
    servers.behaviours["agent_a"] = lambda row: {**row, **FORGED}
    completions = RolloutCollectionHelper().run_examples(make_rows(1), head)
    [(row, result)] = [pair async for pair in completions]
    assert result == {**row, **FORGED}


async def test_an_episode_reply_to_a_flat_row_is_no_result(servers, head, make_rows):
    episode = {
        "episode_id": {"rollout_id": "0-0", "attempt": 0},
        "task_id": {"task_id": "t"},
        "result": {"reward": 1.0},
    }
    servers.behaviours["agent_a"] = lambda _: episode
    completions = RolloutCollectionHelper().run_examples(make_rows(1), head, None, True, enrich_results=True)
    [(_, record)] = [pair async for pair in completions]
    assert isinstance(record, RolloutFailureRecord)
    assert (record.exception_type, record.delivery) == ("InvalidRolloutResult", "delivered")


@pytest.mark.parametrize("attempt", [math.inf, math.nan, [1], {}, True, "2", "x", -1, 1.5, 10**400])
@pytest.mark.parametrize("captures", [False, True])
def test_no_attempt_number_breaks_the_evidence(tmp_path, attempt, captures):
    row = {"_ng_task_index": 1, "_ng_rollout_index": 2, "_ng_attempt_index": attempt}
    result = {"reward": 1.0, "ng_agent_observations": {"source": "s", "records": [], "gaps": []}}
    attach_evidence(row, result, capture_dirs=[tmp_path] if captures else [])
    assert result["reward"] == 1.0
    assert result["ng_trajectory"]["rollout_id"].startswith("1-2")


@pytest.mark.parametrize(
    ("given", "attempt"), [({}, 0), ({"_ng_attempt_index": None}, 0), ({"_ng_attempt_index": 3}, 3)]
)
def test_an_attempt_is_a_whole_number(given, attempt):
    assert attempt_of(given) == attempt


def test_pretty_json_holds_whatever_a_line_holds():
    value = {"a": "\ud800", "b": 2**80, "c": [math.nan, -math.inf, 1.5], "d": {"é": None}}
    text = encode_pretty(value)
    assert text.endswith(b"}\n")
    assert b'\n  "a"' in text
    assert decode(text) == {"a": "\ud800", "b": 2**80, "c": [None, None, 1.5], "d": {"é": None}}


@pytest.mark.parametrize("workers", [1, 2])
def test_health_adds_up_counts_beyond_64_bits(tmp_path, workers):
    big = 2**63 - 1
    lines = []
    for number in range(4):
        calls = [
            {"model_call_id": f"c{number}{part}", "token_stats": {"prompt_tokens": big, "completion_tokens": big}}
            for part in range(4)
        ]
        lines.append(
            {
                "_ng_task_index": number,
                "_ng_rollout_index": 0,
                "reward": 1.0,
                "response": {"usage": {"input_tokens": 2**70, "output_tokens": big, "total_tokens": 2**71}},
                "ng_trajectory": {
                    "schema_version": "1.0", "task_id": str(number), "rollout_id": f"{number}-0", "invocations": [],
                    "turns": [], "model_calls": calls, "tool_calls": [], "gaps": [],
                },
            }
        )  # fmt: skip
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run_health_checks([path], workers=workers)
    tokens = json.loads(result.summary_path.read_text())["run"]["stats"]["tokens"]
    assert tokens["capture_prompt"] == 16 * big


@pytest.mark.parametrize("mark", sorted(OBEYED))
async def test_a_mark_that_a_row_already_has_is_echoed_and_not_set(servers, head, make_rows, tmp_path, read_rows, mark):
    rows = [{**row, mark: "as it was saved"} for row in make_rows(2)]

    def answer(row):
        agents_own = {"_ng_failure_class": "judge_failed"} if row["_ng_task_index"] else {}
        return {**row, "reward": 1.0, **agents_own}

    servers.behaviours["agent_a"] = answer
    completions = RolloutCollectionHelper().run_examples(rows, head, record_output_dir=tmp_path, record_shard="s")
    async for _ in completions:
        pass
    for name, task in (("rollouts-s.jsonl", 0), ("rollouts-s_failures.jsonl", 1)):
        found = read_rows(tmp_path / name)
        if mark == "_ng_failure_class" or task == 0:
            assert mark not in found[0] or found[0][mark] == "judge_failed"
        assert [record["_ng_task_index"] for record in found] == [task]

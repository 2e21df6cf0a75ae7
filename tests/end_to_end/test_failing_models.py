"""What a failing model comes to: a verdict when the refusal was about the conversation, else a failed rollout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from end_to_end_support import REPOSITORY, Gym, records


def collect(gym: Gym, *scripts: dict[str, Any], code: int) -> Path:
    """Run the five rows of the example environment against scripts; return the folder of the run."""
    (gym.folder / "scripts.yaml").write_text(yaml.safe_dump({"scripts": list(scripts)}))
    run = gym.folder / "run"
    gym.run(
        *("eval", "run", "--search-dir", REPOSITORY / "examples", "--resources-server", "capital_cities"),
        *("--model-type", "scripted_model", "-o", run / "rollouts.jsonl"),
        f"++policy_model.responses_api_models.scripted_model.scripts_fpath={gym.folder / 'scripts.yaml'}",
        "+observability_enabled=true",
        f"+model_call_capture_dir={gym.folder / 'model-calls'}",
        gym.head,
        code=code,
    )
    return run


def verdicts(run: Path) -> list[str]:
    return [row["verdict"] for row in records(run / "rollout_verdicts.jsonl")]


def test_a_rate_limited_rollout_fails_and_a_resume_tries_it_again_under_keys_of_its_own(gym: Gym) -> None:
    """C11, D5: the call of the first attempt never mixes with the second, and no finding is left of it."""
    limited = {"error": {"status": 429, "message": "slow down", "retry_after": 0.01}}
    run = collect(gym, {"name": "s", "steps": [{"text": "Paris", "attempts": [limited]}]}, code=1)
    failures = records(run / "rollouts_failures.jsonl")
    assert {row["failure_kind"] for row in failures} == {"provider_unavailable"}
    # A resume tries them again, under keys of their own, and this time the model answers.
    gym.run(
        *("eval", "run", "--search-dir", REPOSITORY / "examples", "--resources-server", "capital_cities"),
        *("--model-type", "scripted_model", "-o", run / "rollouts.jsonl", "--resume"),
        "+observability_enabled=true",
        f"+model_call_capture_dir={gym.folder / 'model-calls'}",
        "+resume_ignore_drift=true",
        gym.head,
    )
    rollouts = records(run / "rollouts.jsonl")
    assert sorted(row["ng_trajectory"]["rollout_id"] for row in rollouts) == [f"{task}-0-a1" for task in range(5)]
    assert set(verdicts(run)) == {"healthy"}


def test_a_fault_of_the_provider_is_no_reward(gym: Gym) -> None:
    statuses = {"France": 401, "Japan": 404, "Egypt": 429, "Peru": 503, "Italy": 529}
    scripts = [
        {"name": name, "match": name, "steps": [{"error": {"status": status, "message": "provider says no"}}]}
        for name, status in statuses.items()
    ]
    run = collect(gym, *scripts, code=1)
    assert (run / "rollouts.jsonl").read_text() == ""
    seen = set()
    for row in records(run / "rollouts_failures.jsonl"):
        assert "reward" not in row
        assert "provider says no" in row["failure_reason"]
        status = row["ng_trajectory"]["model_calls"][0]["response_metadata"]["status_code"]
        assert row["ng_trajectory"]["invocations"][0]["error_type"] == f"http_{status}"
        seen.add(status)
    assert seen == set(statuses.values())


def test_a_refusal_of_the_conversation_itself_is_judged(gym: Gym) -> None:
    """A22: no call finished, so the response reports zero tokens, and the counts agree."""
    run = collect(gym, {"name": "s", "steps": [{"error": {"status": 400, "message": "too long"}}]}, code=0)
    for row in records(run / "rollouts.jsonl"):
        assert row["reward"] == 0.0
        assert row["response"]["status"] == "failed"
        assert (row["response"]["usage"]["input_tokens"], row["response"]["usage"]["output_tokens"]) == (0, 0)
    findings = [finding["check"] for row in records(run / "rollout_verdicts.jsonl") for finding in row["findings"]]
    assert "rollout_ended_on_failed_model_call" in findings
    assert "rollout_token_count_mismatch" not in findings


def test_a_response_without_usage_is_unknown_and_never_zero(gym: Gym) -> None:
    run = collect(gym, {"name": "s", "steps": [{"text": "Paris", "usage": None}]}, code=0)
    for row in records(run / "rollouts.jsonl"):
        assert row["response"]["usage"] is None
        assert row["ng_model_call_capture"]["metrics"]["tokens_in"] is None
        assert "prompt_tokens" not in row["ng_perf"]
    summary = json.loads((run / "quality_summary.json").read_text())["run"]
    assert summary["issues"]["model_call_missing_token_counts"] == 5
    assert summary["artifacts"]["coverage"]["rollout_token_count_mismatch"]["unobserved"] == 5


OWN_MODEL = """
from nemo_gym.base_responses_api_model import SimpleResponsesAPIModel


class OwnModel(SimpleResponsesAPIModel):
    async def responses(self, body: dict):
        text = str(body["input"])
        if "France" in text:
            raise RuntimeError("a bug of the model server")
        return {"Japan": [1], "Egypt": None, "Peru": {"status": "ok"}, "Italy": "Rome"}[
            next(name for name in ("Japan", "Egypt", "Peru", "Italy") if name in text)
        ]

    async def chat_completions(self, body: dict):
        raise NotImplementedError


if __name__ == "__main__":
    OwnModel.run_webserver()
"""


COUNTRIES = ("France", "Japan", "Egypt", "Peru", "Italy")


def test_what_a_model_server_of_ones_own_does_wrong_is_told_with_its_place_or_its_words(gym: Gym) -> None:
    folder = gym.folder / "responses_api_models" / "own_model"
    (folder / "configs").mkdir(parents=True)
    (folder / "app.py").write_text(OWN_MODEL)
    config = {"policy_model": {"responses_api_models": {"own_model": {"entrypoint": "app.py"}}}}
    (folder / "configs" / "own_model.yaml").write_text(yaml.safe_dump(config))
    run = gym.folder / "run"
    gym.run(
        *("eval", "run", "--search-dir", REPOSITORY / "examples", "--resources-server", "capital_cities"),
        *("--model-type", "own_model", "-o", run / "rollouts.jsonl", gym.head),
        code=1,
    )
    told = {}
    for row in records(run / "rollouts_failures.jsonl"):
        assert "reward" not in row
        country = next(name for name in COUNTRIES if name in str(row["responses_create_params"]))
        told[country] = row["failure_reason"]
    place = next(number for number, line in enumerate(OWN_MODEL.splitlines(), 1) if "a bug" in line)
    said = told.pop("France")
    assert said.startswith("server `policy_model` failed: the model call was answered 500: RuntimeError(")
    assert f"(at `{folder / 'app.py'}:{place}`" in said
    assert told == {
        "Japan": "what the model server answered is no Response: a JSON object is needed, this is a list: [1]",
        "Egypt": "what the model server answered is no Response: a JSON object is needed, this is a NoneType: null",
        "Peru": 'what the model server answered is no Response: it has no list `output`: {"status":"ok"}',
        "Italy": 'what the model server answered is no Response: a JSON object is needed, this is a str: "Rome"',
    }

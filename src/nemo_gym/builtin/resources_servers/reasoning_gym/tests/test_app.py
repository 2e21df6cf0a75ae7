"""Answers are scored by the task family's own verifier; text that it cannot read is worth 0, with its reason."""

from __future__ import annotations

import sys
from unittest.mock import MagicMock

import pytest
from starlette.testclient import TestClient

from nemo_gym.builtin.resources_servers.reasoning_gym import app as module
from nemo_gym.builtin.resources_servers.reasoning_gym.app import ReasoningGymConfig, ReasoningGymServer
from nemo_gym.builtin.resources_servers.reasoning_gym.make_dataset import ONE_DIGIT, make_rows
from nemo_gym.errors import ConfigError, MissingExtraError
from nemo_gym.server_utils import ServerClient

reasoning_gym = pytest.importorskip("reasoning_gym", reason="needs the extra `envs`: `make install`")


@pytest.fixture(scope="module")
def client() -> TestClient:
    config = ReasoningGymConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="reasoning_gym")
    return TestClient(ReasoningGymServer(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver())


def verify(client: TestClient, row: dict, text: str) -> dict:
    message = {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    response = {
        "id": "r",
        "object": "response",
        "created_at": 0,
        "model": "m",
        "output": [message] if text else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    answer = client.post("/verify", json={**row, "response": response})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("row", list(make_rows(size=8)), ids=lambda row: row["question"][-20:])
def test_the_right_number_earns_one_and_any_other_nothing(client: TestClient, row: dict) -> None:
    right = verify(client, row, f"Let me think. The answer is {row['answer']}.")
    assert (right["reward"], right["extracted_answer"], right["score_error"]) == (1.0, row["answer"], None)
    # A wrong number that contains the right digits is not half right.
    assert verify(client, row, f"It is {row['answer']}7")["reward"] == 0.0
    assert verify(client, row, "")["reward"] == 0.0


@pytest.mark.parametrize("text", ["hello there", "2 x 3 x", "\N{SNOWMAN}", "1" * 5000])
def test_an_answer_that_the_scorer_cannot_read_is_worth_nothing_and_says_why(client: TestClient, text: str) -> None:
    row = next(make_rows(size=1, datasets=["prime_factorization"], answer_format="text"))
    verdict = verify(client, row, text)
    assert verdict["reward"] < 1.0
    if verdict["score_error"] is not None:
        assert verdict["reward"] == 0.0
        assert ": " in verdict["score_error"]


def test_a_scorer_that_raises_is_an_answer_with_a_reason(client: TestClient) -> None:
    row = next(make_rows(size=1, datasets=["prime_factorization"], answer_format="text"))
    assert "ValueError" in verify(client, row, "hello there")["score_error"]


def test_many_families_make_rows_and_accept_their_own_answer(client: TestClient) -> None:
    families = ["leg_counting", "spell_backward", "number_sorting", "basic_arithmetic", "word_sorting", "caesar_cipher"]
    for row in make_rows(size=len(families), datasets=families, answer_format="tag"):
        assert verify(client, row, f"<answer>{row['answer']}</answer>")["reward"] == 1.0, row["dataset"]


def test_rows_are_the_same_for_the_same_seed_and_take_turns() -> None:
    rows = list(make_rows(size=9, seed=3))
    assert rows == list(make_rows(size=9, seed=3))
    assert [row["dataset"] for row in rows[:4]] == list(ONE_DIGIT)


def test_settings_that_cannot_be_used_are_named() -> None:
    with pytest.raises(ConfigError, match=r"chain_smu.*Did you mean `chain_sum`"):
        list(make_rows(datasets=["chain_smu"]))
    with pytest.raises(ConfigError, match="min_term"):
        list(make_rows(datasets={"chain_sum": {"min_term": 1}}))
    with pytest.raises(ConfigError, match="empty"):
        list(make_rows(datasets=[]))


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    module.scorer_of.cache_clear()
    with pytest.raises(MissingExtraError, match=r"evidence-gym\[envs\]"):
        module.scorer_of("chain_sum")
    with pytest.raises(MissingExtraError, match=r"evidence-gym\[envs\]"):
        list(make_rows())

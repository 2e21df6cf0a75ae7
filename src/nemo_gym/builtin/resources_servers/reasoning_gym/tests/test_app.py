"""Answers are scored by the task family's own verifier; text that it cannot read is worth 0, with its reason."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from starlette.testclient import TestClient

from nemo_gym.builtin.resources_servers.reasoning_gym.app import ReasoningGymConfig, ReasoningGymServer
from nemo_gym.builtin.resources_servers.reasoning_gym.make_dataset import ONE_DIGIT, make_rows
from nemo_gym.builtin.resources_servers.reasoning_gym.refusals import FORMULAS, LISTS, refusal
from nemo_gym.builtin.resources_servers.reasoning_gym.scoring import ScorePool
from nemo_gym.errors import ConfigError, MissingExtraError
from nemo_gym.server_utils import ServerClient

# Looked for, not imported: whoever only collects the tests need not wait for it.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="needs the extra `envs`: `make install`"
)


@pytest.fixture(scope="module")
def server() -> Iterator[ReasoningGymServer]:
    config = ReasoningGymConfig(
        host="127.0.0.1", port=1, entrypoint="app.py", name="reasoning_gym", score_workers=1, score_timeout_s=30
    )
    server = ReasoningGymServer(config=config, server_client=MagicMock(spec=ServerClient))
    yield server
    server._scores.close()


@pytest.fixture(scope="module")
def client(server: ReasoningGymServer) -> TestClient:
    return TestClient(server.setup_webserver())


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


def test_a_plotting_library_is_loaded_for_the_one_family_that_needs_it() -> None:
    code = """
import sys
from nemo_gym.builtin.resources_servers.reasoning_gym.make_dataset import make_rows
next(make_rows(datasets=["chain_sum"]))
assert "matplotlib" not in sys.modules
row = next(make_rows(datasets={"game_of_life": {"grid_size_x": 3, "grid_size_y": 3, "filled_cells": 3}}))
assert "matplotlib" in sys.modules
assert row["answer"].count("[") == 4
"""
    subprocess.run([sys.executable, "-c", code], check=True)


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
    with pytest.raises(MissingExtraError, match=r"evidence-gym\[envs\]"):
        ScorePool(workers=1, timeout_s=1, memory_mb=64)._score("chain_sum", {}, "1")
    with pytest.raises(MissingExtraError, match=r"evidence-gym\[envs\]"):
        list(make_rows())


@pytest.mark.parametrize("dataset", sorted(LISTS | FORMULAS))
def test_families_that_evaluate_text_run_nothing_of_it(client: TestClient, dataset: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    row = next(make_rows(size=1, datasets=[dataset], answer_format="text"))
    by_number = "+".join(f"chr({ord(letter)})" for letter in f"open({str(mark)!r},'w')")
    for text in (
        f"__import__('os').system('touch {mark}')",
        f"[open({str(mark)!r}, 'w')]",
        f"exec({by_number})",
        f"[].append(exec({by_number}))",
        f"(lambda: exec({by_number}))()",
    ):
        verdict = verify(client, row, text)
        assert verdict["reward"] == 0.0
        assert verdict["score_error"].startswith("the answer is n")
    assert not mark.exists()


@pytest.mark.parametrize("dataset", sorted(LISTS | FORMULAS))
def test_families_that_evaluate_text_accept_their_own_answers(client: TestClient, dataset: str) -> None:
    for row in make_rows(size=3, datasets=[dataset], answer_format="text"):
        verdict = verify(client, row, row["entry"]["answer"])
        assert (verdict["reward"], verdict["score_error"]) == (1.0, None), row["entry"]["answer"]


def test_an_answer_as_a_list_keeps_its_partial_reward(client: TestClient) -> None:
    row = next(make_rows(size=1, datasets=["spiral_matrix"], answer_format="text"))
    assert verify(client, row, str(row["entry"]["answer"].split()))["reward"] == 0.1


def test_an_answer_that_never_ends_is_worth_nothing_and_the_next_one_is_scored(
    client: TestClient, server: ReasoningGymServer
) -> None:
    row = next(make_rows(size=1, datasets=["puzzle24"], answer_format="text"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server._scores, "_timeout_s", 0.5)
        endless = verify(client, row, "9**9**9**9")
    assert endless["reward"] == 0.0
    assert endless["score_error"]
    assert verify(client, row, row["entry"]["answer"])["reward"] == 1.0


async def test_a_scoring_process_that_dies_is_replaced() -> None:
    row = next(make_rows(size=1, datasets=["chain_sum"], answer_format="text"))
    pool = ScorePool(workers=1, timeout_s=5, memory_mb=256)
    assert await pool.score("chain_sum", row["entry"], row["entry"]["answer"]) == (1.0, None)
    worker = pool._idle.get()
    assert worker is not None
    worker._process.kill()
    worker._process.wait()
    pool._idle.put(worker)
    assert await pool.score("chain_sum", row["entry"], row["entry"]["answer"]) == (1.0, None)
    pool.close()


@pytest.mark.parametrize(
    "text", ["x.real", "x._a", "S('x')", "x[0]", "x=1", "x:=1", "exec(x)", "sympify(x)", "x;y", "\u0661"]
)
def test_what_is_no_formula_is_refused(text: str) -> None:
    assert refusal("countdown", text, "1+1") is not None


@pytest.mark.parametrize("text", ["2*(3+4)", "-3*X**3*sin(X) + C", "E**x/2", "x^2 - 1.5", "alpha*2"])
def test_what_is_a_formula_is_scored(text: str) -> None:
    assert refusal("simple_integration", text, "alpha + C") is None

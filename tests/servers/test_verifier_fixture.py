"""A verifier is held to its cases: which cases there must be, what counts as a difference, what the file gets."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from nemo_gym.verifier_fixture import VerifierFixture, VerifierFixtureError, exercise_verifier_fixture


class Answer(BaseModel):
    given: int
    wanted: int


class Verdict(BaseModel):
    reward: float


class Verifier:
    """Only `verify`: no configuration, no web server."""

    made = 0

    def __init__(self) -> None:
        Verifier.made += 1
        self.calls = 0

    async def verify(self, body: Answer) -> Verdict:
        self.calls += 1
        if body.wanted < 0:
            raise ValueError("a number below zero is no task")
        return Verdict(reward=float(body.given == body.wanted) * self.calls)


FULL = {"name": "right", "kind": "full_reward", "request": {"given": 1, "wanted": 1}, "expected_reward": 1.0}
ZERO = {"name": "wrong", "kind": "zero_reward", "request": {"given": 2, "wanted": 1}, "expected_reward": 0.0}
MALFORMED = {"name": "odd", "kind": "malformed", "request": {"given": 1}, "expected_error": "Field required"}
AGAIN = {**FULL, "name": "again", "kind": "determinism"}
CASES = [FULL, ZERO, MALFORMED]


def written(path: Path, cases: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(case) + "\n" for case in cases), encoding="utf-8")
    return path


async def exercise(path: Path, cases: list[dict[str, Any]], fixture: dict[str, Any] | None = None, **how: Any) -> Any:
    file = written(path / "cases.jsonl", cases)
    made = VerifierFixture(
        **{"server_factory": Verifier, "request_model": Answer, "cases_path": file, **(fixture or {})}
    )
    return await exercise_verifier_fixture(made, **{"reward_range": [0, 1], "determinism": "unknown", **how})


async def test_every_case_has_a_server_of_its_own_and_a_result(tmp_path: Path) -> None:
    before = Verifier.made
    results = await exercise(tmp_path, [*CASES, AGAIN], determinism="seeded")
    assert [(result.name, result.kind, result.reward) for result in results] == [
        ("right", "full_reward", 1.0),
        ("wrong", "zero_reward", 0.0),
        ("odd", "malformed", None),
        ("again", "determinism", 1.0),
    ]
    assert results[2].error == "wanted: Field required"
    assert Verifier.made - before == 5  # the case of determinism is verified twice


@pytest.mark.parametrize("kind", ["full_reward", "zero_reward", "malformed", "determinism"])
async def test_a_kind_that_is_missing_is_named(tmp_path: Path, kind: str) -> None:
    with pytest.raises(VerifierFixtureError, match=f"`{kind}`"):
        await exercise(tmp_path, [case for case in [*CASES, AGAIN] if case["kind"] != kind], determinism="seeded")


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({**FULL, "expected_reward": 0.5}, "not 0.5"),
        ({**FULL, "request": {"given": 1, "wanted": 2}, "expected_reward": 0.0}, "`full_reward` is 1"),
        ({**FULL, "request": {"given": 1, "wanted": -2}}, "below zero"),
        ({**FULL, "request": {"given": 1}}, "wanted: Field required"),
        ({**FULL, "expected_error": "x"}, "no `expected_error`"),
        ({**FULL, "more": 1}, "more"),
        ({**FULL, "kind": "other"}, "kind"),
        ({**MALFORMED, "expected_reward": 1.0}, "no `expected_reward`"),
        ({**MALFORMED, "expected_error": "something else"}, "something else"),
        ({**MALFORMED, "request": FULL["request"]}, "was taken"),
    ],
)
async def test_what_does_not_hold_is_told_with_its_case(tmp_path: Path, case: dict[str, Any], said: str) -> None:
    cases = [case if case["name"] == other["name"] else other for other in CASES]
    with pytest.raises(ValueError, match=said) as told:
        await exercise(tmp_path, cases)
    assert "cases.jsonl" in str(told.value)


async def test_lower_may_be_better(tmp_path: Path) -> None:
    cases = [{**FULL, "kind": "zero_reward"}, {**ZERO, "kind": "full_reward"}, MALFORMED]
    assert len(await exercise(tmp_path, cases, higher_is_better=False)) == 3
    with pytest.raises(VerifierFixtureError):
        await exercise(tmp_path, cases)


async def test_an_error_of_the_verifier_itself_is_malformed_too(tmp_path: Path) -> None:
    case = {**MALFORMED, "request": {"given": 1, "wanted": -1}, "expected_error": "below zero"}
    assert len(await exercise(tmp_path, [FULL, ZERO, case])) == 3


async def test_a_verifier_may_be_called_in_another_way_and_be_seeded(tmp_path: Path) -> None:
    def roll(server: Verifier, body: Answer) -> dict[str, float]:
        return {"reward": float(body.given == body.wanted) * (random.random() > 0)}

    def luck(server: Verifier, body: Answer) -> dict[str, float]:
        return {"reward": random.random() if body.given == 9 else float(body.given == body.wanted)}

    assert len(await exercise(tmp_path, CASES, {"invoke": roll})) == 3
    lucky = {**AGAIN, "request": {"given": 9, "wanted": 0}, "expected_reward": random.Random(4).random()}
    seeded = {"invoke": luck, "reseed": lambda: random.seed(4)}
    assert len(await exercise(tmp_path, [*CASES, lucky], seeded, determinism="seeded")) == 4
    with pytest.raises(VerifierFixtureError, match="and then"):
        await exercise(tmp_path, [*CASES, lucky], {"invoke": luck}, determinism="seeded")


async def test_expectations_can_be_written_anew(tmp_path: Path) -> None:
    stale = [{**FULL, "expected_reward": 7.0}, ZERO, {**MALFORMED, "expected_error": "old words"}]
    await exercise(tmp_path, stale, update_expected=True)
    lines = [json.loads(line) for line in (tmp_path / "cases.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines == [FULL, ZERO, {**MALFORMED, "expected_error": "wanted: Field required"}]
    await exercise(tmp_path, lines)


async def test_a_file_that_is_no_list_of_cases_is_told(tmp_path: Path) -> None:
    with pytest.raises(VerifierFixtureError, match=r"line 1.*request"):
        await exercise(tmp_path, [{"name": "x", "kind": "malformed"}])
    with pytest.raises(VerifierFixtureError, match="another case"):
        await exercise(tmp_path, [*CASES, FULL])
    fixture = VerifierFixture(Verifier, Answer, tmp_path / "none.jsonl")
    with pytest.raises(VerifierFixtureError, match="cannot be read"):
        await exercise_verifier_fixture(fixture, reward_range=(0, 1), determinism="unknown")

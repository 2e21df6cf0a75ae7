"""The answer is read off the text as a person would read it."""

from __future__ import annotations

import pytest

from nemo_gym.builtin.resources_servers.reasoning_gym.answers import extract_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("7 * 4 = 28", "28"),
        ("It is 28.", "28"),
        ("28.0", "28"),
        ("so 2.50", "2.50"),
        ("the result is -4", "-4"),
        ("7-4", "4"),
        ("= \N{MINUS SIGN}4", "-4"),
        ("1,234 in all", "1234"),
        ("+5", "5"),
        ("no digits", None),
        ("", None),
    ],
)
def test_the_last_number_of_a_text(text: str, answer: str | None) -> None:
    assert extract_answer(text, "last_number") == answer


def test_the_last_answer_element_counts() -> None:
    assert extract_answer("<answer>1</answer> no, <answer>\n 2 </answer>", "tag") == "2"
    assert extract_answer("the answer is 2", "tag") is None


def test_a_whole_text_is_stripped_and_nothing_is_none() -> None:
    assert extract_answer("  yes \n", "text") == "yes"
    assert extract_answer(" \n", "text") is None

"""Scripts choose their step from the request alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_gym.builtin.responses_api_models.scripted_model.script import (
    Chosen,
    ScriptBook,
    load_script_book,
    render,
)
from nemo_gym.errors import ConfigError, ConfigFileNotFoundError

DEFAULT = Path(__file__).parents[1] / "scripts" / "default.yaml"


def book(*scripts: dict) -> ScriptBook:
    return ScriptBook.model_validate({"scripts": list(scripts)})


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def call(name: str = "f", call_id: str = "c1") -> dict:
    return {"type": "function_call", "name": name, "call_id": call_id, "arguments": "{}"}


def output(text: str = "{}", call_id: str = "c1") -> dict:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def choose(scripts: ScriptBook, *items: dict, metadata: dict | None = None, seed: int | None = None) -> Chosen:
    chosen = scripts.choose({"input": list(items), "metadata": metadata}, seed=seed)
    assert isinstance(chosen, Chosen), chosen
    return chosen


TWO = {"name": "two", "match": "go", "steps": [{"calls": [{"name": "f"}]}, {"text": "done"}]}


def test_the_step_is_the_number_of_model_turns_since_the_last_user_message() -> None:
    assert choose(book(TWO), user("go")).step_index == 0
    assert choose(book(TWO), user("go"), call(), output()).step_index == 1


def test_parallel_calls_with_their_reasoning_are_one_turn() -> None:
    turn = [{"type": "reasoning", "id": "r", "summary": []}, call("f", "a"), call("g", "b")]
    assert choose(book(TWO), user("go"), *turn, output(call_id="a"), output(call_id="b")).step_index == 1


def test_a_later_user_message_begins_its_script_anew() -> None:
    assert (
        choose(book(TWO), user("go"), call(), output(), {"role": "assistant", "content": "x"}, user("go")).step_index
        == 0
    )


def test_the_last_answer_is_repeated_when_the_conversation_goes_on() -> None:
    items = [user("go"), call(), output(), {"role": "assistant", "content": "done"}, call(), output()]
    assert choose(book(TWO), *items).step.text == "done"


def test_a_conversation_past_a_script_that_ends_in_calls_is_refused() -> None:
    scripts = book({"name": "one", "steps": [{"calls": [{"name": "f"}]}]})
    assert "already past" in str(scripts.choose({"input": [user("x"), call(), output()]}))


def test_metadata_names_a_script_before_any_match() -> None:
    scripts = book(TWO, {"name": "other", "steps": [{"text": "o"}]})
    assert choose(scripts, user("go"), metadata={"script": "other"}).script.name == "other"


def test_an_unknown_script_name_is_answered_with_the_nearest() -> None:
    assert "Did you mean `two`?" in str(book(TWO).choose({"input": "go", "metadata": {"script": "tow"}}))


def test_without_a_match_the_first_script_that_needs_none_answers() -> None:
    scripts = book(TWO, {"name": "default", "steps": [{"text": "d"}]})
    assert choose(scripts, user("hello")).script.name == "default"
    assert "no script matches" in str(book(TWO).choose({"input": "hello"}))


def test_a_seed_chooses_a_variant() -> None:
    scripts = book({"name": "v", "steps": [{"text": "a"}], "variants": [[{"text": "b"}], [{"text": "c"}]]})
    assert [choose(scripts, user("x"), seed=seed).step.text for seed in (None, 0, 1, 2, 3)] == ["a", "a", "b", "c", "a"]


def test_values_come_from_the_match_and_from_the_last_tool_output() -> None:
    scripts = book({"name": "m", "match": r"add (?P<n>\d+)", "steps": [{"calls": [{"name": "f"}]}, {"text": "t"}]})
    chosen = choose(scripts, user("add 12"), call(), output('{"sum": 30}'))
    assert render({"a": "{n|int}", "b": "it is {tool.sum} of {n}", "c": ["{unknown}"]}, chosen.values) == {
        "a": 12,
        "b": "it is 30 of 12",
        "c": ["{unknown}"],
    }


def test_a_misspelt_key_is_an_error_that_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("scripts: [{name: a, steps: [{txet: hello}]}]")
    with pytest.raises(ConfigError, match=r"scripts\.0\.steps\.0\.txet"):
        load_script_book(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scripts: [{name: a, steps: []}]", "at least 1"),
        ("scripts: [{name: a, match: '(', steps: [{}]}]", "regular expression"),
        ("scripts: [{name: a, steps: [{}]}, {name: a, steps: [{}]}]", "same name"),
        ("scripts: {", "not YAML"),
        ("scripts: [{name: a, steps: [{error: {status: 200}}]}]", "greater than or equal to 400"),
    ],
)
def test_a_script_file_that_cannot_be_played_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_script_book(path)


def test_a_missing_script_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileNotFoundError, match=r"nowhere\.yaml"):
        load_script_book(tmp_path / "nowhere.yaml")


def test_the_shipped_scripts_load_and_cover_the_shipped_environments() -> None:
    assert {"ledger_transfer", "weather", "default"} <= set(load_script_book(DEFAULT).by_name)

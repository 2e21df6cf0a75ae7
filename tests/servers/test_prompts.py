from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from nemo_gym.prompt import (
    PromptConfig,
    apply_prompt_to_row,
    fill_prompt,
    load_prompt_config,
    materialize_prompts,
    validate_prompt_compatibility,
)

PROMPT = PromptConfig(user="Q: {question} {{keep}}", system="Be {tone}.")


def test_placeholders_are_filled_and_the_system_message_comes_first() -> None:
    assert fill_prompt(PROMPT, {"question": "2+2", "tone": "brief"}) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Q: 2+2 {keep}"},
    ]


def test_an_unknown_placeholder_lists_the_rows_fields() -> None:
    with pytest.raises(KeyError, match="`answer`"):
        fill_prompt(PROMPT, {"answer": 1})


def test_placeholders_reach_into_nothing() -> None:
    for text in ("{question.__class__}", "{question[0]}"):
        with pytest.raises(ValueError, match="plain field name"):
            fill_prompt(PromptConfig(user=text), {"question": "x"})


def test_a_row_keeps_its_other_settings_and_is_not_changed() -> None:
    row = {"question": "x", "tone": "y", "responses_create_params": {"temperature": 0}}
    filled = apply_prompt_to_row(row, PROMPT)
    assert filled["responses_create_params"]["temperature"] == 0
    assert filled["responses_create_params"]["input"][1]["content"] == "Q: x {keep}"
    assert row["responses_create_params"] == {"temperature": 0}
    assert "input" in apply_prompt_to_row({**row, "responses_create_params": None}, PROMPT)["responses_create_params"]


def test_rows_with_their_own_input_are_listed() -> None:
    rows = [{}, {"responses_create_params": {"input": "x"}}, {"responses_create_params": {"input": []}}]
    with pytest.raises(ValueError, match="already: 1"):
        validate_prompt_compatibility(rows, PROMPT)


def test_a_prompt_file_is_found_below_the_component_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path))
    (tmp_path / "p.yaml").write_text("user: 'say {x}'\n")
    (tmp_path / "bad.yaml").write_text("system: only\n")
    assert load_prompt_config("p.yaml").user == "say {x}"
    with pytest.raises(ValidationError):
        load_prompt_config("bad.yaml")
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        load_prompt_config("missing.yaml")


def test_a_file_is_rendered_with_the_prompt_it_used(tmp_path: Path) -> None:
    prompt, rows, out = tmp_path / "p.yaml", tmp_path / "in.jsonl", tmp_path / "deep" / "out.jsonl"
    prompt.write_text("user: '{q}'\n")
    rows.write_text('{"q": "a"}\n\n{"q": "b"}\n')
    materialize_prompts(rows, str(prompt), out)
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["responses_create_params"]["input"][0]["content"] for row in written] == ["a", "b"]
    assert written[0]["prompt_config_used"] == str(prompt)
    rows.write_text('{"q": "a"}\nnot json\n')
    with pytest.raises(ValueError, match="line 2"):
        materialize_prompts(rows, str(prompt), out)

"""The command line of a rollout's process: placeholders, and tasks that do not fit into `{prompt}`."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.builtin.responses_api_agents.command_agent.command import (
    Places,
    UnusableTaskError,
    arguments,
    filled,
    without_secrets,
    words_of,
)
from nemo_gym.errors import ConfigError

PLACES = Places(
    base_url="http://model/ng-rollout/0-0",
    invocation_url="http://model/ng-rollout/0-0/inv/{invocation}",
    tools_url="http://agent/tools/k",
    task_file="/f/task.json",
    report_file="/f/report.jsonl",
    work_dir="/f/work",
    home="/f/home",
    model="policy",
    task_id="t",
    rollout_id="0-0",
)
USER = {"role": "user", "content": "do it"}


def made(command: str | list[str], given: Any = "do it", **params: Any) -> list[str]:
    return arguments(words_of(command), {"input": given, **params}, PLACES)


def test_a_command_is_split_as_a_shell_does_and_placeholders_are_filled_inside_words() -> None:
    command = """agent -c 'p.ng={name="ng",base_url="{base_url}/v1"}' -m {model} {prompt}"""
    url = "http://model/ng-rollout/0-0/v1"
    assert made(command, "it's; $HOME `x`") == [
        *("agent", "-c", f'p.ng={{name="ng",base_url="{url}"}}', "-m", "policy", "it's; $HOME `x`")
    ]
    assert made(["agent", "{openai_base_url}", "a b"]) == ["agent", url, "a b"]


def test_what_a_task_says_is_never_a_placeholder() -> None:
    assert made("agent {prompt}", "say {model} and {task_file}") == ["agent", "say {model} and {task_file}"]


@pytest.mark.parametrize(
    ("command", "message"),
    [("", "no command"), ([], "no command"), ("agent 'x", "split"), ("agent {promt}", "Did you mean `prompt`")],
)
def test_a_command_that_cannot_be_run_is_refused(command: str | list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        words_of(command)


def test_system_text_goes_where_the_command_asks_for_it() -> None:
    given = [{"role": "developer", "content": [{"type": "input_text", "text": "be brief"}]}, USER]
    assert made("agent {system} {prompt}", given, instructions="be kind") == ["agent", "be kind\n\nbe brief", "do it"]
    assert made("agent {task_file} {prompt}", given) == ["agent", "/f/task.json", "do it"]
    assert made("agent {system} {prompt}") == ["agent", "", "do it"]


@pytest.mark.parametrize(
    "given",
    [
        [{"role": "system", "content": "be brief"}, USER],
        [USER, {"role": "assistant", "content": "yes"}, USER],
        [USER, {"role": "developer", "content": "be brief"}],
        [{"role": "assistant", "content": "yes"}],
        [],
        [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
        [{"role": "user", "content": None}],
    ],
)
def test_a_task_that_prompt_would_cut_short_is_refused_and_one_with_a_file_is_not(given: Any) -> None:
    with pytest.raises(UnusableTaskError, match="task_file"):
        made("agent {prompt}", given)
    assert made("agent {task_file}", given) == ["agent", "/f/task.json"]


def test_the_key_is_in_the_environment_and_on_no_command_line() -> None:
    environment = PLACES.environment("the-key-of-the-run")
    assert environment["OPENAI_API_KEY"] == environment["ANTHROPIC_API_KEY"] == "the-key-of-the-run"
    assert environment["OPENAI_BASE_URL"] == "http://model/ng-rollout/0-0/v1"
    assert environment["ANTHROPIC_BASE_URL"] == "http://model/ng-rollout/0-0"
    assert "the-key-of-the-run" not in PLACES.placeholders.values()


def test_values_of_secrets_are_hidden() -> None:
    said = without_secrets("401 for sk-12345678 at http://x", {"OPENAI_API_KEY": "sk-12345678", "A_URL": "http://x"})
    assert said == "401 for [hidden] at http://x"


def test_a_secret_that_another_one_begins_with_does_not_leave_its_end() -> None:
    secrets = {
        "A_KEY": "sk-12345678",
        "B_KEY": "sk-12345678-more",
        "SMTP_PASSWD": "hunter22!",
        "BASIC_AUTH": "me:1234567",
    }
    said = without_secrets("sk-12345678-more sk-12345678 hunter22! me:1234567", secrets)
    assert said == "[hidden] [hidden] [hidden] [hidden]"


def test_other_braces_stay() -> None:
    assert filled('{"url": "{base_url}", "x": {y}}', PLACES.placeholders) == (
        '{"url": "http://model/ng-rollout/0-0", "x": {y}}'
    )

"""Values that are wrong are named before anything starts, and never as a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_gym.config import ResolvedConfig, find_component
from nemo_gym.config.values import url_problem
from nemo_gym.errors import ConfigError, ConfigFileNotFoundError

Load = Callable[..., ResolvedConfig]
Write = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("world")

TALKER = "quiz_agent.responses_api_agents.talker"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("+head_server=[1]", "`head_server` is a list at one place and a mapping at another"),
        ("+head_server=x", "`head_server` must be a mapping with `host` and `port`, not `x`"),
        ("+head_server.host=3", "`head_server.host` must be text"),
        ("+head_server.port=x", "`head_server.port` must be a number"),
        ("+server_spinup_timeout_seconds=x", "`server_spinup_timeout_seconds` must be a number of seconds"),
        ("+server_spinup_timeout_seconds=-1", "0 or more, not `-1`"),
        ("+model_endpoint_readiness_timeout_seconds=[1]", "must be a number of seconds"),
        ("+port_range_low=x", "`port_range_low` must be a number from 1 to 65535"),
        ("+num_repeats=x", "`num_repeats` must be a whole number, 1 or more, not `x`"),
        ("+num_repeats=0", "not `0`"),
        ("+disallowed_ports=x", "`disallowed_ports` must be a list of port numbers"),
        ("+disallowed_ports=[x]", "`disallowed_ports` must be a list of port numbers"),
        ("+default_host=[1]", "`default_host` must be text"),
        ("+nemo_gym_log_dir=[1]", "`nemo_gym_log_dir` must be text"),
        (f"++{TALKER}.datasets=x", "`datasets` must be a list of mappings, not `x`"),
        (f"++{TALKER}.datasets=[x]", "`datasets[0]` must be a mapping"),
        (f"++{TALKER}.datasets[0].num_repeats=x", "`datasets[0]`: `num_repeats` must be a whole number, 1 or more"),
        (f"++{TALKER}.datasets[0].num_repeats=0", "not `0`"),
        (f"++{TALKER}.datasets[0].num_repeat=2", "Did you mean `num_repeats`?"),
        (f"++{TALKER}.datasets[0].type=exmaple", "Did you mean `example`?"),
        (f"++{TALKER}.datasets[0].jsonl_fpath=3", "`jsonl_fpath` must be text"),
        (f"~{TALKER}.datasets[0].jsonl_fpath", "`datasets[0]` needs a `jsonl_fpath`"),
        ("++policy_model.responses_api_models.oracle.the_base_url=localhost:1/v1", "must begin with `http://`"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_it(
    load: Load, files: list[str], model: tuple[str, ...], override: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(*model, override, config_paths=files)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_that_are_right_pass(load: Load, files: list[str], model: tuple[str, ...]) -> None:
    right = ("+server_spinup_timeout_seconds=0.5", "+disallowed_ports=[1]", "+port_range_low='5000'")
    load(*model, *right, f"++{TALKER}.datasets[0].num_repeats=2", config_paths=files)


@pytest.mark.parametrize("url", ["", " ", "localhost:9401/v1", "localhost", "ftp://host/v1", "http://", "/v1"])
def test_what_is_no_url_is_told_from_what_is(url: str) -> None:
    assert url_problem(url)
    assert url_problem("http://localhost:9401/v1") is None
    assert url_problem("HTTPS://host") is None


def test_a_missing_model_value_names_its_flag(load: Load, files: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"`policy_base_url` is required and not set.*`--model-url URL`"):
        load("+policy_api_key=x", config_paths=files)


def test_a_search_directory_that_does_not_exist_is_named(load: Load, tmp_path: Path) -> None:
    with pytest.raises(ConfigFileNotFoundError, match=r"`nodir` \(`--search-dir`\) is no folder") as caught:
        load(search_dirs=["nodir"])
    assert caught.value.exit_code == 2
    assert load(environ={"NEMO_GYM_EXTRA_ROOTS": str(tmp_path / "gone")}).notices == ()


def test_a_component_without_its_yaml_file_is_told_from_one_that_does_not_exist(write: Write, tmp_path: Path) -> None:
    write("resources_servers/bare/app.py")
    with pytest.raises(ConfigFileNotFoundError, match=r"its folder `.*bare` has no `configs/bare\.yaml`"):
        find_component("resources_servers", "bare", [tmp_path])
    write("resources_servers/bare/configs/other.yaml")
    with pytest.raises(ConfigFileNotFoundError, match=r"It has `bare/other`\."):
        find_component("resources_servers", "bare", [tmp_path])
    write("environments/empty/README.md")
    with pytest.raises(ConfigFileNotFoundError, match=r"has no `config\.yaml`"):
        find_component("environments", "empty", [tmp_path])

"""The configuration of a process: cached, handed down, or parsed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym import global_config
from nemo_gym.config.global_dict import use_global_config_dict
from nemo_gym.errors import ConfigError


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.delenv("NEMO_GYM_CONFIG_DICT", raising=False)
    monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["script.py"])
    use_global_config_dict(None)
    yield
    use_global_config_dict(None)


@pytest.mark.parametrize("text", ['{"a": {"b": 1}, "s": "x"}', "a: {b: 1}\ns: ${oc.select:none,x}\n"])
def test_a_started_process_uses_what_it_was_handed_unchecked(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", text)
    config = global_config.get_global_config_dict()
    assert isinstance(config, DictConfig)
    assert config.a.b == 1
    assert config.get("s") == "x"
    assert global_config.maybe_get_global_config_dict() is config


def test_text_that_looks_like_an_interpolation_survives_the_hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", '{"prompt": "costs ${price}", "p": ["${x"]}')
    config = global_config.get_global_config_dict()
    assert OmegaConf.to_container(config, resolve=True) == {"prompt": "costs ${price}", "p": ["${x"]}


def test_without_either_nothing_is_parsed_by_maybe() -> None:
    assert global_config.maybe_get_global_config_dict() is None


def test_a_script_reads_its_own_arguments_and_env_yaml_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "env.yaml").write_text("hf_token: secret\nlimit: 1\n")
    monkeypatch.setattr(sys, "argv", ["script.py", "--flag", "+my_key=3", "++limit=2"])
    config = global_config.get_global_config_dict()
    assert (config.my_key, config.limit, config.hf_token) == (3, 2, "secret")
    assert global_config.get_hf_token() == "secret"
    monkeypatch.setattr(sys, "argv", ["script.py", "+my_key=4"])
    assert global_config.get_global_config_dict() is config


def test_the_parser_leaves_sources_out_and_hides_secrets_when_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "env.yaml").write_text("hf_token: secret\n")
    monkeypatch.setattr(sys, "argv", ["script.py", "+limit=3"])
    parser = global_config.GlobalConfigDictParser()
    options = global_config.GlobalConfigDictParserConfig
    bare = parser.parse(options(skip_load_from_cli=True, skip_load_from_dotenv=True))
    assert "limit" not in bare
    assert "hf_token" not in bare
    assert parser.parse(options(hide_secrets=True)).hf_token == "****"
    assert parser.parse_no_environment(OmegaConf.create({"a": "${b}", "b": 2})).a == 2
    other = tmp_path / "other.yaml"
    other.write_text("hf_token: other\n")
    assert parser.parse(options(dotenv_path=other)).hf_token == "other"
    assert "policy_model" in options.NO_MODEL_GLOBAL_CONFIG_DICT


def test_a_server_block_is_found_by_instance_name() -> None:
    config = OmegaConf.create({"quiz": {"resources_servers": {"q": {"port": 5}}}})
    assert global_config.get_first_server_config_dict(config, "quiz").port == 5
    with pytest.raises(ConfigError, match=r"Did you mean `quiz`\?"):
        global_config.get_first_server_config_dict(config, "quizz")


def test_an_open_port_is_in_the_configured_range() -> None:
    use_global_config_dict({"port_range_low": 17000, "port_range_high": 17001, "disallowed_ports": [17000]})
    assert global_config.find_open_port() == 17001
    with pytest.raises(RuntimeError, match="no free port"):
        global_config.find_open_port([17001], max_retries=3)

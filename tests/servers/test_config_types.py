from __future__ import annotations

import sys
from typing import Any

import pytest
from omegaconf import OmegaConf
from pydantic import ValidationError

from nemo_gym.config_types import (
    BaseNeMoGymCLIConfig,
    BenchmarkDatasetConfig,
    DatasetConfig,
    Domain,
    ModelServerRef,
    ResourcesServerRef,
    is_almost_server,
    is_server_ref,
    maybe_get_server_instance_config,
)


def dataset(**fields: Any) -> DatasetConfig:
    return DatasetConfig(**{"name": "d", "type": "example", "jsonl_fpath": "d.jsonl", **fields})


def test_a_reference_has_a_fixed_type() -> None:
    assert ModelServerRef(type="responses_api_models", name="m").name == "m"
    with pytest.raises(ValidationError):
        ModelServerRef(type="resources_servers", name="m")
    assert is_server_ref({"type": "resources_servers", "name": "r", "extra": 1}) == ResourcesServerRef(
        type="resources_servers", name="r"
    )
    assert is_server_ref({"type": "other", "name": "r"}) is None
    assert is_server_ref({"type": "resources_servers"}) is None
    assert is_server_ref("resources_servers") is None


def test_a_bad_domain_lists_the_good_ones() -> None:
    block = {"resources_servers": {"impl": {"entrypoint": "app.py", "domain": "cooking"}}}
    config, error = maybe_get_server_instance_config("r", block)
    assert config is None
    assert all(f"'{domain.value}'" in str(error) for domain in Domain)


def test_a_server_block_becomes_an_instance() -> None:
    block = OmegaConf.create(
        {"resources_servers": {"impl": {"entrypoint": "app.py", "domain": "math", "own": 1, "datasets": []}}}
    )
    config, error = maybe_get_server_instance_config("r", block)
    assert error is None
    assert config is not None
    assert config.get_server_ref() == ResourcesServerRef(type="resources_servers", name="r")
    assert config.get_inner_run_server_config().entrypoint == "app.py"
    assert config.get_inner_run_server_config_dict().own == 1
    assert config.datasets == []


@pytest.mark.parametrize(
    "block",
    [
        {"resources_servers": {"impl": {"entrypoint": "app.py"}}},
        {"resources_servers": {"a": {"entrypoint": "app.py", "domain": "math"}, "b": {"entrypoint": "app.py"}}},
        {"responses_api_models": {"impl": {"host": 3}}},
    ],
)
def test_a_broken_server_block_says_why(block: dict[str, Any]) -> None:
    config, error = maybe_get_server_instance_config("r", block)
    assert config is None
    assert error is not None


def test_what_is_no_server_is_neither() -> None:
    for block in ({"a": 1}, 3, None, {"resources_servers": {}, "responses_api_models": {}}):
        assert maybe_get_server_instance_config("r", block) == (None, None)
    assert is_almost_server({"responses_api_models": {"m": {"entrypoint": "app.py"}}})
    assert not is_almost_server({"responses_api_models": {"m": {}}})
    assert not is_almost_server({"other": {"m": {"entrypoint": "app.py"}}})


def test_training_data_needs_a_known_license() -> None:
    with pytest.raises(ValidationError, match="license is required"):
        dataset(type="train")
    with pytest.raises(ValidationError, match="not one of"):
        dataset(type="train", license="GPL")
    assert dataset(type="train", license="MIT").license == "MIT"
    assert dataset(license="CC-BY-SA-4.0").license == "Creative Commons Attribution-ShareAlike 4.0 International"


def test_older_identifiers_are_mirrored_into_the_source_and_back() -> None:
    with pytest.warns(DeprecationWarning, match="older forms"):
        older = dataset(huggingface_identifier={"repo_id": "a/b"})
    assert older.source is not None
    assert older.source.model_dump() == {"type": "huggingface", "repo_id": "a/b", "artifact_fpath": None}
    newer = dataset(source={"type": "gitlab", "dataset_name": "n", "version": "1", "artifact_fpath": "f"})
    assert newer.gitlab_identifier is not None
    with pytest.raises(ValidationError, match="not both"):
        dataset(source={"type": "huggingface", "repo_id": "a"}, huggingface_identifier={"repo_id": "a"})


def test_unset_preparation_is_left_out_of_dumps() -> None:
    assert not {"prepare_script", "prepare_dependencies", "taskset"} & dataset().model_dump().keys()
    assert dataset(prepare_script="p.py").model_dump()["prepare_script"] == "p.py"
    with pytest.raises(ValidationError):
        dataset(num_repeats=0)
    with pytest.raises(ValidationError):
        dataset(taskset="")


def test_a_benchmark_pins_an_agent_or_names_a_taskset() -> None:
    fields = {"name": "b", "type": "benchmark", "jsonl_fpath": "b.jsonl", "prepare_script": "p.py"}
    assert BenchmarkDatasetConfig(**fields, agent="a").agent == "a"
    with pytest.raises(ValidationError):
        BenchmarkDatasetConfig(**fields, agent="a", taskset="t")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"help": True}, []),
        ({"h": True}, []),
        ({"path": "x"}, ["-h"]),
        ({}, ["--help"]),
        (OmegaConf.create({}), ["-h"]),
    ],
)
def test_help_shows_the_fields_and_exits(
    given: Any, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Command(BaseNeMoGymCLIConfig):
        """Does a thing."""

        limit: int = 3
        path: str

    monkeypatch.setattr(sys, "argv", ["script.py", "+path=x"])
    assert Command.model_validate({"path": "x"}).limit == 3
    monkeypatch.setattr(sys, "argv", ["script.py", *words])
    with pytest.raises(SystemExit) as ended:
        Command.model_validate(given)
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "limit: int (default 3)" in shown
    assert "path: str (required)" in shown

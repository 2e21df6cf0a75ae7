from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_gym.capture import (
    ModelCallCaptureConfig,
    make_capture_store,
    model_call_capture_dirs_from_config,
    observability_enabled_from_config,
)
from nemo_gym.errors import ConfigError


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"observability_enabled": False, "model_call_capture_dir": "relative"},
        {"observability_enabled": None, "model_call_capture_dir": 7},
        {"model_call_capture_dir": "/absent"},
        {"policy": {"observability_enabled": True}},
    ],
)
def test_capture_is_off_by_default_and_inside_a_servers_block_a1_c1(config: dict[str, Any]) -> None:
    assert not ModelCallCaptureConfig.from_global_config(config).observability_enabled
    assert make_capture_store(config) is None
    assert model_call_capture_dirs_from_config(config) == []
    assert not observability_enabled_from_config(config)


def test_enabled_needs_a_directory() -> None:
    for directory in ({}, {"model_call_capture_dir": ""}, {"model_call_capture_dir": None}):
        with pytest.raises(ConfigError, match=r"^model_call_capture_dir is required when observability_enabled=true$"):
            ModelCallCaptureConfig.from_global_config({"observability_enabled": True, **directory})


@pytest.mark.parametrize("directory", ["captures", "./captures", "~/captures", "$HOME/captures"])
def test_the_directory_must_be_absolute_and_is_not_expanded(directory: str) -> None:
    with pytest.raises(ValueError, match=r"^model_call_capture_dir must be an absolute path$"):
        ModelCallCaptureConfig(observability_enabled=True, model_call_capture_dir=Path(directory))


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("False", False), (1, True), ("off", False)])
def test_the_switch_understands_what_a_command_line_gives(value: Any, expected: bool) -> None:
    config = {"observability_enabled": value, "model_call_capture_dir": "/captures"}
    assert ModelCallCaptureConfig.from_global_config(config).observability_enabled is expected
    assert observability_enabled_from_config(config) is expected


def test_a_switch_that_says_nothing_is_an_error() -> None:
    with pytest.raises(ConfigError, match="must be true or false"):
        ModelCallCaptureConfig.from_global_config({"observability_enabled": "maybe"})


def test_the_settings_come_from_an_omegaconf_mapping_too(tmp_path: Path) -> None:
    config = OmegaConf.create({"observability_enabled": True, "model_call_capture_dir": str(tmp_path), "x": "${y}"})
    assert model_call_capture_dirs_from_config(config) == [tmp_path]
    store = make_capture_store(ModelCallCaptureConfig.from_global_config(config))
    assert store is not None
    assert store.root == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    """The run was asked to record: it must not start without."""
    (tmp_path / "file").write_text("")
    config = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path / "file" / "captures")}
    with pytest.raises(ConfigError, match="cannot be written"):
        make_capture_store(config)

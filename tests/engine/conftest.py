from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_gym.config import ResolvedConfig, assign_ports, load_config

COMPONENTS = Path(__file__).parent / "components"
BLOCK = "plain.resources_servers.plain"


@pytest.fixture
def one_server() -> Callable[..., ResolvedConfig]:
    """A configuration with one server process, and settings for it."""

    def make(*overrides: str, **settings: object) -> ResolvedConfig:
        block = {"entrypoint": "app.py", "domain": "other", **settings}
        config = load_config(
            initial={"plain": {"resources_servers": {"plain": block}}},
            overrides=overrides,
            search_dirs=[COMPONENTS],
            env_file=None,
        )
        return assign_ports(config)

    return make


@pytest.fixture
def three_servers() -> Callable[..., ResolvedConfig]:
    """A resources server, its agent and a model server."""

    def make(*overrides: str) -> ResolvedConfig:
        files = [
            "resources_servers/plain/configs/plain.yaml",
            "responses_api_models/plain_model/configs/plain_model.yaml",
        ]
        return assign_ports(
            load_config(config_paths=files, overrides=overrides, search_dirs=[COMPONENTS], env_file=None)
        )

    return make

"""The page beside a shipped server names every setting of its own."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from documents import REPOSITORY
from pydantic import BaseModel

BUILTIN = REPOSITORY / "src" / "nemo_gym" / "builtin"
SERVERS = sorted(path.parent for path in BUILTIN.glob("*/*/app.py"))


def own_settings(folder: Path) -> set[str]:
    """Return the fields that the server's configuration adds to those of its kind."""
    module = importlib.import_module(f"nemo_gym.builtin.{folder.parent.name}.{folder.name}.app")
    (config,) = [
        kind
        for name, kind in vars(module).items()
        if name.endswith("Config") and getattr(kind, "__module__", None) == module.__name__
    ]
    mine = [kind for kind in config.__mro__ if issubclass(kind, BaseModel)]
    inherited = [kind for kind in mine if not kind.__module__.startswith("nemo_gym.builtin")]
    return set(config.model_fields) - {name for kind in inherited for name in kind.model_fields}


@pytest.mark.parametrize("folder", SERVERS, ids=lambda folder: folder.name)
def test_the_page_beside_a_server_names_every_setting(folder: Path) -> None:
    page = (folder / "README.md").read_text(encoding="utf-8")
    if folder.name == "inference_provider":  # whose page sends the reader there
        page += (folder.parent / "vllm_model" / "README.md").read_text(encoding="utf-8")
    assert own_settings(folder) - set(re.findall(r"`([a-z_]+)`", page)) == set()


def test_there_are_servers_and_settings_to_look_for() -> None:
    assert len(SERVERS) >= 10
    assert "wire" in own_settings(BUILTIN / "responses_api_models" / "openai_model")

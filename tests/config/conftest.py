from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_gym.config import ResolvedConfig, load_config

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file below the working folder of the test."""

    def put(name: str, text: str = "") -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
        return file

    return put


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., ResolvedConfig]:
    """`load_config` with the test's folder as working directory and an empty environment."""

    def call(*overrides: str, **options: object) -> ResolvedConfig:
        return load_config(**{"overrides": overrides, "cwd": tmp_path, "environ": {}, **options})  # type: ignore[arg-type]

    return call


@pytest.fixture
def world(write: Write) -> None:
    """One user-made component of each kind: `quiz`, its agent and a model server."""
    write("resources_servers/quiz/app.py")
    write(
        "resources_servers/quiz/configs/quiz.yaml",
        """
        quiz:
          resources_servers:
            quiz: {entrypoint: app.py, domain: knowledge, description: Questions}
        quiz_agent:
          responses_api_agents:
            talker:
              entrypoint: app.py
              max_steps: 4
              resources_server: {type: resources_servers, name: quiz}
              model_server: {type: responses_api_models, name: policy_model}
              datasets: [{name: example, type: example, jsonl_fpath: data/example.jsonl}]
        """,
    )
    write("responses_api_agents/talker/app.py")
    write("responses_api_agents/thinker/app.py")
    write(
        "responses_api_agents/thinker/configs/thinker.yaml",
        """
        thinker:
          responses_api_agents:
            thinker:
              entrypoint: app.py
              depth: 2
              resources_server: {type: resources_servers, name: "???"}
              model_server: {type: responses_api_models, name: policy_model}
        """,
    )
    write("responses_api_models/oracle/app.py")
    write(
        "responses_api_models/oracle/configs/oracle.yaml",
        """
        policy_model:
          responses_api_models:
            oracle: {entrypoint: app.py, url: "${policy_base_url}", key: "${policy_api_key}"}
        """,
    )


QUIZ = "resources_servers/quiz/configs/quiz.yaml"
ORACLE = "responses_api_models/oracle/configs/oracle.yaml"


@pytest.fixture
def files() -> list[str]:
    return [QUIZ, ORACLE]


@pytest.fixture
def model() -> tuple[str, ...]:
    return ("+policy_base_url=http://127.0.0.1:1/v1", "+policy_api_key=sk-1")

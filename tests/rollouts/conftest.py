from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from stub_servers import StubServers


@pytest.fixture
def servers() -> Iterator[StubServers]:
    with StubServers() as stub:
        yield stub


@pytest.fixture
def head(servers: StubServers) -> SimpleNamespace:
    return SimpleNamespace(host="127.0.0.1", port=servers.head_port)


@pytest.fixture
def make_rows() -> Callable[..., list[dict[str, Any]]]:
    def make(tasks: int = 1, rollouts: int = 1, agent: str = "agent_a") -> list[dict[str, Any]]:
        return [
            {
                "responses_create_params": {"input": f"question {task}"},
                "agent_ref": {"name": agent},
                "_ng_task_index": task,
                "_ng_rollout_index": rollout,
            }
            for task in range(tasks)
            for rollout in range(rollouts)
        ]

    return make


@pytest.fixture
def read_rows() -> Callable[[Path], list[dict[str, Any]]]:
    return lambda path: [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS",
        "NEMO_GYM_CONFIG_DICT",
        "NEMO_GYM_CONFIG_PATH",
        "NEMO_GYM_SERVER_TOKEN",
    ):
        monkeypatch.delenv(name, raising=False)

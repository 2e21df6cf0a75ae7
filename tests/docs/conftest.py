"""Fixtures of the tests of the documents."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from documents import free_port


@pytest.fixture(scope="session")
def model_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A model that somebody else serves: here a scripted one, at `http://host:port`."""
    model = free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "nemo_gym.cli.main", "env", "start", "--model-type", "scripted_model"),
            f"+head_server.port={free_port()}",
            f"++policy_model.responses_api_models.scripted_model.port={model}",
        ],
        cwd=tmp_path_factory.mktemp("somebody-else"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("Ready"):
            break
    else:
        pytest.fail("".join(said))
    yield f"http://127.0.0.1:{model}"
    process.terminate()
    process.wait(20)

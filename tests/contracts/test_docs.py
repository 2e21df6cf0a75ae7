"""The documents say what is so: commands run, links lead somewhere, generated pages are current."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\((?!https?:)([^)#]+)")


def blocks(path: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(path.read_text(encoding="utf-8")) if kind == language]


def generator() -> object:
    spec = importlib.util.spec_from_file_location("docs_generate", REPOSITORY / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(generator().PAGES))
def test_generated_pages_are_current(name: str) -> None:
    assert (REPOSITORY / "docs" / name).read_text(encoding="utf-8") == generator().PAGES[name](), "run `make docs`"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    missing = [link for link in LINK.findall(path.read_text(encoding="utf-8")) if not (path.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_project_speaks_only_of_itself(path: Path) -> None:
    text = path.read_text(encoding="utf-8").lower()
    assert not re.search(r"/work/|/tmp/|/root/|pypi\.org/simple|0\.7\.0", text)


def test_every_python_block_of_the_documents_compiles_and_imports() -> None:
    for path in DOCUMENTS:
        for text in blocks(path, "python"):
            compile(text, str(path), "exec")
            for node in ast.parse(text).body:
                if isinstance(node, (ast.Import, ast.ImportFrom)) and "nemo_gym" in ast.unparse(node):
                    exec(ast.unparse(node), {})


@pytest.fixture
def model_url(tmp_path: Path) -> Iterator[str]:
    """A model that somebody else serves: here a scripted one, at a URL of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        head, model = int(probe.getsockname()[1]), 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        model = int(probe.getsockname()[1])
    folder = tmp_path / "somebody-else"
    folder.mkdir()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "nemo_gym.cli.main", "env", "start", "--model-type", "scripted_model"),
            *(f"+head_server.port={head}", f"++policy_model.responses_api_models.scripted_model.port={model}"),
        ],
        cwd=folder,
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
    yield f"http://127.0.0.1:{model}/v1"
    process.terminate()
    process.wait(20)


def test_the_commands_of_the_readme_run_as_printed(tmp_path: Path, model_url: str) -> None:
    """One shell, one folder, in the order of the page."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "examples").symlink_to(REPOSITORY / "examples")
    (folder / ".venv").symlink_to(Path(sys.prefix))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        # The page uses the default port; here another test may be using it.
        (folder / "env.yaml").write_text(f"head_server: {{host: 127.0.0.1, port: {probe.getsockname()[1]}}}\n")
    script = "set -euo pipefail\n" + "\n".join(blocks(REPOSITORY / "README.md", "bash"))
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    environment = {**kept, "HOME": str(folder), "MODEL_URL": model_url, "MODEL_API_KEY": "unused", "MODEL_NAME": "any"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for name in ("my-model", "my-agent", "my-environment", "served"):
        assert (folder / "runs" / name / "rollouts.jsonl").stat().st_size > 0, name

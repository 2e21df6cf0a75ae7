"""The commands and programs of every document run as printed, page by page, in the order of the page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from documents import DOCUMENTS, REPOSITORY, blocks_of, free_port, name_of

WITH_CODE = [path for path in DOCUMENTS if any(block.language in ("bash", "python") for block in blocks_of(path))]
RUN_ELSEWHERE = {"docs/write-an-agent.md": "tests/testing/test_conformance.py"}
"""Page -> the test that runs what it prints, and looks at what came out."""

COMES_OUT: dict[str, Callable[[Path], None]] = {}
"""Page -> what looks at the folder in which it was run, beside the rewards that every run must have."""

SOMEBODY_ELSE = {"http://127.0.0.1:8000/v1", "https://api.openai.com/v1", "https://api.anthropic.com"}
"""Printed addresses of models; the scripted model answers in their place."""

# The default port may be in use here; the targets of `make` are run by whoever runs this test.
PRELUDE = f"""\
set -euo pipefail
make() {{ command make --dry-run --directory {REPOSITORY} "$@" >/dev/null; }}
"""


def script_of(path: Path, port: int) -> str:
    """Return one shell script of a page: files are written, programs and commands run."""
    parts = [PRELUDE]
    for block in blocks_of(path):
        text = block.text.replace("port=11000", f"port={port}")
        if block.title is not None:
            parts.append(
                f"mkdir -p {Path(block.title).parent}\ncat >{block.title} <<'END-OF-FILE'\n{text}END-OF-FILE\n"
            )
        elif block.language == "python":
            parts.append(f"python - <<'END-OF-FILE'\n{text}END-OF-FILE\n")
        elif block.language == "bash":
            parts.append(text)
    return "\n".join(parts)


def run_page(path: Path, folder: Path, model_address: str | None) -> None:
    """Run a page in a folder that looks like a checkout."""
    port = free_port()
    (folder / "examples").symlink_to(REPOSITORY / "examples")
    (folder / ".venv").symlink_to(Path(sys.prefix))
    (folder / "env.yaml").write_text(f"head_server: {{host: 127.0.0.1, port: {port}}}\n", encoding="utf-8")
    script = script_of(path, port)
    for printed in SOMEBODY_ELSE:
        script = script.replace(printed, f"{model_address}/v1")
    kept = {name: os.environ[name] for name in ("LANG", "LD_LIBRARY_PATH", "PYTHONPATH") if name in os.environ}
    environment = {
        **kept,
        "HOME": str(folder),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MODEL_URL": f"{model_address}/v1",
        **dict.fromkeys(("MODEL_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"), "unused"),
        "MODEL_NAME": "any",
    }
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode != 0:
        subprocess.run(["gym", "env", "stop"], cwd=folder, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("path", [path for path in WITH_CODE if name_of(path) not in RUN_ELSEWHERE], ids=name_of)
def test_a_page_runs_as_printed(path: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text(encoding="utf-8")
    asks_somebody = "MODEL_URL" in text or any(address in text for address in SOMEBODY_ELSE)
    run_page(path, tmp_path, request.getfixturevalue("model_address") if asks_somebody else None)
    runs = sorted(tmp_path.glob("runs/*/rollouts*.jsonl"))
    assert text.count(" -o runs/") == 0 or runs
    for file in tmp_path.glob("runs/*/rollouts.jsonl"):
        rewards = [json.loads(line)["reward"] for line in file.read_text(encoding="utf-8").splitlines()]
        assert rewards, file
    if name_of(path) in COMES_OUT:
        COMES_OUT[name_of(path)](tmp_path)


def the_numbers_that_were_guessed_are_rewarded(folder: Path) -> None:
    """The script guesses 50 and 75; the rows have these and 25. The tool counted in each rollout for itself."""
    run = folder / "runs" / "number-guess"
    rows = [json.loads(line) for line in (run / "rollouts_materialized_inputs.jsonl").read_text("utf-8").splitlines()]
    secrets = {row["_ng_task_index"]: row["secret"] for row in rows}
    records = [json.loads(line) for line in (run / "rollouts.jsonl").read_text("utf-8").splitlines()]
    assert {record["_ng_task_index"]: (record["reward"], record["guesses"]) for record in records} == {
        task: (float(secret != 25), 2) for task, secret in secrets.items()
    }
    assert {25, 75} <= set(secrets.values())


COMES_OUT["docs/write-an-environment.md"] = the_numbers_that_were_guessed_are_rewarded


@pytest.mark.parametrize("name", sorted(RUN_ELSEWHERE))
def test_a_page_that_is_run_elsewhere_is_read_there(name: str) -> None:
    assert Path(name).name in (REPOSITORY / RUN_ELSEWHERE[name]).read_text(encoding="utf-8")


def test_a_page_whose_command_fails_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```bash\ntrue\n```\n\n```python\nraise SystemExit(3)\n```\n", encoding="utf-8")
    folder = tmp_path / "checkout"
    folder.mkdir()
    with pytest.raises(AssertionError):
        run_page(page, folder, None)

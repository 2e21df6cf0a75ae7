"""`gym env init`."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from nemo_gym.cli.output import note
from nemo_gym.errors import BoundaryError, UsageError

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_PLACES = {
    "app.py": "app.py.txt",
    "README.md": "README.md.txt",
    "configs/@name@.yaml": "config.yaml.txt",
    "tests/test_app.py": "test_app.py.txt",
}
_PLAIN = {
    "__init__.py": "",
    "tests/__init__.py": "",
    "requirements.txt": "evidence-gym\n",
    "data/.gitignore": "train.jsonl\nvalidation.jsonl\n",
}
_ROW = {"responses_create_params": {"input": [{"role": "user", "content": "Say hello."}]}, "expected_answer": "hello"}


class FolderExistsError(BoundaryError):
    """A folder is to be made and is there already; nothing in it was touched."""


def command(
    *,
    resources_server: Annotated[
        str, typer.Option("--resources-server", metavar="NAME", help="The name of the new resources server.")
    ],
) -> int:
    """Write the files of a new resources server into `resources_servers/NAME` of the working folder.

    It verifies one answer, has tests and cases for its verifier, and runs as it is.
    """
    name = resources_server
    if not _NAME.match(name):
        raise UsageError(
            f"`{name}` cannot be the name of a resources server, which is imported by it: lower-case letters, digits "
            "and `_`, a letter first."
        )
    folder = Path("resources_servers") / name
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise FolderExistsError(f"`{error.filename or folder}` is there already; nothing was written.") from error
    for place, text in files_of(name).items():
        file = folder / place
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    note(f"`{folder}` is written; `gym env test --resources-server {name}` runs its tests.")
    return 0


def files_of(name: str) -> dict[str, str]:
    """Return the files of a new resources server: place below its folder -> text."""
    base = resources.files("nemo_gym.cli") / "scaffold"

    def filled(text: str) -> str:
        class_name = "".join(word.capitalize() for word in name.split("_"))
        return text.replace("@name@", name).replace("@Class@", class_name)

    texts = {filled(place): filled((base / source).read_text(encoding="utf-8")) for place, source in _PLACES.items()}
    return texts | _PLAIN | {"example.jsonl": _lines(_ROW), "tests/verifier_cases.jsonl": _lines(*_cases())}


def _cases() -> list[dict[str, Any]]:
    def request(answer: str) -> dict[str, Any]:
        part = {"type": "output_text", "text": answer, "annotations": []}
        message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
        response = {
            "id": "r",
            "object": "response",
            "created_at": 0,
            "model": "m",
            "output": [message],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
        return {**_ROW, "response": response}

    return [
        {"name": "right", "kind": "full_reward", "request": request("Hello!"), "expected_reward": 1.0},
        {"name": "wrong", "kind": "zero_reward", "request": request("Goodbye."), "expected_reward": 0.0},
        {"name": "no response", "kind": "malformed", "request": _ROW, "expected_error": "response: Field required"},
    ]


def _lines(*values: dict[str, Any]) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)

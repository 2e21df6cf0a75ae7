"""`gym env init`."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from nemo_gym.cli.output import note, show
from nemo_gym.errors import BoundaryError, UsageError

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_ENTRY = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
_PLACES = {
    "app.py": "app.py.txt",
    "README.md": "README.md.txt",
    "configs/@name@.yaml": "config.yaml.txt",
    "tests/test_app.py": "test_app.py.txt",
}
_ENTRY_PLACES = {
    "environments": {
        "config.yaml": "environment.yaml.txt",
        "manifest.yaml": "manifest.yaml.txt",
        "README.md": "environment.md.txt",
    },
    "benchmarks": {
        "config.yaml": "benchmark.yaml.txt",
        "manifest.yaml": "benchmark_manifest.yaml.txt",
        "README.md": "benchmark.md.txt",
        "prepare.py": "prepare.py.txt",
        "prompts/default.yaml": "prompt.yaml.txt",
    },
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


class FilesDifferError(BoundaryError):
    """Files are to be made and are there with another content; nothing was touched."""


def command(
    *,
    resources_server: Annotated[
        str | None,
        typer.Option("--resources-server", metavar="NAME", help="A new resources server, in `resources_servers/NAME`."),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            "--environment", metavar="NAME", help="A new environment with its manifest, and a resources server for it."
        ),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option("--benchmark", metavar="NAME", help="A new benchmark, with a script that prepares its rows too."),
    ] = None,
) -> int:
    """Write the files of a new resources server, environment or benchmark into the working folder.

    It verifies one answer, has tests and cases for its verifier, and runs as it is.
    """
    entries = {"environments": environment, "benchmarks": benchmark}
    wanted = [(kind, name) for kind, name in entries.items() if name is not None]
    if len(wanted) + (resources_server is not None) != 1:
        raise UsageError(
            "name what is to be written, one thing: `--resources-server NAME`, `--environment NAME` or "
            "`--benchmark NAME`."
        )
    return _new_server(resources_server) if resources_server is not None else _new_entry(*wanted[0])


def _new_server(name: str) -> int:
    if not _NAME.match(name):
        raise UsageError(
            f"`{name}` cannot be the name of a resources server, which is imported by it: lower-case letters, digits "
            "and `_`, a letter first."
        )
    folder = Path("resources_servers") / name
    if folder.exists():
        raise FolderExistsError(f"`{folder}` is there already; nothing was written.")
    _write({folder / place: text for place, text in files_of(name).items()})
    note(f"`{folder}` is written; `gym env test --resources-server {name}` runs its tests.")
    return 0


def _new_entry(kind: str, entry: str) -> int:
    """Write what is missing of an entry, and print its files; what is there as it would be written stays."""
    what = kind.removesuffix("s")
    name = re.sub(r"[.-]", "_", entry)
    if not _ENTRY.match(entry) or not _NAME.match(name):
        raise UsageError(
            f"`{entry}` cannot be the name of the {what}: one word of lower-case letters, digits, `.`, `_` and "
            "`-`, a letter first."
        )
    folder, server = Path(kind) / entry, Path("resources_servers") / name
    files = {folder / place: text for place, text in _texts(_ENTRY_PLACES[kind], name, entry).items()}
    files[folder / "data" / "example.jsonl"] = _lines(_ROW)
    files |= {server / place: text for place, text in files_of(name).items()}
    there = [file for file in files if file.exists()]
    if differing := [file for file in there if not file.is_file() or file.read_text(encoding="utf-8") != files[file]]:
        listed = ", ".join(f"`{file}`" for file in differing)
        raise FilesDifferError(f"conflict: {listed} would be changed; nothing was written.")
    if len(there) == len(files):
        show(f"{what} `{entry}` is up to date")
        return 0
    _write({file: text for file, text in files.items() if file not in there})
    for file in files:
        show(str(file))
    return 0


def _write(files: dict[Path, str]) -> None:
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def files_of(name: str) -> dict[str, str]:
    """Return the files of a new resources server: place below its folder -> text."""
    texts = _texts(_PLACES, name, name)
    return texts | _PLAIN | {"example.jsonl": _lines(_ROW), "tests/verifier_cases.jsonl": _lines(*_cases())}


def _texts(places: dict[str, str], name: str, entry: str) -> dict[str, str]:
    base = resources.files("nemo_gym.cli") / "scaffold"
    class_name = "".join(word.capitalize() for word in name.split("_"))

    def filled(text: str) -> str:
        return text.replace("@entry@", entry).replace("@name@", name).replace("@Class@", class_name)

    return {filled(place): filled((base / source).read_text(encoding="utf-8")) for place, source in places.items()}


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

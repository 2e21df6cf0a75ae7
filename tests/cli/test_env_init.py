"""`gym env init`, `test` and `schema`: a new resources server is written, valid, tested and run as it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

FILES = {
    *(
        "app.py",
        "__init__.py",
        "README.md",
        "requirements.txt",
        "configs/dice.yaml",
        "data/.gitignore",
        "example.jsonl",
    ),
    *("tests/__init__.py", "tests/test_app.py", "tests/verifier_cases.jsonl"),
}


def made(gym: Any, name: str = "dice") -> Path:
    gym("env", "init", "--resources-server", name)
    return Path(gym.folder) / "resources_servers" / name


def test_a_new_server_has_all_files_is_valid_and_passes_its_own_tests(gym: Any) -> None:
    folder = made(gym)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == FILES
    assert [path.name for path in Path(gym.folder).iterdir() if path.name != "state"] == ["resources_servers"]
    assert gym("env", "validate", "--resources-server", "dice").stdout == "✓ Config is valid.\n"
    resolved = gym("env", "resolve", "--resources-server", "dice").stdout
    for instance in ("dice_resources_server:", "dice_simple_agent:", "dice_environment_server:"):
        assert f"\n{instance}" in f"\n{resolved}"
    assert "2 passed" in gym("env", "test", "--resources-server", "dice").stdout


def test_a_new_server_runs(gym: Any) -> None:
    made(gym, "dice_2")
    gym("eval", "run", gym.head, "--resources-server", "dice_2", "--model-type", "scripted_model", "-o", "runs/r.jsonl")
    [row] = (Path(gym.folder) / "runs/r.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(row)["reward"] in (0.0, 1.0)


def test_what_is_there_already_is_not_touched(gym: Any) -> None:
    app = made(gym) / "app.py"
    app.write_text("mine", encoding="utf-8")
    told = gym("env", "init", "--resources-server", "dice", code=1)
    assert "`resources_servers/dice` is there already" in told.stderr
    assert app.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("name", ["", "Dice", "a-b", "../x", "1st", "a.b", "a b"])
def test_a_name_that_cannot_be_imported_is_refused(gym: Any, name: str) -> None:
    assert "lower-case letters" in gym("env", "init", "--resources-server", name, code=2).stderr
    assert not (Path(gym.folder) / "resources_servers").exists()


def test_tests_that_fail_end_with_the_code_of_pytest(gym: Any) -> None:
    folder = made(gym)
    (folder / "helper.py").write_text("VALUE = 1\n", encoding="utf-8")
    (folder / "tests" / "test_more.py").write_text(
        "import helper\n\n\ndef test_it():\n    assert helper.VALUE == 2\n", encoding="utf-8"
    )
    done = gym("env", "test", "--resources-server", "dice", code=1)
    assert "1 failed, 2 passed" in done.stdout  # what is beside `app.py` was found by its bare name
    shutil.rmtree(folder / "tests")
    assert "has no tests" in gym("env", "test", "--resources-server", "dice", code=2).stderr


def test_the_schema_of_a_rows_fields_is_that_of_task_data(gym: Any) -> None:
    folder = made(gym)
    assert "task_data.py" in gym("env", "schema", "--resources-server", "dice", code=2).stderr
    source = folder / "task_data.py"
    source.write_text("from pydantic import BaseModel\n\n\nclass One(BaseModel):\n    a: int\n", encoding="utf-8")
    assert "`TaskData`" in gym("env", "schema", "--resources-server", "dice", code=2).stderr
    one = source.read_text(encoding="utf-8")
    source.write_text(f"{one}\n\nTaskData = One\n", encoding="utf-8")
    schema = json.loads(gym("env", "schema", "--resources-server", "dice").stdout)
    assert schema["properties"] == {"a": {"title": "A", "type": "integer"}}
    source.write_text(f"{one}\n\nclass Two(BaseModel):\n    b: str\n\n\nTaskData = One | Two\n", encoding="utf-8")
    assert len(json.loads(gym("env", "schema", "--resources-server", "dice").stdout)["anyOf"]) == 2

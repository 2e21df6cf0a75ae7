"""Packages import only from lower layers, function-local imports included (docs/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "nemo_gym"

LAYERS = {
    "errors": 0,
    "records": 0,
    "dialects": 10,
    "config": 10,
    "store": 10,
    "capture": 20,
    "trajectory": 20,
    "health": 20,
    "analysis": 20,
    "servers": 30,
    "engine": 30,
    "sandbox": 30,
    "exports": 30,
    "builtin": 35,
    "rollouts": 40,
    "viewer": 50,
    "testing": 50,
    "cli": 60,
}
# `core` and `utils` hold newer paths of two doors.
DOORS = {path.stem for path in SRC.glob("*.py")} - {"__init__", "errors"} | {"core", "utils"}
# Shipped servers are written as a user's server is: against the doors.
USES_DOORS = {"builtin", "testing"}


def modules() -> list[Path]:
    return [path for path in SRC.rglob("*.py") if "tests" not in path.relative_to(SRC).parts]


def imports_of(path: Path) -> set[tuple[int, str]]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {(node.lineno, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found |= {(node.lineno, f"{node.module}.{alias.name}") for alias in node.names}
    return {(line, name) for line, name in found if name.split(".")[0] == "nemo_gym"}


def test_every_package_has_a_layer() -> None:
    packages = {path.name for path in SRC.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages <= set(LAYERS) | DOORS


def test_imports_point_down_only() -> None:
    wrong = []
    for path in modules():
        own = path.relative_to(SRC).parts[0].removesuffix(".py")
        if own not in LAYERS:
            continue  # doors and the package itself may re-export anything
        for line, name in imports_of(path):
            parts = name.split(".")
            target = parts[1] if len(parts) > 1 else "__init__"
            if target == own or target in ("__version__", "__init__"):
                continue
            if target in DOORS:
                if own not in USES_DOORS:
                    wrong.append(f"{path.relative_to(SRC)}:{line} imports the door {name}")
            elif target not in LAYERS or LAYERS[target] >= LAYERS[own]:
                wrong.append(f"{path.relative_to(SRC)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ["trajectory", "dialects", "analysis", "records"])
def test_pure_packages_do_no_io(package: str) -> None:
    forbidden = {"os", "socket", "subprocess", "aiohttp", "requests", "tempfile", "shutil", "logging", "time"}
    for path in (SRC / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                # An exception class is only a name to compare with.
                opened = [alias.name for alias in node.names if alias.name not in ("gaierror", "herror")]
                names = [node.module.split(".")[0]] if opened else []
            assert not forbidden & set(names), f"{path.relative_to(SRC)}:{node.lineno} imports {names}"


def test_the_capture_middleware_is_plain_asgi() -> None:
    """It wraps any application, so it knows no framework."""
    for path in (SRC / "capture").rglob("*.py"):
        assert "fastapi" not in path.read_text(encoding="utf-8"), path


def test_modules_are_not_named_after_nothing() -> None:
    # `nemo_gym.sandbox.utils` is a public path that environments import `cpu_cap_env` from.
    names = {path.stem for path in modules() if path != SRC / "sandbox" / "utils.py"}
    assert not names & {"utils", "helpers", "common", "misc", "manager"}

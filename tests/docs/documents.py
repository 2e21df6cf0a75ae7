"""The documents of the project, and the blocks of code in them."""

from __future__ import annotations

import importlib.util
import re
import socket
import types
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PLACES = ("*.md", "docs/**/*.md", "examples/**/*.md", "src/**/*.md", "bench/*.md")
DOCUMENTS = sorted({path for place in PLACES for path in REPOSITORY.glob(place)})
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """One fenced block; with a `title` it is the file of that name."""

    language: str
    title: str | None
    text: str


def blocks_of(path: Path) -> list[Block]:
    found = []
    for match in FENCE.finditer(path.read_text(encoding="utf-8")):
        title = TITLE.search(match["info"])
        found.append(Block(match["info"].split(" ")[0], title and title[1], match["text"]))
    return found


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def generator() -> types.ModuleType:
    """Return what `make docs` runs."""
    spec = importlib.util.spec_from_file_location("docs_generate", REPOSITORY / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from end_to_end_support import Gym


@pytest.fixture
def gym(tmp_path: Path) -> Iterator[Gym]:
    runner = Gym(tmp_path)
    yield runner
    runner.stop_all()

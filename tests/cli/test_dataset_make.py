"""`gym dataset make`, and `gym eval run` before anything starts: what cannot work is one line, and exit code 2."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

MAKE = ("dataset", "make", "ledger", "--size", "1", "-o")


def error(done: Any) -> str:
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    return str(done.stderr)


def test_a_place_that_cannot_be_written_is_one_line(inline: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    assert "cannot be written" in error(inline(*MAKE, str(tmp_path / "file" / "out.jsonl"), code=2))
    assert "is a folder; name a file in it" in error(inline(*MAKE, str(tmp_path / "folder"), code=2))
    for place in ("/proc/none/out.jsonl", "/proc/out.jsonl"):
        assert f"`{place}` cannot be written" in error(inline(*MAKE, place, code=2))


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_without_permission_is_one_line(inline: Any, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "no permission" in error(inline(*MAKE, str(tmp_path / "locked" / "out.jsonl"), code=2))


def test_a_search_directory_that_does_not_exist_is_one_line(inline: Any) -> None:
    for words in (("list", "agents"), ("search", "x"), (*MAKE, "out.jsonl")):
        assert "`nodir` (`--search-dir`) is no folder" in error(inline(*words, "--search-dir", "nodir", code=2))


@pytest.mark.parametrize(
    ("agent", "problem"),
    [("plain_agnt", "Did you mean `plain_agent`?"), ("simple_agnt", "Did you mean `simple_agent`?"), ("zzz", "`zzz`")],
)
def test_an_agent_that_does_not_exist_is_named_before_servers_start(
    inline: Any, tmp_path: Path, agent: str, problem: str
) -> None:
    (tmp_path / "in.jsonl").write_text('{"responses_create_params": {"input": "x"}}\n')
    servers = ("--resources-server", "plain", "--model-type", "plain_model")
    done = inline("eval", "run", *servers, "--agent", agent, "-i", "in.jsonl", "-o", "out.jsonl", code=2)
    assert problem in error(done)
    assert "Configured: `plain_agent`" in done.stderr
    assert "Starting" not in done.stderr

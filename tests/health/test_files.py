"""Files that are not what they are called: each is a clear error or read as what it is, and none hangs the check."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from health_records import record, write_lines

from nemo_gym.errors import ConfigError, GymError
from nemo_gym.health import health_check_run_dir, run_health_checks
from nemo_gym.health.reading import FileRange
from nemo_gym.health.worker import RangeEnd, evaluate_range


@pytest.mark.parametrize(
    ("name", "packed"),
    [("gzip", gzip.compress), ("zstd", zstandard.compress), ("bzip2", bz2.compress), ("xz", lzma.compress)],
)
def test_a_compressed_file_is_named_and_nothing_is_written(
    tmp_path: Path, name: str, packed: Callable[[bytes], bytes]
) -> None:
    path = write_lines(tmp_path / "rollouts.jsonl", record())
    path.write_bytes(packed(path.read_bytes()))
    with pytest.raises(ConfigError, match=f"rollouts.jsonl` is compressed with {name}: unpack it first"):
        health_check_run_dir(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _broken_link(path: Path) -> None:
    path.symlink_to("nowhere")


def _unreadable(path: Path) -> None:
    path.symlink_to("/proc/self/mem")  # which nobody can read from its start


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (_loop, "is a link to a file that is not there"),
        (_broken_link, "is a link to a file that is not there"),
        (os.mkfifo, "is not a file"),
        (_unreadable, "cannot be read: Input/output error"),
    ],
    ids=["a loop of links", "a broken link", "a pipe", "a file that gives errors"],
)
def test_a_shard_that_gives_no_lines_is_an_error_that_names_it(
    tmp_path: Path, make: Callable[[Path], None], problem: str
) -> None:
    write_lines(tmp_path / "rollouts-a.jsonl", record())
    make(tmp_path / "rollouts-b.jsonl")
    with pytest.raises(GymError, match=f"rollouts-b.jsonl` {problem}"):
        health_check_run_dir(tmp_path)
    assert not (tmp_path / "quality_summary.json").exists()


def test_folders_that_are_named_like_rollouts_files_are_none(tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").mkdir()
    (tmp_path / "rollouts-a.jsonl").mkdir()
    with pytest.raises(FileNotFoundError, match="holds neither"):
        health_check_run_dir(tmp_path)
    write_lines(tmp_path / "rollouts-b.jsonl", record())
    assert health_check_run_dir(tmp_path).run["verdicts"]["healthy"] == 1


def test_a_file_with_several_names_is_read_once(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollouts-a.jsonl", record(_ng_run_id="r"))
    (tmp_path / "rollouts-b.jsonl").symlink_to(path.name)
    (tmp_path / "rollouts-c.jsonl").hardlink_to(path)
    result = health_check_run_dir(tmp_path)
    assert result.run["verdicts"] == {"healthy": 1, "unhealthy": 0, "unobserved": 0}
    assert [digest.source_file for digest in result.rollouts] == ["rollouts-a.jsonl"]


def test_a_file_name_that_is_no_text_is_shown_escaped(tmp_path: Path) -> None:
    write_lines(tmp_path / os.fsdecode(b"rollouts-\xff.jsonl"), record(), b"{cut")
    write_lines(tmp_path / "rollouts-b.jsonl", record())
    result = health_check_run_dir(tmp_path)
    assert {digest.source_file for digest in result.rollouts} == {"rollouts-b.jsonl", r"rollouts-\xff.jsonl"}
    assert rb'"source_file":"rollouts-\\xff.jsonl"' in result.verdicts_path.read_bytes()


def test_a_file_that_grows_while_it_is_read_is_read_to_where_it_ended(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollouts.jsonl", *(record(number) for number in range(300)))
    size = path.stat().st_size
    count = 0
    for result in evaluate_range(FileRange(path, 0, size), ()):
        if not isinstance(result, RangeEnd):
            count += 1
            with path.open("ab") as file:
                file.write(path.read_bytes()[:1000] + b"\n")
    assert count == 300


def test_a_folder_for_the_reports_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollouts.jsonl", record())
    with pytest.raises(ConfigError, match="the health reports cannot be written"):
        run_health_checks(path, output_dir=path)

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.health import reading
from nemo_gym.health.reading import FileRange, is_blank, iter_lines, split


def _read(part: FileRange) -> list[bytes | None]:
    return list(iter_lines(part))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=12), st.booleans(), st.integers(1, 9)
)
def test_each_line_belongs_to_exactly_one_range(tmp_path: Path, lines: list[bytes], ended: bool, parts: int) -> None:
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    path = tmp_path / "f"
    path.write_bytes(data)
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    found = [line for ranges in split([(path, len(data))], parts) for part in ranges for line in _read(part)]
    assert found == expected


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=12),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 30),
    st.integers(1, 5),
)
def test_neither_blocks_nor_ranges_change_the_lines(
    tmp_path: Path, lines: list[bytes], ended: bool, block: int, longest: int, parts: int
) -> None:
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    path = tmp_path / "f"
    path.write_bytes(data)
    whole = data.removesuffix(b"\n").split(b"\n") if data else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK_BYTES", block)
        patch.setattr(reading, "MAX_LINE_BYTES", longest)
        found = [line for ranges in split([(path, len(data))], parts) for part in ranges for line in _read(part)]
    assert found == [line if len(line) <= longest else None for line in whole]


@given(st.binary(max_size=6) | st.text(" \t\r\v\f\x1c\x85", max_size=6).map(str.encode))
def test_a_blank_line_is_one_of_which_nothing_is_left_when_stripped(line: bytes) -> None:
    assert is_blank(line) == (not line.strip())


def test_lines_longer_than_the_buffer_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 8)
    lines = [b"a" * n for n in (1, 7, 8, 9, 100, 3, 64)]
    path = tmp_path / "f"
    path.write_bytes(b"\n".join(lines))
    size = path.stat().st_size
    assert _read(FileRange(path, 0, size)) == lines
    for parts in (2, 3, 7):
        assert [line for ranges in split([(path, size)], parts) for part in ranges for line in _read(part)] == lines


def test_a_line_beyond_the_limit_is_passed_over_without_being_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 8)
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 32)
    path = tmp_path / "f"
    path.write_bytes(b"first\n" + b"x" * 1000 + b"\nlast")
    assert _read(FileRange(path, 0, path.stat().st_size)) == [b"first", None, b"last"]
    path.write_bytes(b"first\n" + b"x" * 1000)
    assert _read(FileRange(path, 0, path.stat().st_size)) == [b"first", None]


def test_what_is_appended_later_only_finishes_a_line_that_began_before(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one\ntwo\nthree\n")
    assert _read(FileRange(path, 0, 6)) == [b"one", b"two"]
    assert _read(FileRange(path, 6, 8)) == []
    assert _read(FileRange(path, 8, 9)) == [b"three"]

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.errors import ConfigFileNotFoundError, DataError
from nemo_gym.store import (
    LineAppender,
    RolloutStore,
    RunFiles,
    RunLock,
    RunLockedError,
    check_shard_label,
    failures_path_for,
    find_rollouts_files,
    is_derived_name,
    raw_outcomes_are_selected,
    read_lines,
    read_objects,
    repair_tail,
    staged,
    write_atomic,
)


def test_every_name_derives_from_the_rollouts_file():
    files = RunFiles("runs/a.b.jsonl")
    assert [path.name for path in files.derived()] == [
        "a.b.jsonl", "a.b_failures.jsonl", "a.b_materialized_inputs.jsonl", "a.b_manifest.json",
        "a.b_batch_status.json", "a.b_aggregate_metrics.json", "a.b_coverage.json",
    ]  # fmt: skip
    assert failures_path_for("x/rollouts.jsonl").name == "rollouts_failures.jsonl"


@pytest.mark.parametrize(
    "name",
    [
        "rollouts_failures.jsonl", "rollouts-w0_materialized_inputs.jsonl", "rollouts_reward_profiling.jsonl",
        "rollout_verdicts.jsonl", "rollouts_rollout_verdicts.jsonl",
        ".rollouts.jsonl.1.tmp", "rollouts.jsonl.upload.tmp",
        "rollouts.bak-20260101T000000.jsonl", "rollouts_agent_metrics.json", "rollouts_coverage.json",
    ],
)  # fmt: skip
def test_derived_names_are_no_rollouts_files(name):
    assert is_derived_name(name)


def test_a_folder_is_its_shards_and_rollouts_file_only(tmp_path):
    for name in ("rollouts-b.jsonl", "rollouts-a.jsonl", "rollouts.jsonl", "rollouts-a_failures.jsonl", "merged.jsonl"):
        (tmp_path / name).touch()
    assert [path.name for path in find_rollouts_files(tmp_path)] == [
        "rollouts-a.jsonl",
        "rollouts-b.jsonl",
        "rollouts.jsonl",
    ]


@pytest.mark.parametrize("beside", ["_manifest.json", "_materialized_inputs.jsonl", "_batch_status.json"])
def test_a_folder_of_other_names_is_its_runs_and_not_their_inputs_or_a_merged_file(tmp_path, beside):
    for name in ("first.jsonl", "second.jsonl", "tasks.jsonl", "aggregated.jsonl", "first_failures.jsonl"):
        (tmp_path / name).touch()
    assert [path.name for path in find_rollouts_files(tmp_path)] == [
        "aggregated.jsonl", "first.jsonl", "second.jsonl", "tasks.jsonl",
    ], "nothing says which of them are runs"  # fmt: skip
    for name in ("first", "second"):
        (tmp_path / f"{name}{beside}").touch()
    assert [path.name for path in find_rollouts_files(tmp_path)] == ["first.jsonl", "second.jsonl"]


@pytest.mark.parametrize("label", ["", "-x", "a/b", "a b", "a\n", "é", "x" * 129, "a_failures", "a_coverage"])
def test_unusable_shard_labels_are_refused(label):
    with pytest.raises(ValueError, match="label"):
        check_shard_label(label)


@given(st.lists(st.binary(min_size=1, max_size=20).filter(lambda data: data.strip() and b"\n" not in data)))
def test_lines_come_back_with_their_offsets(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("lines") / "x"
    content = b"\n".join(lines)
    path.write_bytes(content)
    for line in read_lines(path):
        assert content[line.offset :].startswith(line.data)
        assert line.complete == (content[line.offset + len(line.data) :].lstrip(b"\r")[:1] == b"\n")


def test_separators_inside_strings_do_not_split_lines(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(json.dumps({"a": "\u2028\u0085"}, ensure_ascii=False).encode() + b"\n\n \n" + b'{"b": 1}\n')
    assert list(read_objects(path)) == [{"a": "\u2028\u0085"}, {"b": 1}]


def test_a_damaged_line_is_named_and_a_cut_tail_is_skipped_and_reported(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b'{"a": 1}\n{"b": ')
    cut = []
    assert list(read_objects(path, on_cut_tail=cut.append)) == [{"a": 1}]
    assert cut[0].number == 2
    for end in (b"\n", b"\r\n", b"\n\n \n"):
        path.write_bytes(b'{"a": 1}\n{"b": "x' + end)
        assert list(read_objects(path, on_cut_tail=cut.append)) == [{"a": 1}]
        assert cut.pop().number == 2
        path.write_bytes(b'{"a": 1}\n{"b": "x' + end + b'{"c": 1}\n')
        with pytest.raises(DataError) as caught:
            list(read_objects(path))
        assert caught.value.line == 2
    for last in (b"[1]\n", b"oops\n", b'{"b": "x"}}\n'):
        path.write_bytes(b'{"a": 1}\n' + last)
        with pytest.raises(DataError):
            list(read_objects(path))
    path.write_bytes(b'{"a": 1}\n[1]\n{"c": 1}\n')
    with pytest.raises(DataError) as caught:
        list(read_objects(path))
    assert (caught.value.line, caught.value.byte) == (2, 9)


@pytest.mark.parametrize(
    ("content", "outcome", "after"),
    [
        (b'{"a":1}\n', None, b'{"a":1}\n'),
        (b"", None, b""),
        (b'{"a":1}\n{"b":', "dropped", b'{"a":1}\n'),
        (b'{"a":1}\n{"b":2}', "completed", b'{"a":1}\n{"b":2}\n'),
        (b'{"b":', "dropped", b""),
        (b'{"a":1}\n' + b"x" * 3_000_000, "dropped", b'{"a":1}\n'),
        (b'{"a":1}\n{"b":"x' + b"y" * 3_000_000 + b"\n" * 2_000_000, "dropped", b'{"a":1}\n'),
        (b'{"a":1}\n{"b":\n\n', "dropped", b'{"a":1}\n'),
        (b'{"a":1}\n{"b":\r\n', "dropped", b'{"a":1}\n'),
        (b'{"a":1}\n\n \n', None, b'{"a":1}\n\n \n'),
        (b'{"a":1}\n{"b":NaN}\n', None, b'{"a":1}\n{"b":NaN}\n'),
        (b'{"a":1}\n{"b":"x{"c":1}\n', None, b'{"a":1}\n{"b":"x{"c":1}\n'),
        (b"\n\n", None, b"\n\n"),
        (b'{"a":1}\n ', None, b'{"a":1}\n '),
        (b'{"a":1}\noops\n ', None, b'{"a":1}\noops\n '),
        (b'{"a":1}\n{"b":\n ', "dropped", b'{"a":1}\n'),
    ],
)
def test_a_cut_tail_is_dropped_or_completed(tmp_path, content, outcome, after):
    path = tmp_path / "x"
    path.write_bytes(content)
    assert repair_tail(path) == outcome
    assert path.read_bytes() == after
    assert repair_tail(tmp_path / "missing") is None


def test_a_write_that_fails_half_way_leaves_the_file_whole(tmp_path, monkeypatch):
    appender = LineAppender(tmp_path / "x")
    appender.append(b'{"a":1}\n')
    calls = []

    def half(fd, data, write=os.write):
        calls.append(data)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "full")
        return write(fd, data[:4])

    monkeypatch.setattr("nemo_gym.store.jsonl.os.write", half)
    with pytest.raises(OSError, match="full"):
        appender.append(b'{"b":22222}\n')
    monkeypatch.undo()
    appender.append(b'{"c":3}\n')
    assert appender.unsynced == 2
    appender.close()
    appender.close()
    assert (tmp_path / "x").read_bytes() == b'{"a":1}\n{"c":3}\n'


def test_nothing_takes_the_place_of_a_pipe_or_a_device(tmp_path):
    """`-o /dev/stdout` as root would take standard output away from the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    terminal, other_end = os.openpty()
    for path, end in ((pipe, reader), (os.ttyname(other_end), terminal)):
        before = os.lstat(path)
        write_atomic(path, b"said")
        assert os.read(end, 100) == b"said"
        after = os.lstat(path)
        assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    for fd in (reader, terminal, other_end):
        os.close(fd)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system has no folder of open files")
def test_nothing_takes_the_place_of_a_link_to_an_open_file(tmp_path):
    with (tmp_path / "out").open("w+b") as file:
        write_atomic(f"/proc/self/fd/{file.fileno()}", b"said")
        assert file.read() == b"said"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_staged_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x"
    write_atomic(path, b"old")
    with pytest.raises(RuntimeError), staged(path) as file:
        file.write(b"new")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_one_writer_at_a_time_and_the_holder_is_named(tmp_path):
    with RunLock(tmp_path / ".x.lock"), pytest.raises(RunLockedError, match=f"process {os.getpid()}"):
        RunLock(tmp_path / ".x.lock").acquire()
    with RunLock(tmp_path / ".x.lock"):
        pass


def write_run(folder, name, *, run, results, failures=(), owed=()):
    files = RunFiles(folder / name)
    for path, rows in ((files.rollouts, results), (files.failures, failures), (files.materialized, owed)):
        path.write_text("".join(json.dumps({"_ng_run_id": run, **row}) + "\n" for row in rows))
    return files


def row(task, rollout=0, **more):
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, **more}


def test_the_store_gives_one_result_per_rollout_and_what_is_missing_A17(tmp_path):
    write_run(
        tmp_path, "rollouts-a.jsonl", run="r1",
        results=[row(0, n=1), row(0, n=2)], failures=[row(1, n=1), row(1, n=2), row(2, _ng_omitted_rollout=True)],
        owed=[row(0), row(1), row(2)],
    )  # fmt: skip
    write_run(tmp_path, "rollouts-b.jsonl", run="r2", results=[row(0, n=3)], owed=[row(0)])
    store = RolloutStore(tmp_path, read_only=True)
    assert [result["n"] for result in store.results()] == [1, 3]
    assert [missing["_ng_task_index"] for missing in store.missing()] == [1, 2]
    assert store.latest_failures()["r1", 1, 0]["n"] == 2
    assert store.attempts() == {("r1", 1, 0): 2}
    assert len(list(store.expected())) == 4
    assert (store.manifest, store.status()) == (None, [])
    assert not raw_outcomes_are_selected(tmp_path / "rollouts-a.jsonl")
    assert raw_outcomes_are_selected(tmp_path / "rollouts-b.jsonl")


def test_the_store_for_writing_holds_the_lock_and_a_missing_run_is_an_error(tmp_path):
    files = write_run(tmp_path, "rollouts.jsonl", run="r", results=[row(0)])
    with RolloutStore(files.rollouts), pytest.raises(RunLockedError):
        RunLock(files.lock).acquire()
    with pytest.raises(ConfigFileNotFoundError):
        RolloutStore(tmp_path / "none.jsonl", read_only=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigFileNotFoundError):
        RolloutStore(tmp_path / "empty", read_only=True)


def test_what_a_killed_process_left_of_a_file_goes_and_nothing_of_another_run(tmp_path) -> None:
    run, other = RunFiles(tmp_path / "r[1].jsonl"), RunFiles(tmp_path / "r[1]2.jsonl")
    for files in (run, other):
        for path in files.derived():
            path.write_bytes(b"kept")
            path.with_name(f".{path.name}.4711.tmp").write_bytes(b"half")
    run.drop_staged()
    left = {path.name for path in tmp_path.glob(".*.tmp")}
    assert left == {f".{path.name}.4711.tmp" for path in other.derived()}
    assert all(path.read_bytes() == b"kept" for files in (run, other) for path in files.derived())


def test_a_lock_that_was_removed_while_it_was_held_keeps_nobody_out_and_lets_no_two_in(tmp_path, monkeypatch):
    path = tmp_path / ".x.lock"
    first = RunLock(path)
    first.acquire()
    opened = os.open

    def opened_in_between(*arguments):
        fd = opened(*arguments)
        monkeypatch.undo()
        first.remove()
        first.release()
        return fd

    monkeypatch.setattr(os, "open", opened_in_between)
    with RunLock(path), pytest.raises(RunLockedError):
        RunLock(path).acquire()
    assert path.exists()


def test_an_error_names_the_file_that_was_to_be_written(tmp_path):
    with pytest.raises(OSError, match="nowhere") as caught:
        write_atomic(tmp_path / "nowhere" / "report.json", b"{}")
    assert caught.value.filename == str(tmp_path / "nowhere" / "report.json")
    (tmp_path / "report.json").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_atomic(tmp_path / "report.json", b"{}")
    assert (caught.value.filename, caught.value.filename2) == (str(tmp_path / "report.json"), None)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize("found", [FileNotFoundError, FileExistsError])
def test_a_folder_that_another_run_takes_away_meanwhile_is_made_again(tmp_path, monkeypatch, found):
    """`mkdir` may find the folder there, look again, and find it gone."""
    make, left = Path.mkdir, [found, found]

    def interrupted(self, *arguments, **options):
        if left:
            raise left.pop()(self)
        make(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with RunLock(tmp_path / "new" / ".r.lock", make_folder=True) as lock:
        assert lock.path.exists()


def test_a_file_in_the_place_of_a_runs_folder_is_said(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileExistsError):
        RunLock(tmp_path / "file" / ".r.lock", make_folder=True).acquire()

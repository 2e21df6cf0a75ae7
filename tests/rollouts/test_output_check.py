"""`-o`: an earlier run makes room; anything else that lies there is somebody's and stays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.collect import collect_run
from nemo_gym.rollouts.output_check import check_no_run, check_output
from nemo_gym.rollouts.settings import RolloutCollectionConfig
from nemo_gym.store import RunFiles, RunLock


@pytest.fixture
def input_file(tmp_path):
    path = tmp_path / "in.jsonl"
    row = {"responses_create_params": {"input": "x"}, "agent_ref": {"name": "agent_a"}}
    path.write_text(json.dumps(row) + "\n")
    return path


@pytest.fixture
def collect(servers, input_file):
    async def run(output, **settings):
        settings = {"input_jsonl_fpath": str(input_file), "disable_health_check": True, **settings}
        config = RolloutCollectionConfig(output_jsonl_fpath=str(output), **settings)
        return await collect_run(config, own_config=servers.own_config)

    return run


def tree(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*") if not path.is_fifo()}


def make_nothing(folder):
    return ""


def make_folder(folder):
    (folder / "f.jsonl").mkdir()
    return folder / "f.jsonl"


def make_fifo(folder):
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def make_device(folder):
    (folder / "device").symlink_to("/dev/null")  # so that root loses a link at most
    return folder / "device"


def make_notes(folder):
    (folder / "notes.txt").write_text("mine\n")
    return folder / "notes.txt"


def make_rows(folder):
    (folder / "rows.jsonl").write_text('{"a": 1}\n')
    return folder / "rows.jsonl"


def make_rows_with_a_foreign_manifest(folder):
    (folder / "app_manifest.json").write_text('{"name": "my app"}')
    return make_named(folder, "app.jsonl")


def make_named(folder, name):
    (folder / name).write_text('{"a": 1}\n')
    return folder / name


def make_foreign_file_with_a_derived_name(folder):
    (folder / "x_coverage.json").write_text('{"lines": 90}')
    return folder / "x.jsonl"


def make_input(folder):
    return folder / "in.jsonl"


def make_output_whose_sidecar_is_the_input(folder):
    os.link(folder / "in.jsonl", folder / "o_failures.jsonl")
    return folder / "o.jsonl"


def make_below_a_file(folder):
    return folder / "in.jsonl" / "r.jsonl"


def make_long_name(folder):
    return folder / ("x" * 240 + ".jsonl")


def make_long_folder(folder):
    return folder / ("x" * 300) / "r.jsonl"


@pytest.mark.parametrize(
    "make",
    [
        make_nothing, make_folder, make_fifo, make_device, make_notes, make_rows, make_rows_with_a_foreign_manifest,
        make_foreign_file_with_a_derived_name, make_input, make_output_whose_sidecar_is_the_input, make_below_a_file,
        make_long_name, make_long_folder,
    ],
)  # fmt: skip
async def test_what_is_no_earlier_run_is_refused_and_untouched(servers, collect, tmp_path, make):
    output = make(tmp_path)
    if make not in (make_input, make_output_whose_sidecar_is_the_input, make_below_a_file):
        (tmp_path / "in.jsonl").touch()
    before = tree(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(ConfigError) as caught:
            await collect(output, overwrite=overwrite)
        assert "\n" not in str(caught.value)
    assert tree(tmp_path) == before
    assert servers.received == []


async def test_an_earlier_run_an_empty_file_and_a_new_folder_are_fine(collect, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    await collect(tmp_path / "empty.jsonl")
    await collect(tmp_path / "new" / "deep" / "r.jsonl")
    await collect(tmp_path / "new" / "deep" / "r.jsonl")
    files = RunFiles(tmp_path / "new" / "deep" / "r.jsonl")
    assert len(list(files.folder.glob("r.bak-*[0-9].jsonl"))) == 1
    for sibling in (files.manifest, files.status):
        sibling.unlink()
    await collect(files.rollouts, overwrite=True)
    assert len(files.rollouts.read_text().splitlines()) == 1


@pytest.mark.parametrize("overwrite", [False, True])
async def test_reports_of_the_earlier_run_go_where_it_goes(collect, tmp_path, overwrite):
    files = RunFiles(tmp_path / "out" / "r.jsonl")
    await collect(files.rollouts)
    assert len(files.reports()) == 5
    for path in files.reports():
        path.write_text(path.name)
    await collect(files.rollouts, overwrite=overwrite)
    assert not any(path.exists() for path in files.reports())
    kept = [path for path in files.folder.glob("r.bak-*") if path.name.endswith(("_profiling.jsonl", "_metrics.json"))]
    assert len(kept) == (0 if overwrite else 4), "its aggregate metrics and the three files of its profile"
    assert len(list(files.folder.glob("r.bak-*_quality_summary.json"))) == (0 if overwrite else 1)


async def test_reports_of_somebody_else_stay(collect, tmp_path):
    (tmp_path / "quality_summary.json").write_text('{"mine": 1}')
    (tmp_path / "rollout_verdicts.jsonl").write_text("{}\n")
    before = tree(tmp_path)
    await collect(tmp_path / "r.jsonl")
    assert {path: tree(tmp_path)[path] for path in before} == before


def test_looking_leaves_nothing_behind(tmp_path):
    check_output(str(tmp_path / "a" / "b" / "r.jsonl"))
    assert list(tmp_path.iterdir()) == []


async def test_resuming_with_the_materialized_inputs_as_input_is_no_clash(collect, tmp_path):
    files = RunFiles(tmp_path / "r.jsonl")
    await collect(files.rollouts)
    await collect(files.rollouts, input_jsonl_fpath=str(files.materialized), resume_from_cache=True)
    with pytest.raises(ConfigError, match="is the input"):
        await collect(files.rollouts, input_jsonl_fpath=str(files.materialized))


@pytest.mark.parametrize(
    "name",
    [
        "rollout_verdicts.jsonl", "quality_summary.json", "r_failures.jsonl", "r_materialized_inputs.jsonl",
        "r_manifest.json", "r_rollout_verdicts.jsonl", "r_quality_summary.json", "r_coverage", "out/", "~/r.jsonl",
    ],
)  # fmt: skip
async def test_a_name_that_means_something_else_is_refused(servers, collect, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    before = tree(tmp_path)
    for resume in (False, True):
        with pytest.raises(ConfigError):
            await collect(name, resume_from_cache=resume)
    assert tree(tmp_path) == before
    assert servers.received == []


async def test_runs_that_start_at_once_in_a_new_folder_do_not_hinder_each_other(collect, tmp_path):
    folder = tmp_path / "new" / "deep"
    ended = threading.Event()

    def come_and_go():
        # As a run does of which nothing came: its folders are gone again as soon as they are empty.
        while not ended.is_set():
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                folder.rmdir()
                folder.parent.rmdir()

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for number in range(200):
            check_output(str(folder / f"r{number}.jsonl"))
            with RunLock(folder / f"r{number}.lock", make_folder=True) as lock:
                lock.remove()
    finally:
        ended.set()
        other.join()
    await asyncio.gather(*(collect(tmp_path / "fresh" / f"r{number}.jsonl") for number in range(5)))
    assert len(list((tmp_path / "fresh").glob("r?.jsonl"))) == 5


@pytest.mark.parametrize("overwrite", [False, True])
async def test_rollouts_go_where_a_link_leads(collect, tmp_path, overwrite):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept.jsonl").touch()
    (tmp_path / "r.jsonl").symlink_to(tmp_path / "other" / "kept.jsonl")
    for _ in range(2 if overwrite else 1):
        await collect(tmp_path / "r.jsonl", overwrite=overwrite)
        assert (tmp_path / "r.jsonl").is_symlink()
        assert len((tmp_path / "other" / "kept.jsonl").read_text().splitlines()) == 1


async def test_a_run_that_was_set_aside_can_be_resumed_where_it_is(collect, tmp_path):
    await collect(tmp_path / "r.jsonl")
    await collect(tmp_path / "r.jsonl")
    (kept,) = tmp_path.glob("r.bak-*[0-9].jsonl")
    await collect(kept, resume_from_cache=True)
    assert len(kept.read_text().splitlines()) == 1


async def test_what_is_no_run_takes_the_place_of_no_file_of_one(collect, tmp_path):
    """Also of a run that was set aside, and of one whose output has no ending."""
    for name in ("r.jsonl", "r.jsonl", "plain"):
        await collect(tmp_path / name)
    (kept,) = tmp_path.glob("r.bak-*[0-9].jsonl")
    for output in (tmp_path / "r.jsonl", kept, tmp_path / "plain"):
        written = [path for path in RunFiles(output).derived() if path.exists() and path.stat().st_size]
        assert len(written) >= 4
        for path in written:
            with pytest.raises(ConfigError, match="is a file of the run"):
                check_no_run(path)
    for name in ("in.jsonl", "new.jsonl"):
        check_no_run(tmp_path / name)

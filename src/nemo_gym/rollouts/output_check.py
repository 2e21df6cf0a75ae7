"""What lies where a run is to write: an earlier run makes room for it, anything else is somebody's and stays.

Looked at before servers are started, and again, under the run's lock, before anything is set aside.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError
from nemo_gym.records import keys
from nemo_gym.records.codec import decode
from nemo_gym.records.manifest import decode_manifest
from nemo_gym.records.status import decode_status
from nemo_gym.rollouts.progress import CollectionObserver
from nemo_gym.store.atomic import sync_folder
from nemo_gym.store.jsonl import read_objects
from nemo_gym.store.run_files import HEALTH_REPORTS, RunFiles, names_another_file, runs_named_by

_PROBES = 100
_MAX_STEM_BYTES = 190
"""So that every name made from it, while it is written and as a backup, fits into 255 bytes."""


def check_output(output: str, *, input_path: Path | None = None, resume: bool = False) -> None:
    """Raise ConfigError when a run must not or cannot write to `output`; nothing stays changed on the disk.

    It must not when something is there that is no earlier run, or that is the run's own input; it cannot when the
    place is not writable. `resume` says that what is there is continued, which leaves its files where they are.
    """
    if not output.strip():
        raise ConfigError("the output needs a name: `--output FILE` (`output_jsonl_fpath`) is empty")
    check_name(output)
    files = RunFiles(output)
    try:
        resumed = resume and files.materialized.exists()
        check_place(files)
        if input_path is not None:
            _check_input(files, input_path, resumed=resumed)
        if not resumed:
            check_earlier(files)
        if len(os.fsencode(files.stem)) > _MAX_STEM_BYTES:
            raise ConfigError(
                f"`{files.rollouts.name}` is too long a name: other files are named after it, so it has at most "
                f"{_MAX_STEM_BYTES} bytes before its ending"
            )
        _check_writable(files, resumed=resumed)
    except OSError as error:
        raise ConfigError(_unusable(output, error)) from error


def _unusable(output: str, error: OSError) -> str:
    """Say why nothing can be written, by the name that stays: files that were only tried have others."""
    if isinstance(error, (NotADirectoryError, FileExistsError)):
        in_the_way = next((folder for folder in Path(output).parents if folder.is_file()), None)
        if in_the_way is not None:
            return f"`{output}` cannot be used: `{in_the_way}` is a file, and a folder is needed there"
    return f"`{output}` cannot be used: {error.strerror or error}. Name another with `--output`"


def check_name(output: str) -> None:
    """Raise ConfigError for a name that would be another file's, or that does not mean what it seems to."""
    if output.endswith(os.sep):
        raise ConfigError(f"`{output}` names a folder; name a file in it, such as `{output}rollouts.jsonl`")
    if output.startswith("~"):
        raise ConfigError(f"`{output}`: a leading `~` is not expanded here. Write the folder's whole path")
    if names_another_file(output):
        raise ConfigError(
            f"`{output}` is named as a run's reports, failures and other files are: one would replace the other. "
            "Name another output"
        )


def check_place(files: RunFiles) -> None:
    """Raise ConfigError when the output's own name is a folder or a device."""
    output = files.rollouts
    if output.is_dir():
        raise ConfigError(f"`{output}` is a folder; name a file in it, such as `{output / 'rollouts.jsonl'}`")
    if output.exists() and not output.is_file():
        raise ConfigError(f"`{output}` is no regular file; rollouts cannot be written there")


def check_no_run(path: Path) -> None:
    """Raise ConfigError when a file of a run lies at `path`: for commands that write something else."""
    if not path.is_file() or path.stat().st_size == 0:
        return
    for files in runs_named_by(path):
        if path in files.derived() and is_earlier_run(files):
            raise ConfigError(
                f"`{path}` is a file of the run `{files.rollouts}`, and was not touched. Name another file."
            )


def check_earlier(files: RunFiles) -> None:
    """Raise ConfigError unless whatever a fresh run would move or replace is recognisably an earlier run."""
    if is_earlier_run(files):
        return
    for path in files.derived():
        if not os.path.lexists(path) or (path.is_file() and path.stat().st_size == 0):
            continue
        raise ConfigError(
            f"`{path}` exists and is no earlier run: no manifest, materialized inputs or saved progress of a run is "
            "beside it. It was not touched; name another output, or move it away"
        )


def is_earlier_run(files: RunFiles) -> bool:
    """Return whether a run left its manifest, materialized inputs or saved progress beside the output."""
    for path, decode_file in ((files.manifest, decode_manifest), (files.status, decode_status)):
        if path.is_file():
            with contextlib.suppress(ValueError):
                decode_file(path.read_bytes())
                return True
    if not files.materialized.is_file():
        return False
    with contextlib.suppress(ValueError):
        return keys.TASK_INDEX in next(read_objects(files.materialized), {})
    return False


def set_aside(files: RunFiles, *, overwrite: bool, observer: CollectionObserver) -> None:
    """Make room for a fresh run: an earlier one with at least one success is kept under a new name, others go.

    Raises ConfigError, with nothing touched, for anything that is no earlier run.
    """
    check_place(files)
    check_earlier(files)
    earlier = [path for path in files.derived() if path.exists()]
    _drop_health_reports(files)
    if not earlier:
        return
    if not overwrite and files.rollouts.exists() and files.rollouts.stat().st_size > 0:
        stamp = time.strftime("%Y%m%dT%H%M%S")
        kept = RunFiles(files.folder / f"{files.stem}.bak-{stamp}{files.rollouts.suffix}")
        number = 1
        while kept.rollouts.exists():
            number += 1
            kept = RunFiles(files.folder / f"{files.stem}.bak-{stamp}-{number}{files.rollouts.suffix}")
        moved = zip((*files.derived(), *files.reports()), (*kept.derived(), *kept.reports()), strict=True)
        for path, place in moved:
            if path.exists():
                path.rename(place)
        observer.note(f"an earlier run was at `{files.rollouts}`; it is kept as `{kept.rollouts}`")
    else:
        for path in (*earlier, *(report for report in files.reports() if report.is_file())):
            if path.is_symlink() and path in (files.rollouts, files.failures):
                os.truncate(path, 0)  # whoever made the link wants the lines where it leads
            else:
                path.unlink()
    sync_folder(files.folder)


def _drop_health_reports(files: RunFiles) -> None:
    """Remove the folder's health reports: they would describe a run that is no longer there."""
    summary, verdicts = (files.folder / name for name in HEALTH_REPORTS)
    if summary.is_file() and _is_health_summary(summary):
        summary.unlink()
        if verdicts.is_file():
            verdicts.unlink()


def _is_health_summary(path: Path) -> bool:
    try:
        value: Any = decode(path.read_bytes())
    except ValueError:
        return False
    return isinstance(value, dict) and isinstance(value.get("run"), dict) and "verdicts" in value["run"]


def _check_input(files: RunFiles, input_path: Path, *, resumed: bool) -> None:
    if input_path.is_file():
        input_path.open("rb").close()  # an unreadable one is said now
    if resumed and not (files.rollouts.exists() and input_path.samefile(files.rollouts)):
        return
    for path in files.derived():
        if path.exists() and input_path.exists() and path.samefile(input_path):
            raise ConfigError(f"`{path}` is the input; the run would replace it. Name another output")


def _check_writable(files: RunFiles, *, resumed: bool) -> None:
    """Create something where a run would, and remove it again; raises OSError.

    Folders that are missing are not made, since another run that starts there now may count on what it finds.
    """
    if resumed:
        for path in (files.rollouts, files.failures):
            if path.exists():
                path.open("ab").close()
    for further_tries in range(_PROBES, -1, -1):
        missing = [folder for folder in (files.folder, *files.folder.parents) if not folder.exists()]
        probe = (missing[-1].parent if missing else files.folder) / f".{files.stem}.{os.getpid()}.tmp"
        try:
            if missing:
                probe.mkdir()
                probe.rmdir()
            else:
                probe.open("wb").close()
                probe.unlink()
        except OSError as error:
            # The folder may be gone since it was looked for: a run that came to nothing takes it away again.
            if further_tries and isinstance(error, FileNotFoundError):
                continue
            raise OSError(error.errno, error.strerror, str(files.folder)) from error
        return

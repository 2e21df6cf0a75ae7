"""Checks the records of whole files, in bounded memory and in several processes, and writes the two reports (A17, A26).

What is held is one line at a time; digests are spooled to disk. Reports depend on the input alone: not on the number
of workers, the order in which they end, or the clock.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import nemo_gym
from nemo_gym.errors import ConfigError, ConfigFileNotFoundError
from nemo_gym.health import reduce, registry
from nemo_gym.health.evaluate import Outcome
from nemo_gym.health.reading import FileRange, refuse_unreadable, split
from nemo_gym.health.registry import normalize_ignored_checks
from nemo_gym.health.spool import Digests, Spool, Tasks
from nemo_gym.health.types import HealthCheckResult, RolloutDigest
from nemo_gym.health.worker import RangeEnd, Work, decode_result, encode_work, evaluate_range
from nemo_gym.records import codec
from nemo_gym.store.atomic import staged, writing
from nemo_gym.store.run_files import find_rollouts_files

SUMMARY_NAME = "quality_summary.json"
VERDICTS_NAME = "rollout_verdicts.jsonl"
MAX_WORKERS = 8
MIN_BYTES_PER_WORKER = 48 << 20
"""Below this, starting a process costs more than it saves."""


class WorkerFailedError(OSError):
    """A worker process died, or wrote something else than results."""


def run_health_checks(
    rollout_paths: str | Path | Sequence[str | Path],
    *,
    output_dir: str | Path | None = None,
    workers: int | None = None,
    ignored_checks: Sequence[str] | str | None = (),
    min_bytes_per_worker: int = MIN_BYTES_PER_WORKER,
) -> HealthCheckResult:
    """Check every record of the given rollouts files and write both reports, atomically, into `output_dir`.

    Default folder: that of the first file. At most `workers` processes (default: the CPUs, at most 8), fewer when the
    files are small; when processes cannot be used, warns with RuntimeWarning and goes on in this one. Raises ValueError
    (no path, `workers` < 1, unknown check id, a folder that cannot be written) and FileNotFoundError. A line that
    cannot be read is a finding.
    """
    given = [rollout_paths] if isinstance(rollout_paths, (str, Path)) else rollout_paths
    paths = [Path(path) for path in given]
    if not paths:
        raise ConfigError("no rollouts file was given to check")
    if workers is not None and workers < 1:
        raise ConfigError(f"`workers` must be at least 1, not `{workers}`")
    ignored = normalize_ignored_checks(ignored_checks)
    for path in paths:
        refuse_unreadable(path)
    folder = paths[0].parent if output_dir is None else Path(output_dir)
    paths = _distinct(paths)
    summary_path, verdicts_path = folder / SUMMARY_NAME, folder / VERDICTS_NAME
    given_to_aggregate = paths[0] if len(paths) == 1 else paths[0].parent
    instead = f"`gym eval aggregate -i {given_to_aggregate} -o FILE` writes them beside FILE, in another folder."
    with writing("the health reports", summary_path, verdicts_path, instead=instead):
        folder.mkdir(parents=True, exist_ok=True)
        spool, totals = _evaluated(paths, ignored, workers or default_workers(), min_bytes_per_worker)
        spool.put_in_order(count_copies=registry.DUPLICATE_IDENTITY not in ignored)
        return _reported(paths, spool, totals, summary_path, verdicts_path)


def _reported(
    paths: list[Path], spool: Spool, totals: reduce.Totals, summary_path: Path, verdicts_path: Path
) -> HealthCheckResult:
    with staged(verdicts_path) as file:
        for row, copied in spool.lines():
            if copied is None:
                file.write(row)
            else:
                totals.add_copy(copied[0])
                file.write(_row(reduce.as_duplicate(*copied), paths))
    _count_tasks(spool, totals)
    result = HealthCheckResult(
        run=totals.run(),
        tasks=Tasks(spool),
        rollouts=Digests(spool),
        summary_path=summary_path,
        verdicts_path=verdicts_path,
    )
    with staged(summary_path) as file:
        file.writelines(_summary(result))
    return result


def files_to_check(run_dir: str | Path, rollout_file: str | Path | None = None) -> list[Path]:
    """Return the rollouts files that `health_check_run_dir` checks; raises FileNotFoundError when there is none."""
    folder = Path(run_dir)
    if rollout_file is not None:
        return [folder / rollout_file]
    if (folder / "rollouts.jsonl").is_file():
        return [folder / "rollouts.jsonl"]
    paths = [folder] if folder.is_file() else find_rollouts_files(folder)
    if not paths:
        raise ConfigFileNotFoundError(f"`{folder}` holds neither `rollouts.jsonl` nor a shard `rollouts-<label>.jsonl`")
    return paths


def health_check_run_dir(
    run_dir: str | Path,
    *,
    rollout_file: str | Path | None = None,
    workers: int | None = None,
    ignored_checks: Sequence[str] | str | None = (),
    output_dir: str | Path | None = None,
) -> HealthCheckResult:
    """Check a run's folder: `rollout_file` (relative to it), else its `rollouts.jsonl`, else every shard in it.

    Reports go into the folder. Raises FileNotFoundError when it holds no rollouts file.
    """
    folder = Path(run_dir)
    paths = files_to_check(folder, rollout_file)
    folder = folder.parent if folder.is_file() else folder
    return run_health_checks(paths, output_dir=output_dir or folder, workers=workers, ignored_checks=ignored_checks)


def default_workers() -> int:
    """Return the number of CPUs this process may use, at most 8."""
    return min(len(os.sched_getaffinity(0)), MAX_WORKERS)


def _distinct(paths: list[Path]) -> list[Path]:
    """Leave out further names of one file: its records would look like copies of each other."""
    files: dict[tuple[int, int], Path] = {}
    for path in paths:
        status = path.stat()
        files.setdefault((status.st_dev, status.st_ino), path)
    return list(files.values())


def _evaluated(
    paths: list[Path], ignored: tuple[str, ...], workers: int, min_bytes: int
) -> tuple[Spool, reduce.Totals]:
    """Evaluate every line; return the digests, in no order yet, and what they add up to."""
    sizes = [(path, path.stat().st_size) for path in paths]
    count = min(workers, max(1, sum(size for _, size in sizes) // max(1, min_bytes)))
    parts = split(sizes, count)
    if len(parts) > 1:
        try:
            return _collected(_digests(parts, _run_workers(parts, ignored), paths), paths, ignored)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            warnings.warn(f"health checks go on in one process: {error}", RuntimeWarning, stacklevel=3)
    return _collected(_digests(parts, _run_here(parts, ignored), paths), paths, ignored)


def _collected(
    digests: Iterable[RolloutDigest], paths: list[Path], ignored: tuple[str, ...]
) -> tuple[Spool, reduce.Totals]:
    spool, totals = Spool(), reduce.Totals(ignored)

    def counted() -> Iterator[tuple[RolloutDigest, bytes]]:
        for digest in digests:
            totals.add(digest)
            yield digest, _row(digest, paths)

    spool.add(counted())
    return spool, totals


def _row(digest: RolloutDigest, paths: list[Path]) -> bytes:
    return codec.encode_line(reduce.row_of(digest, several_files=len(paths) > 1))


def _digests(
    parts: list[list[FileRange]], results: Iterable[Outcome | RangeEnd], paths: list[Path]
) -> Iterator[RolloutDigest]:
    """Turn the results of ranges, in order, into digests whose lines and ordinals count over files and inputs."""
    names = _report_names(paths)
    numbers = {path: number for number, path in enumerate(paths)}
    ranges = iter([part for ranges in parts for part in ranges])
    part = next(ranges, None)
    first_line, first_ordinal = 1, 0
    for result in results:
        if part is None:
            raise WorkerFailedError("a worker gave more results than it had work")
        if isinstance(result, RangeEnd):
            before, part = part, next(ranges, None)
            continues = part is not None and part.path == before.path and part.start > 0
            first_line = first_line + result.lines if continues else 1
            first_ordinal += result.records
            continue
        number, name = numbers[part.path], names[part.path]
        place = reduce.Place(number, name, line=first_line + result.line, ordinal=first_ordinal + result.ordinal)
        yield reduce.digest_of(result, place)
    if part is not None:
        raise WorkerFailedError("a worker gave fewer results than it had work")


def _count_tasks(spool: Spool, totals: reduce.Totals) -> None:
    """Evaluate every task. Its name says its scope when there are several."""
    several_scopes = spool.scopes() > 1
    for task, scope, facts in spool.task_facts():
        entry = totals.add_task(facts)
        name = f"{scope}/{task}" if several_scopes and scope else str(task)
        while not spool.add_task(name, entry):
            name = codec.encode(name).decode()  # 1 and "1" are two tasks


def _report_names(paths: list[Path]) -> dict[Path, str]:
    """Return what reports call a file: its name, or its whole path when two inputs share a name."""
    names = Counter(path.name for path in paths)
    called = {path: path.name if names[path.name] == 1 else str(path) for path in paths}
    # Names of files are bytes: those that are no text are shown as `\\xff`.
    return {path: os.fsencode(name).decode(errors="backslashreplace") for path, name in called.items()}


def _run_here(parts: list[list[FileRange]], ignored: Container[str]) -> Iterator[Outcome | RangeEnd]:
    for ranges in parts:
        for part in ranges:
            yield from evaluate_range(part, ignored)


def _run_workers(parts: list[list[FileRange]], ignored: tuple[str, ...]) -> Iterator[Outcome | RangeEnd]:
    """Yield the results of one process per part, in the order of the parts; their output waits in unnamed files."""
    environment = dict(os.environ)
    root = str(Path(nemo_gym.__file__).parents[1])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
    with ExitStack() as stack:
        running: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        stack.callback(_stop, running)
        for ranges in parts:
            work: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
            work.write(encode_work(Work([FileRange(part.path.absolute(), *part[1:]) for part in ranges], [*ignored])))
            work.seek(0)
            output: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
            command = [sys.executable, "-c", "from nemo_gym.health.worker import main; main()"]
            running.append((subprocess.Popen(command, stdin=work, stdout=output, env=environment), output))
        for process, output in running:
            if process.wait() != 0:
                raise WorkerFailedError(f"a worker process ended with status {process.returncode}")
            output.seek(0)
            for line in output:
                yield decode_result(line)


def _stop(running: list[tuple[subprocess.Popen[bytes], IO[bytes]]]) -> None:
    for process, _ in running:
        if process.poll() is None:
            process.kill()
            process.wait()


def _summary(result: HealthCheckResult) -> Iterator[bytes]:
    """Yield `quality_summary.json` in pieces, one per task."""
    yield codec.encode_pretty({"run": result.run, "tasks": {}}).removesuffix(b"}\n}\n")
    between = b"\n  "
    for name, entry in result.tasks.items():
        member = codec.encode_pretty({name: entry})[len(b"{\n") : -len(b"\n}\n")]
        yield between + member.replace(b"\n", b"\n  ")
        between = b",\n  "
    yield b"\n  }\n}\n" if result.tasks else b"}\n}\n"

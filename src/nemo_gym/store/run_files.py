"""Every file name of a run, once; and which names in a folder are rollouts files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

FAILURES = "_failures"
MATERIALIZED = "_materialized_inputs"
MANIFEST = "_manifest"
STATUS = "_batch_status"
AGGREGATE_METRICS = "_aggregate_metrics"
REWARD_PROFILING = "_reward_profiling"
AGENT_METRICS = "_agent_metrics"
REPEAT_METRICS = "_repeat_level_metrics"
COVERAGE = "_coverage"
RESERVED_SUFFIXES = (
    FAILURES, MATERIALIZED, MANIFEST, STATUS, AGGREGATE_METRICS, REWARD_PROFILING, AGENT_METRICS, REPEAT_METRICS,
    COVERAGE,
)  # fmt: skip
HEALTH_REPORTS = ("quality_summary.json", "rollout_verdicts.jsonl")
_DERIVED_NAMES = frozenset(HEALTH_REPORTS)
_DERIVED_ENDINGS = ("_quality_summary.json", "_rollout_verdicts.jsonl", ".upload.tmp", ".tmp")
_BACKUP = re.compile(r"\.bak-[0-9]")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MAX_LABEL = 128


class RunFiles:
    """The paths of one run; all derive from the rollouts file."""

    __slots__ = ("folder", "rollouts", "stem")

    def __init__(self, output: str | Path) -> None:
        self.rollouts = Path(output)
        self.stem = self.rollouts.stem
        self.folder = self.rollouts.parent

    def __repr__(self) -> str:
        return f"RunFiles({str(self.rollouts)!r})"

    @property
    def failures(self) -> Path:
        """The sidecar: one line per failed attempt."""
        return self.folder / f"{self.stem}{FAILURES}.jsonl"

    @property
    def materialized(self) -> Path:
        """The inventory: one line per rollout that the run owes."""
        return self.folder / f"{self.stem}{MATERIALIZED}.jsonl"

    @property
    def manifest(self) -> Path:
        """What the run was made from."""
        return self.folder / f"{self.stem}{MANIFEST}.json"

    @property
    def status(self) -> Path:
        """Saved progress."""
        return self.folder / f"{self.stem}{STATUS}.json"

    @property
    def aggregate_metrics(self) -> Path:
        """Metrics, written after collection."""
        return self.folder / f"{self.stem}{AGGREGATE_METRICS}.json"

    @property
    def coverage(self) -> Path:
        """Counts of what is there and what is missing, written at the end."""
        return self.folder / f"{self.stem}{COVERAGE}.json"

    @property
    def lock(self) -> Path:
        """Held by the one process that writes the run."""
        return self.folder / f".{self.stem}.lock"

    @property
    def prepared_folder(self) -> Path:
        """Where a serving run puts the rows it made from declared datasets."""
        beside = self.folder / self.stem
        # An output without an ending has that very name, or a file has it that is none of this run.
        if beside == self.rollouts or beside.is_file():
            return self.folder / f"{self.stem}_preprocessed_datasets"
        return beside / "preprocessed_datasets"

    def health_reports(self) -> tuple[Path, Path]:
        """Return the run's own health reports, beside those of its folder, which the next run there replaces."""
        summary, verdicts = HEALTH_REPORTS
        return self.folder / f"{self.stem}_{summary}", self.folder / f"{self.stem}_{verdicts}"

    def reports(self) -> tuple[Path, ...]:
        """Return what commands make of a finished run: its reward profile and its own health reports."""
        profile = (f"{REWARD_PROFILING}.jsonl", f"{AGENT_METRICS}.json", f"{REPEAT_METRICS}.json")
        return (*(self.folder / f"{self.stem}{ending}" for ending in profile), *self.health_reports())

    def is_described(self) -> bool:
        """Return whether a manifest, materialized inputs or saved progress say that this is a run."""
        return any(path.exists() for path in (self.manifest, self.materialized, self.status))

    def drop_staged(self) -> None:
        """Remove what a killed process left of a file that it was replacing. For who holds the lock."""
        starts = tuple(f".{path.name}." for path in self.derived())
        for left in self.folder.iterdir():
            if left.name.startswith(starts) and left.name.endswith(".tmp"):
                left.unlink(missing_ok=True)

    def derived(self) -> tuple[Path, ...]:
        """Return the files of a run other than its lock, rollouts first."""
        return (
            self.rollouts,
            self.failures,
            self.materialized,
            self.manifest,
            self.status,
            self.aggregate_metrics,
            self.coverage,
        )


def runs_named_by(path: str | Path) -> Iterator[RunFiles]:
    """Yield the runs that a file can be of, by its name: the one that is written to it, and those it lies beside."""
    path = Path(path)
    yield RunFiles(path)
    for suffix in RESERVED_SUFFIXES:
        if path.stem.endswith(suffix):
            yield RunFiles(path.with_name(f"{path.stem.removesuffix(suffix)}.jsonl"))


def failures_path_for(output: str | Path) -> Path:
    """Return the sidecar of a rollouts file."""
    return RunFiles(output).failures


def materialized_path_for(output: str | Path) -> Path:
    """Return the materialized inputs of a rollouts file."""
    return RunFiles(output).materialized


def aggregate_metrics_path_for(output: str | Path) -> Path:
    """Return the metrics file of a rollouts file."""
    return RunFiles(output).aggregate_metrics


def check_shard_label(label: object) -> str:
    """Return `label` when it can name a shard, else raise ValueError saying why."""
    if not isinstance(label, str):
        raise ValueError(f"a shard label is a string, not `{type(label).__name__}`")
    if not _LABEL.fullmatch(label):
        raise ValueError(
            f"shard label `{label}` must start with a letter or digit and hold only letters, digits, `.`, `_`, `-`"
        )
    if len(label) > _MAX_LABEL:
        raise ValueError(f"a shard label has at most {_MAX_LABEL} characters, this one has {len(label)}")
    for suffix in RESERVED_SUFFIXES:
        if label.endswith(suffix):
            raise ValueError(f"shard label `{label}` must not end in `{suffix}`: that ending names another file")
    if is_derived_name(f"rollouts-{label}.jsonl"):
        raise ValueError(
            f"shard label `{label}` names a backup or a report: no reader of the folder would see the shard"
        )
    return label


def shard_files(folder: str | Path, label: str) -> RunFiles:
    """Return the files of shard `label` in `folder`."""
    return RunFiles(Path(folder) / f"rollouts-{check_shard_label(label)}.jsonl")


def shard_label_of(path: str | Path) -> str | None:
    """Return the label of a shard's rollouts file, or None for another file."""
    stem = Path(path).stem
    return stem.removeprefix("rollouts-") if stem.startswith("rollouts-") else None


def is_derived_name(path: str | Path) -> bool:
    """Return whether a file beside rollouts files is something else: sidecar, inputs, report, backup."""
    name = Path(path).name
    return name.startswith(".") or _BACKUP.search(name) is not None or names_another_file(path)


def names_another_file(path: str | Path) -> bool:
    """Return whether a run that is written to `path` would have the name of a report, or of a file of another run."""
    name = Path(path).name
    return name in _DERIVED_NAMES or name.endswith(_DERIVED_ENDINGS) or Path(path).stem.endswith(RESERVED_SUFFIXES)


def rollouts_files(paths: Iterable[Path]) -> list[Path]:
    """Return those of `paths` that are rollouts files, in the given order, each once."""
    return [path for path in dict.fromkeys(paths) if path.suffix == ".jsonl" and not is_derived_name(path)]


def find_rollouts_files(path: str | Path) -> list[Path]:
    """Return the rollouts files of a run: the file itself, or those of a folder.

    A folder is read as its `rollouts-*.jsonl` shards together with `rollouts.jsonl`; when it has neither, as every
    file of JSON lines that has a manifest, materialized inputs or saved progress beside it, since its inputs and a
    merged file may lie there too; when none has, as every rollouts file. Sorted by name, folders left out. Empty when
    there is none.
    """
    path = Path(path)
    if not path.is_dir():
        return [path] if path.exists() else []
    candidates = rollouts_files(sorted(file for file in path.glob("*.jsonl") if not file.is_dir()))
    named = [file for file in candidates if file.name == "rollouts.jsonl" or file.name.startswith("rollouts-")]
    return named or [file for file in candidates if RunFiles(file).is_described()] or candidates

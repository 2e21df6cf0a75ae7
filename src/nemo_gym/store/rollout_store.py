"""The Store: one run, or a folder of recorded shards, read as effective outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from nemo_gym.errors import ConfigFileNotFoundError, DataError
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.failures import is_attempt, latest_failures
from nemo_gym.records.manifest import RunManifest, decode_manifest
from nemo_gym.records.rows import rollout_key
from nemo_gym.records.status import RunStatus, decode_status
from nemo_gym.store.jsonl import read_objects
from nemo_gym.store.key_set import RolloutKeySet
from nemo_gym.store.lock import RunLock
from nemo_gym.store.run_files import RunFiles, find_rollouts_files

StoreKey: TypeAlias = tuple[str, int, int]
"""Run id (or file name where none is known), task index, rollout index: unique over a folder of shards."""


class RolloutStore:
    """What a run, or a folder of shards, holds; a context manager.

    `read_only=True` (files only, no lock) tolerates a missing sidecar, manifest or materialized file and a last line
    that is still being written. `read_only=False` holds the run's lock between enter and exit, and needs a file.

    A rollout has one effective result: the first success line of its key. A line without usable indices repeats none.
    Iterators stream; only keys are kept.
    """

    def __init__(self, output: str | Path, read_only: bool = False) -> None:
        self.path = Path(output)
        self.read_only = read_only
        found = find_rollouts_files(self.path)
        if not found and self.path.is_dir():
            raise ConfigFileNotFoundError(
                f"`{self.path}` holds no rollouts file (`rollouts.jsonl`, `rollouts-*.jsonl`)"
            )
        if not found and not read_only:
            found = [self.path]
        if not found and not RunFiles(self.path).materialized.exists():
            raise ConfigFileNotFoundError(f"no rollouts file `{self.path}`")
        self.runs = [RunFiles(path) for path in found or [self.path]]
        self._lock: RunLock | None = None
        if not read_only and (self.path.is_dir() or len(self.runs) != 1):
            raise ValueError("a folder of shards is read with `read_only=True`; each shard has one writer")

    def __enter__(self) -> RolloutStore:
        if not self.read_only:
            self._lock = RunLock(self.runs[0].lock)
            self._lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def results(self) -> Iterator[JsonObject]:
        """Yield the effective result of each rollout that has one, in file order."""
        seen: set[StoreKey] = set()
        for files in self.runs:
            for row in _objects(files.rollouts):
                key = _store_key(row, files)
                if key is None or key not in seen:
                    if key is not None:
                        seen.add(key)
                    yield row

    def failures(self) -> Iterator[JsonObject]:
        """Yield every sidecar row, omitted ones included, in file order."""
        for files in self.runs:
            yield from _objects(files.failures)

    def latest_failures(self) -> dict[StoreKey, JsonObject]:
        """Return the newest sidecar row of each rollout, successful later or not."""
        latest: dict[StoreKey, JsonObject] = {}
        for files in self.runs:
            for row in latest_failures(_objects(files.failures)).values():
                key = _store_key(row, files)
                if key is not None:
                    latest[key] = row
        return latest

    def expected(self) -> Iterator[JsonObject]:
        """Yield the materialized rows: what the run, or the shards together, owe."""
        for files in self.runs:
            yield from _objects(files.materialized)

    def missing(self) -> Iterator[JsonObject]:
        """Yield the materialized rows without a success, whatever their failures."""
        for files in self.runs:
            done = RolloutKeySet(key for row in _objects(files.rollouts) if (key := rollout_key(row)) is not None)
            for row in _objects(files.materialized):
                key = rollout_key(row)
                if key is None or key not in done:
                    yield row

    def attempts(self) -> dict[StoreKey, int]:
        """Return how many failed tries each rollout has used."""
        used: dict[StoreKey, int] = {}
        for files in self.runs:
            for row in _objects(files.failures):
                key = _store_key(row, files)
                if key is not None and is_attempt(row):
                    used[key] = used.get(key, 0) + 1
        return used

    @property
    def manifest(self) -> RunManifest | None:
        """The manifest of the one run; None when there is none, or for a folder of several."""
        return read_manifest(self.runs[0]) if len(self.runs) == 1 else None

    @property
    def manifests(self) -> list[RunManifest]:
        """The manifests of all runs that have one."""
        return [manifest for files in self.runs if (manifest := read_manifest(files)) is not None]

    def status(self) -> list[RunStatus]:
        """Return the saved progress of each run that has one."""
        return [status for files in self.runs if (status := read_status(files)) is not None]


def read_manifest(files: RunFiles) -> RunManifest | None:
    """Return the manifest of a run, None when it has none; an unreadable one raises DataError."""
    try:
        return decode_manifest(files.manifest.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataError(str(error), path=files.manifest) from error


def read_status(files: RunFiles) -> RunStatus | None:
    """Return the saved progress of a run, None when it has none; an unreadable one raises DataError."""
    try:
        return decode_status(files.status.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataError(str(error), path=files.status) from error


def raw_outcomes_are_selected(output: str | Path) -> bool:
    """Return whether reading the rollouts file row by row gives exactly the effective outcomes: no key comes twice."""
    seen: set[StoreKey] = set()
    for path in find_rollouts_files(output):
        files = RunFiles(path)
        for row in _objects(path):
            key = _store_key(row, files)
            if key in seen:
                return False
            if key is not None:
                seen.add(key)
    return True


def _objects(path: Path) -> Iterator[JsonObject]:
    if path.is_file():  # reading a pipe of such a name would never end
        yield from read_objects(path)


def _store_key(row: JsonObject, files: RunFiles) -> StoreKey | None:
    run, key = row.get(keys.RUN_ID), rollout_key(row)
    return None if key is None else (str(run) if run else files.rollouts.name, *key)

"""Reading saved progress back: of a run, a shard, or a folder of them; counted from the files when none was saved."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from nemo_gym.errors import ConfigFileNotFoundError, DataError
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.failures import count_label, is_attempt
from nemo_gym.records.rows import RolloutKey, agent_name_of, rollout_key
from nemo_gym.records.status import LIVE_STATES, RunStatus, decode_status
from nemo_gym.rollouts.batch_status import RunStatusTracker
from nemo_gym.rollouts.record import reward_of
from nemo_gym.store.jsonl import read_lines, read_objects
from nemo_gym.store.rollout_store import read_manifest, read_status
from nemo_gym.store.run_files import STATUS, RunFiles, find_rollouts_files, runs_named_by, shard_label_of

STALE_AFTER_S = 60.0
"""Three times as long as a live run is silent (`batch_status.HEARTBEAT_S`)."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """One run's progress. `stale`: it claims to run, but its process is gone or silent; `derived`: its files were
    counted, since nothing saved says it.
    """

    path: Path
    status: RunStatus
    stale: bool
    derived: bool

    @property
    def complete(self) -> bool:
        """Whether every rollout has a success."""
        counts = self.status.counts
        return counts.expected > 0 and counts.succeeded >= counts.expected

    def as_dict(self) -> JsonObject:
        """Return the saved object with `stale` and `derived`."""
        value: Any = msgspec.to_builtins(self.status)
        return {**value, "path": str(self.path), "stale": self.stale, "derived": self.derived}


def read_run_status(path: str | Path) -> JsonObject | list[JsonObject]:
    """Return the progress of a rollouts file or status file as one object, of a folder as a list of them."""
    found = [progress.as_dict() for progress in read_progress(Path(path))]
    return found if Path(path).is_dir() else found[0]


def read_progress(path: Path, *, now: float | None = None) -> list[RunProgress]:
    """Return the progress of every run at `path`: a folder, a rollouts file, or a `*_batch_status.json`.

    Saved progress that is unreadable counts as none, and its reason says so. Raises ConfigFileNotFoundError when there
    is no run, DataError for an unreadable `*_batch_status.json` that was itself named, or unreadable rollouts.
    """
    now = time.time() if now is None else now
    runs = _runs_at(path)
    if not runs:
        raise ConfigFileNotFoundError(
            f"no run found at `{path}`: there is no `rollouts*.jsonl`, and no file that has a manifest, materialized "
            "inputs or saved progress beside it"
        )
    itself = path.name.endswith(f"{STATUS}.json")
    return [_progress_of(files, now, needs_saved=itself) for files in runs]


def _runs_at(path: Path) -> list[RunFiles]:
    if path.is_dir():
        named = {file: RunFiles(file) for file in find_rollouts_files(path) if _is_run(RunFiles(file))}
        for status in sorted(path.glob(f"*{STATUS}.json")):
            if not status.name.startswith("."):
                output = _output_of(status)
                named.setdefault(output, RunFiles(output))
        return [named[file] for file in sorted(named)]
    if path.name.endswith(f"{STATUS}.json"):
        return [RunFiles(_output_of(path))] if path.exists() else []
    files = RunFiles(path)
    if path.exists():
        # A sidecar or a manifest is no run; the one that it is of is meant.
        files = next((run for run in runs_named_by(path) if run.is_described()), files)
    return [files] if _is_run(files) else []


def _is_run(files: RunFiles) -> bool:
    """Return whether this is a run: not every file of JSON lines is one."""
    return files.is_described() or (files.rollouts.name.startswith("rollouts") and files.rollouts.is_file())


def _output_of(status: Path) -> Path:
    try:
        return status.parent / decode_status(status.read_bytes()).output
    except ValueError:
        return status.parent / f"{status.stem.removesuffix(STATUS)}.jsonl"


def _progress_of(files: RunFiles, now: float, *, needs_saved: bool) -> RunProgress:
    reason = None
    try:
        status = read_status(files)
    except DataError as error:
        if needs_saved:
            raise
        status, reason = None, str(error)
    if status is None:
        counted = derived_status(files)
        counted.reason = reason
        return RunProgress(files.rollouts, counted, stale=False, derived=True)
    if not _is_stale(status, now):
        return RunProgress(files.rollouts, status, stale=False, derived=False)
    # What was saved last is older than what the files hold: its process ended without saying so.
    counted = derived_status(files)
    status.counts, status.reward = counted.counts, counted.reward
    for label, agent in counted.agents.items():
        agent.expected = status.agents[label].expected if label in status.agents else agent.succeeded
    status.failures, status.agents = counted.failures, counted.agents
    return RunProgress(files.rollouts, status, stale=True, derived=True)


def _is_stale(status: RunStatus, now: float) -> bool:
    if status.state not in LIVE_STATES:
        return False
    if status.host == socket.gethostname() and status.pid is not None and not _process_lives(status.pid):
        return True
    # Its id may be another process's by now, so a run that has stopped saving is gone too.
    return now - status.updated_at > STALE_AFTER_S


def _process_lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Return whether a process has ended and nobody has asked how, as in a container without an init process."""
    try:
        about = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:  # gone, or not this system's way of telling
        return False
    return about.rpartition(b")")[2].split()[:1] == [b"Z"]


def derived_status(files: RunFiles) -> RunStatus:
    """Return the counts of a run that saved no progress, from its files; a rollout without an outcome is pending."""
    manifest = read_manifest(files)
    newest = max((item.stat().st_mtime for item in files.derived() if item.exists()), default=0.0)
    tracker = RunStatusTracker(
        files.status,
        run_id="unknown" if manifest is None else manifest.run_id,
        output=files.rollouts.name,
        shard=shard_label_of(files.rollouts),
        clock=lambda: newest,
    )
    status = tracker.status
    status.host, status.pid = None, None
    done: set[RolloutKey | None] = set()
    for record in read_objects(files.rollouts) if files.rollouts.exists() else ():
        key = rollout_key(record)
        if key is None or key not in done:
            done.add(key)
            masked = bool(record.get(keys.MASK_SAMPLE))
            tracker.restore_success(agent_name_of(record) or "?", reward=reward_of(record), masked=masked)
    failed: dict[RolloutKey | None, JsonObject] = {}
    for row in read_objects(files.failures) if files.failures.exists() else ():
        if is_attempt(row) and rollout_key(row) not in done:
            failed[rollout_key(row)] = row
    for row in failed.values():
        kind = count_label(row)
        status.counts.failed += 1
        status.counts.failed_final += bool(row.get(keys.FAILURE_TERMINAL))
        status.failures[kind] = status.failures.get(kind, 0) + 1
    owed = sum(1 for _ in read_lines(files.materialized)) if files.materialized.exists() else 0
    status.counts.expected = max(owed, status.counts.succeeded + status.counts.failed)
    status.counts.pending = status.counts.expected - status.counts.succeeded - status.counts.failed
    status.state = "completed" if status.counts.succeeded >= status.counts.expected else "incomplete"
    return status

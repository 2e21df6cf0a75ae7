"""From settings to a run that can be dispatched: the rows it owes, written down before anything is sent.

A fresh run writes its materialized inputs and manifest, after everything that can be wrong with them was found; files
of an earlier run are set aside first. A resumed run reads them back and checks that they belong to this run.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from nemo_gym.errors import ConfigError, DataError, GymError, InputDataError, ResumeRefusedError
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.identity import is_materialized_row
from nemo_gym.records.manifest import Configuration, Materialized, RunManifest, Source, encode_manifest
from nemo_gym.records.rows import RolloutKey, agent_name_of, rollout_key
from nemo_gym.rollouts.batch_status import RunStatusTracker
from nemo_gym.rollouts.output_check import set_aside
from nemo_gym.rollouts.prepare import (
    RowPreparer,
    expand_rows,
    given_task_indices,
    input_rows,
    interleaved,
    skills_ref_of,
)
from nemo_gym.rollouts.progress import CollectionObserver
from nemo_gym.rollouts.recorded_run import new_run_id, write_materialized
from nemo_gym.rollouts.resume import ResumePlan, longest_first, migrate_invalid_judge_main_rows, plan_resume
from nemo_gym.rollouts.rollout_ids import RolloutIds
from nemo_gym.rollouts.rollout_recovery import check_same_run, configuration_of, file_sha256
from nemo_gym.rollouts.route import Router
from nemo_gym.rollouts.row_places import RowPlaces
from nemo_gym.rollouts.settings import RolloutCollectionConfig
from nemo_gym.store.atomic import write_atomic
from nemo_gym.store.jsonl import read_objects, repair_tail
from nemo_gym.store.key_set import Inventory
from nemo_gym.store.rollout_store import read_manifest
from nemo_gym.store.run_files import RunFiles

_ANNOUNCED_EVERY = 1000
"""Rows between two looks at whether it is time to say how many have been read."""


@dataclass(slots=True)
class PreparedRun:
    """A run on disk, ready to be dispatched. `inventory` is what it owes in all, and where each rollout is sent."""

    files: RunFiles
    manifest: RunManifest
    inventory: Inventory
    plan: ResumePlan
    max_attempts: int
    resumed: bool
    slowest_first: bool = False

    @property
    def _owes_everything(self) -> bool:
        """Whether each row is dispatched as it is saved: it was numbered a moment ago, and nothing of it is done."""
        return not self.resumed and self.plan.owes_everything

    def owed(self) -> int:
        """Return how many rollouts are to be run now."""
        if self._owes_everything:
            return len(self.inventory)
        return sum(1 for key in self.inventory if self.plan.is_owed(key))

    def rows(self) -> Iterator[JsonObject]:
        """Yield the rows to dispatch, read from the materialized file as they are needed."""
        rows: Iterator[JsonObject] = self._owed_rows()
        if self.slowest_first and self.resumed:
            rows = iter(longest_first(rows, self.plan.elapsed))
        return rows

    def _owed_rows(self) -> Iterator[JsonObject]:
        if self._owes_everything:
            yield from read_objects(self.files.materialized)
            return
        for row in read_objects(self.files.materialized):
            key = rollout_key(row)
            if key is not None and self.plan.is_owed(key):
                yield self.plan.prepared(row, key)


class _Identity(NamedTuple):
    """What a resumed run is compared by. `source` is None when the run's own materialized file is the input."""

    source: str | None
    materialized: str
    configuration: Configuration


class PreparationStoppedError(GymError):
    """The run was interrupted before anything of it was sent."""


@contextlib.contextmanager
def _unreadable_is_a_mistake() -> Iterator[None]:
    """Turn what cannot be read into the caller's mistake: nothing was sent, and other files can be given."""
    try:
        yield
    except InputDataError:
        raise
    except DataError as error:
        raise InputDataError.of(error) from error


class RunSetup:
    """Prepares one run; every method may block on files, none touches the network."""

    def __init__(
        self,
        config: RolloutCollectionConfig,
        *,
        input_path: Path,
        router: Router,
        observer: CollectionObserver,
        max_attempts: int,
        gym_version: str | None,
        prompt: Callable[[JsonObject], JsonObject] | None = None,
        prompt_digest: str | None = None,
    ) -> None:
        self._config = config
        self._files = config.files
        self._input = input_path
        self.router = router
        self._observer = observer
        self._max_attempts = max_attempts
        self._gym_version = gym_version
        self._prompt = prompt
        self._prompt_digest = prompt_digest
        self._stopped = threading.Event()
        self._skills = None if config.skills is None else skills_ref_of(str(config.skills.get("path", "")))

    def prepare(self) -> PreparedRun:
        """Return the run: the saved one when resuming and there is one, else a fresh one.

        Raises ResumeRefusedError, with nothing touched, when the saved one was made under other conditions, and
        InputDataError for a file of it, or an input, that cannot be read.
        """
        with _unreadable_is_a_mistake():
            return self._prepared()

    def _prepared(self) -> PreparedRun:
        if self._config.resume_from_cache:
            if self._files.materialized.exists():
                return self._resumed()
            self._observer.note(f"nothing to resume: `{self._files.materialized}` does not exist; starting afresh")
        return self._fresh()

    def check(self) -> None:
        """Raise what `prepare` would raise about rows and saved runs, writing nothing: before servers are started.

        Saved results are not read: there may be very many.
        """
        with _unreadable_is_a_mistake():
            self._check()

    def _check(self) -> None:
        if not (self._config.resume_from_cache and self._files.materialized.exists()):
            for _ in self._checked_rows(Inventory(), lambda _: None):
                pass
            return
        self._saved_inventory()
        manifest = read_manifest(self._files)
        if manifest is not None:
            self._check_same_run(manifest, self._identity())

    def stop(self) -> None:
        """Make `prepare` or `check`, which runs in another thread, end soon without touching an earlier run."""
        self._stopped.set()

    def _check_stop(self) -> None:
        if self._stopped.is_set():
            raise PreparationStoppedError("the run was interrupted while it was prepared; nothing was sent")

    def _fresh(self) -> PreparedRun:
        source = Source(path=str(self._config.input_jsonl_fpath), sha256=file_sha256(self._input))
        inventory, run_id = Inventory(), new_run_id()

        def rows() -> Iterator[JsonObject]:
            yield from self._checked_rows(inventory, announce)
            set_aside(self._files, overwrite=self._config.overwrite, observer=self._observer)

        with self._announced(run_id) as announce:
            materialized = write_materialized(self._files.materialized, rows())
        manifest = RunManifest(
            run_id=run_id,
            kind="eval",
            created_at=time.time(),
            gym_version=self._gym_version,
            output=self._files.rollouts.name,
            source=source,
            materialized=materialized,
            configuration=self._configuration(),
            max_rollout_attempts=self._max_attempts,
        )
        write_atomic(self._files.manifest, encode_manifest(manifest))
        return PreparedRun(self._files, manifest, inventory, ResumePlan(), self._max_attempts, resumed=False)

    def _checked_rows(self, inventory: Inventory, announce: Callable[[int], None]) -> Iterator[JsonObject]:
        """Yield the rows that the run owes, taking each into the inventory; raises for those that are wrong."""
        preparer = self._preparer()
        for task in given_task_indices(self._input, self._config.limit):
            preparer.reserve(task)
        rows = expand_rows(input_rows(self._input, self._config.limit), preparer)
        rollouts = 0
        for row in interleaved(rows) if self._config.interleave_repeats else rows:
            if agent_name_of(row) is None and not is_materialized_row(row):
                continue  # the preparer lists all rows without a route when it has seen the last one
            self._check_stop()
            key = rollout_key(row)
            assert key is not None  # the preparer numbers every row
            inventory.add(key, self.router.target(row).label)
            rollouts += 1
            if rollouts % _ANNOUNCED_EVERY == 0:
                announce(rollouts)
            yield row
        if not rollouts:
            raise ConfigError(
                f"there are no rows in `{self._input}`; it needs one JSON object per line, each a task to run"
            )

    @contextlib.contextmanager
    def _announced(self, run_id: str) -> Iterator[Callable[[int], None]]:
        """Save the state `preparing` while rows are read; what is yielded takes how many there are so far.

        Where an earlier run still lies nothing is saved: its own status stays until its files make room.
        """
        if any(path.exists() for path in self._files.derived()):
            yield lambda _: None
            return
        output = self._files.rollouts.name
        tracker = RunStatusTracker(self._files.status, run_id=run_id, output=output, gym_version=self._gym_version)
        tracker.enter("preparing")

        def announce(rollouts: int) -> None:
            tracker.found(rollouts)
            tracker.save_if_due()

        try:
            yield announce
        finally:
            self._files.status.unlink(missing_ok=True)

    def _resumed(self) -> PreparedRun:
        files, config = self._files, self._config
        inventory = self._saved_inventory()
        manifest = self._verified_manifest(inventory)
        for path in (files.rollouts, files.failures):
            repaired = repair_tail(path)
            if repaired is not None:
                self._observer.note(f"`{path}`: the last line was cut by a kill; {repaired}")
        if config.retry_invalid_judge_responses and files.rollouts.exists():
            moved = migrate_invalid_judge_main_rows(files.rollouts)
            if moved:
                self._observer.note(f"{moved} results with unusable judgements will be judged again")
        plan = plan_resume(
            self._saved_keys(inventory),
            read_objects(files.failures) if files.failures.exists() else (),
            max_attempts=self._max_attempts,
            retry_terminal_timeouts=config.retry_terminal_timeouts,
        )
        self._observer.note(plan.text(inventory, max_attempts=self._max_attempts))
        executions = plan.executions()
        if executions != manifest.executions:
            manifest = msgspec.structs.replace(manifest, executions=executions)
            write_atomic(files.manifest, encode_manifest(manifest))
        return PreparedRun(
            files,
            manifest,
            inventory,
            plan,
            self._max_attempts,
            resumed=True,
            slowest_first=config.dispatch_longest_first,
        )

    def _saved_inventory(self) -> Inventory:
        """Return what the saved run owes; raises for rows that the servers at hand have no place for."""
        inventory, ids = Inventory(), RolloutIds(RowPlaces(self._files.materialized))
        for row, _, line in input_rows(self._files.materialized, None):
            self._check_stop()
            ids.add(row, line)
            key = rollout_key(row)
            if key is not None:
                inventory.add(key, self.router.target(row).label)
        ids.check()
        return inventory

    def _identity(self) -> _Identity:
        materialized = self._files.materialized
        own = self._input.exists() and materialized.samefile(self._input)
        return _Identity(
            source=None if own else file_sha256(self._input),
            materialized=file_sha256(materialized),
            configuration=self._configuration(),
        )

    def _check_same_run(self, manifest: RunManifest, identity: _Identity) -> None:
        if not self._config.resume_ignore_drift:
            check_same_run(
                manifest,
                source_sha256=identity.source,
                materialized_sha256=identity.materialized,
                configuration=identity.configuration,
                output=self._files.rollouts,
            )

    def _verified_manifest(self, inventory: Inventory) -> RunManifest:
        files, identity = self._files, self._identity()
        manifest = read_manifest(files)
        if manifest is not None:
            self._check_same_run(manifest, identity)
            return manifest
        self._observer.note(
            f"`{files.manifest}` does not exist: whether the saved rollouts belong to this configuration is unknown"
        )
        manifest = RunManifest(
            run_id=new_run_id(),
            kind="eval",
            created_at=time.time(),
            gym_version=self._gym_version,
            output=files.rollouts.name,
            source=Source(
                path=None if identity.source is None else str(self._config.input_jsonl_fpath),
                sha256=identity.source or identity.materialized,
            ),
            materialized=Materialized(sha256=identity.materialized, rows=len(inventory), tasks=inventory.tasks()),
            configuration=identity.configuration,
            max_rollout_attempts=self._max_attempts,
        )
        write_atomic(files.manifest, encode_manifest(manifest))
        return manifest

    def _saved_keys(self, inventory: Inventory) -> Iterator[RolloutKey]:
        if not self._files.rollouts.exists():
            return
        for record in read_objects(self._files.rollouts):
            key = rollout_key(record)
            if key is None or key not in inventory:
                raise ResumeRefusedError(
                    f"`{self._files.rollouts}` holds rollout {key or '(without indices)'}, which "
                    f"`{self._files.materialized}` does not name: they belong to different runs. Nothing was sent."
                )
            yield key

    def _configuration(self) -> Configuration:
        return configuration_of(
            self._config,
            self.router.reached_instances(),
            prompt_digest=self._prompt_digest,
            skills_digest=None if self._skills is None else str(self._skills["hash"]),
        )

    def _preparer(self) -> RowPreparer:
        config = self._config
        return RowPreparer(
            agent_map=config.agent_map,
            fan_out=config.fan_out,
            num_repeats=config.num_repeats,
            add_seed=config.num_repeats_add_seed,
            create_params=config.responses_create_params,
            skills_ref=self._skills,
            prompt=self._prompt,
            topology=self.router.topology,
            need_input=True,
            places=RowPlaces(self._input),
        )

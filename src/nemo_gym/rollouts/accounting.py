"""What a score is a score of: expected = scored + failed + omitted + missing, over one run or many.

A rollout counts once, where it got furthest: *scored* has a result, *failed* was tried without one, *omitted* was
interrupted or never started and says so, *missing* left no trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject
from nemo_gym.records.rows import rollout_key
from nemo_gym.records.status import Counts
from nemo_gym.store.jsonl import read_objects
from nemo_gym.store.key_set import RolloutKeySet
from nemo_gym.store.run_files import RunFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """The four parts of what was expected."""

    scored: int
    failed: int
    omitted: int
    missing: int

    @property
    def expected(self) -> int:
        """Their sum."""
        return self.scored + self.failed + self.omitted + self.missing

    def text(self) -> str:
        """Return the sum as one line."""
        return (
            f"expected {self.expected} = {self.scored} scored + {self.failed} failed + {self.omitted} omitted "
            f"+ {self.missing} missing"
        )

    @classmethod
    def of_counts(cls, counts: Counts) -> Denominators:
        """Return them from a run's saved progress."""
        return cls(
            scored=counts.succeeded,
            failed=counts.failed,
            omitted=counts.omitted,
            missing=counts.pending + counts.in_flight,
        )


@dataclass(slots=True)
class _Run:
    expected: RolloutKeySet = field(default_factory=RolloutKeySet)
    scored: RolloutKeySet = field(default_factory=RolloutKeySet)
    failed: RolloutKeySet = field(default_factory=RolloutKeySet)
    omitted: RolloutKeySet = field(default_factory=RolloutKeySet)

    def parts(self) -> Iterator[str]:
        """Yield for each rollout of the run where it counts."""
        yield from ("scored" for _ in self.scored)
        yield from ("failed" for key in self.failed if key not in self.scored)
        yield from ("omitted" for key in self.omitted if key not in self.scored and key not in self.failed)
        for key in self.expected:
            if key not in self.scored and key not in self.failed and key not in self.omitted:
                yield "missing"


class Ledger:
    """Counts the rollouts of several runs, each of which may be in several files."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._extra = 0
        self.failed_tries = 0
        self.without_inventory = 0

    def scored(self, run: str, record: JsonObject) -> None:
        """Count a result that counts."""
        key, results = rollout_key(record), self._run(run).scored
        if key is None or key in results:
            self._extra += 1
        else:
            results.add(key)

    def read_beside(self, files: RunFiles, run: str) -> None:
        """Count what lies beside a rollouts file: its inventory and its failures."""
        if files.materialized.exists():
            for row in read_objects(files.materialized):
                key = rollout_key(row)
                if key is not None:
                    self._run(run).expected.add(key)
        else:
            self.without_inventory += 1
        for row in read_objects(files.failures) if files.failures.exists() else ():
            omitted = bool(row.get(keys.OMITTED_ROLLOUT))
            self.failed_tries += not omitted
            key, counted = rollout_key(row), self._run(str(row.get(keys.RUN_ID) or run))
            if key is not None:
                (counted.omitted if omitted else counted.failed).add(key)

    def denominators(self) -> Denominators:
        """Return the sums over all runs."""
        counts = dict.fromkeys(("scored", "failed", "omitted", "missing"), 0)
        for run in self._runs.values():
            for part in run.parts():
                counts[part] += 1
        counts["scored"] += self._extra
        return Denominators(**counts)

    def _run(self, run: str) -> _Run:
        return self._runs.setdefault(run, _Run())

"""The digests of a check run, on disk and in report order, so that memory does not grow with the number of records.

They are in an SQLite database that has no name and ends with its object. SQLite orders values as the reports do:
absent, then whole numbers by value, then texts by code point; and 1 is not "1".
"""

from __future__ import annotations

import itertools
import operator
import sqlite3
import tempfile
import weakref
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias, overload

import jiter
import msgspec

from nemo_gym.errors import GymError
from nemo_gym.health import reduce
from nemo_gym.health.tasks import TaskFacts
from nemo_gym.health.types import IdentityValue, RolloutDigest
from nemo_gym.records import codec
from nemo_gym.records.codec import JsonObject, JsonValue

CACHE_KIBIBYTES = 1024
"""What SQLite may hold in memory of each of its files, and of a sort."""

BATCH = 256
"""So many digests are taken at once."""

_TABLES = f"""
PRAGMA cache_size = -{CACHE_KIBIBYTES};
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE came (task, rollout, stage, scope, source, line, verdict, observed, successful);
CREATE TABLE text (row, body);
CREATE TABLE task (name TEXT PRIMARY KEY, entry);
BEGIN;
"""
_ORDERED = """
CREATE TABLE digest AS
SELECT rowid AS at, task, scope, rollout, verdict, observed, successful, {copies} AS copies
FROM came ORDER BY task, rollout, stage, scope, source, line
"""
_TASK_FACTS = """
WITH
record AS (
    SELECT *, CASE WHEN copies > 1 THEN 'unhealthy' ELSE verdict END AS final FROM digest
),
repeat AS (  -- records of one rollout index are one: a verdict that they do not share is unobserved
    SELECT
        task, scope, CASE WHEN min(final) = max(final) THEN min(final) ELSE 'unobserved' END AS verdict,
        min(observed) AS observed, max(successful) AS successful
    FROM record GROUP BY task, scope, rollout
)
SELECT
    task, scope, sum(verdict = 'healthy'), sum(verdict = 'unhealthy'), sum(verdict = 'unobserved'),
    min(observed), max(successful)
FROM repeat GROUP BY task, scope ORDER BY task, scope
"""
_IN_ORDER = "FROM digest CROSS JOIN text ON text.rowid = digest.at"
_COPIES = "count(*) OVER (PARTITION BY task, rollout, stage, scope)"

Digested: TypeAlias = tuple[RolloutDigest, int]
"""A digest, and how many records have its identity."""


class SpoolError(GymError, OSError):
    """The temporary database cannot be written or read."""


class Spool:
    """Takes digests as they come; gives them back in report order once they are put in it.

    What is yielded lazily raises SpoolError when the disk fails.
    """

    def __init__(self) -> None:
        # A result may be made in one thread and read in another; SQLite serializes.
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._db.close)
        self._db.executescript(_TABLES)
        self.records = self.task_count = 0

    def add(self, digests: Iterator[tuple[RolloutDigest, bytes]]) -> None:
        """Take digests, each with its line of the verdicts file."""
        with _disk():
            # The two tables share their row ids. Only the one without texts is sorted.
            while batch := list(itertools.islice(digests, BATCH)):
                self._db.executemany("INSERT INTO came VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", map(_columns, batch))
                self._db.executemany("INSERT INTO text VALUES (?, ?)", map(_texts, batch))

    def put_in_order(self, *, count_copies: bool) -> None:
        """Order what came; nothing comes any more. Without `count_copies` no record is a copy of another."""
        with _disk():
            self._db.execute(_ORDERED.format(copies=_COPIES if count_copies else "1"))
            self._db.execute("DROP TABLE came")
            (self.records,) = self._db.execute("SELECT count(*) FROM digest").fetchone()

    def scopes(self) -> int:
        """Return how many scopes there are; a line that is no record belongs to none."""
        (count,) = self._db.execute("SELECT count(DISTINCT scope) FROM digest WHERE scope != ''").fetchone()
        return int(count)

    def lines(self) -> Iterator[tuple[bytes, Digested | None]]:
        """Yield each record's line of the verdicts file in order, with the digest of those that have copies."""
        sql = f"SELECT row, copies, CASE WHEN copies > 1 THEN body END {_IN_ORDER} ORDER BY digest.rowid"
        for row, copies, body in self._rows(sql):
            yield row, None if body is None else (_digest(body), copies)

    def digests(self, start: int = 0) -> Iterator[Digested]:
        """Yield the digests in order, from position `start` on."""
        sql = f"SELECT body, copies {_IN_ORDER} WHERE digest.rowid > ? ORDER BY digest.rowid"
        for body, copies in self._rows(sql, start):
            yield _digest(body), copies

    def task_facts(self) -> Iterator[tuple[IdentityValue, str, TaskFacts]]:
        """Yield task, scope and facts of every task, in this order."""
        for task, scope, healthy, unhealthy, unobserved, all_observed, most_successful in self._rows(_TASK_FACTS):
            yield (
                task,
                scope,
                TaskFacts(
                    healthy=healthy,
                    unhealthy=unhealthy,
                    unobserved=unobserved,
                    all_calls_observed=bool(all_observed),
                    any_successful_call=most_successful > 0,
                ),
            )

    def add_task(self, name: str, entry: JsonObject) -> bool:
        """Keep what the summary says of a task; False, and nothing is kept, when the name is taken."""
        with _disk():
            sql = "INSERT OR IGNORE INTO task VALUES (?, ?)"
            kept = self._db.execute(sql, (name, codec.encode(entry))).rowcount
        self.task_count += kept
        return kept == 1

    def tasks(self) -> Iterator[tuple[str, JsonObject]]:
        """Yield names and entries of all tasks in the order in which they were added."""
        for name, entry in self._rows("SELECT name, entry FROM task ORDER BY rowid"):
            yield name, codec.decode(entry)

    def task(self, name: str) -> JsonObject | None:
        """Return the entry of one task."""
        for (entry,) in self._rows("SELECT entry FROM task WHERE name = ?", name):
            return codec.decode_object(entry)
        return None

    def _rows(self, sql: str, *values: object) -> Iterator[tuple[JsonValue, ...]]:
        with _disk():
            yield from self._db.execute(sql, values)


class Digests(Sequence[RolloutDigest]):
    """The digests of a result, read from disk when they are asked for; a slice is a list."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def __len__(self) -> int:
        return self._spool.records

    def __iter__(self) -> Iterator[RolloutDigest]:
        return self._from(0)

    @overload
    def __getitem__(self, at: int) -> RolloutDigest: ...
    @overload
    def __getitem__(self, at: slice) -> list[RolloutDigest]: ...
    def __getitem__(self, at: int | slice) -> RolloutDigest | list[RolloutDigest]:
        if isinstance(at, slice):
            return [self[position] for position in range(len(self))[at]]
        return next(self._from(range(len(self))[at]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def _from(self, start: int) -> Iterator[RolloutDigest]:
        for digest, copies in self._spool.digests(start):
            yield digest if copies == 1 else reduce.as_duplicate(digest, copies)


class Tasks(Mapping[str, JsonObject]):
    """What the summary says of each task, by name, read from disk when it is asked for."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def __len__(self) -> int:
        return self._spool.task_count

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._spool.tasks())

    def __getitem__(self, name: str) -> JsonObject:
        entry = self._spool.task(name)
        if entry is None:
            raise KeyError(name)
        return entry

    def items(self) -> ItemsView[str, JsonObject]:
        """Return names and entries, read in one go."""
        return _TaskItems(self, self._spool)


class _TaskItems(ItemsView[str, JsonObject]):
    def __init__(self, tasks: Tasks, spool: Spool) -> None:
        super().__init__(tasks)
        self._spool = spool

    def __iter__(self) -> Iterator[tuple[str, JsonObject]]:
        return self._spool.tasks()


def _columns(item: tuple[RolloutDigest, bytes]) -> tuple[object, ...]:
    digest = item[0]
    return (
        digest.task_index,
        digest.rollout_index,
        digest.stage_index,
        digest.scope,
        digest.source_file,
        digest.line,
        digest.verdict.value,
        digest.policy_calls_observed,
        digest.successful_model_calls,
    )


def _texts(item: tuple[RolloutDigest, bytes]) -> tuple[bytes, bytes]:
    return item[1], codec.encode(msgspec.to_builtins(msgspec.structs.astuple(item[0])))


def _digest(body: bytes) -> RolloutDigest:
    values = jiter.from_json(body)  # which keeps integers beyond 64 bits
    return msgspec.convert(dict(zip(RolloutDigest.__struct_fields__, values, strict=True)), RolloutDigest)


@contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise SpoolError(
            f"the temporary database of the health checks failed: {error}; it is in `{tempfile.gettempdir()}` unless "
            "`SQLITE_TMPDIR` names another folder: see that there is room"
        ) from error


__all__ = ["Digests", "Spool", "SpoolError", "Tasks"]

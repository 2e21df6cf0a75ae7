"""From input rows to the rows of a run: routing, overrides, prompts, repeats, indices, seeds.

Input rows are never modified; what comes out are shallow copies with their own `responses_create_params` where those
were changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError, ConfigFileNotFoundError, DataError, InputDataError
from nemo_gym.records import keys
from nemo_gym.records.codec import JsonObject, decode_object, encode
from nemo_gym.records.identity import is_materialized_row
from nemo_gym.records.rows import RolloutKey, agent_name_of, is_index
from nemo_gym.rollouts.rollout_ids import RolloutIds
from nemo_gym.rollouts.row_places import POSITIONS, RowPlaces
from nemo_gym.rollouts.settings import DEFAULT_KEY, check_fan_out, is_name
from nemo_gym.rollouts.topology import AGENTS, SourceResolver, Topology
from nemo_gym.store.jsonl import decode_line, read_lines
from nemo_gym.store.key_set import RolloutKeySet

_ONE_ROW_PER_LINE = "Each line must hold one row as one JSON object."


class RowPreparer:
    """Expands rows one at a time; `check` raises and warns about everything that was found on the way.

    With a topology, rows that only carry `task_source` get their agent, and rows that carry nothing get the only agent
    there is. `prompt` turns a row into one with its input; `need_input` refuses rows that then have none. `places` says
    what the positions mean that `expand` is given.
    """

    def __init__(
        self,
        *,
        agent_map: Mapping[str, str] | None = None,
        fan_out: Mapping[str, Sequence[str]] | None = None,
        num_repeats: int | Mapping[str, int] = 1,
        add_seed: bool = False,
        create_params: Mapping[str, Any] | None = None,
        skills_ref: Mapping[str, Any] | None = None,
        prompt: Callable[[JsonObject], JsonObject] | None = None,
        topology: Topology | None = None,
        need_input: bool = False,
        places: RowPlaces = POSITIONS,
    ) -> None:
        _check_expansion(agent_map or {}, fan_out or {}, num_repeats)
        self._agent_map = dict(agent_map or {})
        self._fan_out = {key: list(targets) for key, targets in (fan_out or {}).items()}
        self._num_repeats = num_repeats
        self._add_seed = add_seed
        self._create_params = dict(create_params or {})
        self._skills_ref = skills_ref
        self._prompt = prompt
        self._need_input = need_input
        self._places = places
        self._resolver = None if topology is None else SourceResolver(topology, places)
        self._agents = [] if topology is None else [agent.name for agent in topology.of_kind(AGENTS)]
        self._task_of_text: dict[bytes, int] = {}
        self._next_task = 0
        self._taken_tasks = RolloutKeySet()
        self._next_rollout = _Counters()
        self._unrouted: list[int] = []
        self._unmatched_repeats: dict[str, list[int]] = {}
        self._used_repeats: set[str] = set()
        self._renamed: set[tuple[str, str]] = set()
        self._materialized_changed: list[int] = []
        self._without_input: list[int] = []
        self._misnumbered: list[int] = []
        self._ids = RolloutIds(places)

    def reserve(self, task: int) -> None:
        """Give the task index to no row that does not name it: some row still to come does."""
        self._taken_tasks.add(RolloutKey(task, 0))

    def expand(self, row: JsonObject, text: bytes, position: int) -> list[JsonObject]:
        """Return the rollouts of one input row; equal `text` means the same task."""
        if self._prompt is not None:
            try:
                row = self._prompt(row)
            except ConfigError as error:
                raise ConfigError(f"{self._places.one(position)}: {error}") from error
        original = agent_name_of(row)
        source = row.get(keys.TASK_SOURCE) if isinstance(row.get(keys.TASK_SOURCE), str) else None
        routed = dict(row)
        self._route(routed, original, source, position)
        self._override(routed, position)
        if self._need_input and not is_materialized_row(row):
            given = _create_params_of(routed).get("input")
            if not isinstance(given, (str, list)):
                self._without_input.append(position)
        task = self._task_index(row, text, position)
        routed[keys.TASK_INDEX] = task
        expanded = []
        agent = agent_name_of(routed)
        for target in self._targets(original, source) or [agent]:
            for _ in range(self._repeats_of(target, original, source, position)):
                rollout = self._next_rollout.take(task)
                copy = {**routed, keys.ROLLOUT_INDEX: rollout}
                if target is not None and target != agent:
                    copy[keys.AGENT_REF] = {"name": target}
                if self._add_seed:
                    self._seed(copy, rollout, position)
                expanded.append(copy)
        if len(expanded) > 1 and row.get(keys.ROLLOUT_ID) is not None:
            self._ids.add_repeated(position)
        else:
            for copy in expanded:
                self._ids.add(copy, position)
        return expanded

    def check(self) -> None:
        """Raise one error for all rows that could not be prepared; warn about names that were changed or unused."""
        if self._misnumbered:
            raise ConfigError(
                f"{self._places.many(self._misnumbered)} have a `{keys.TASK_INDEX}` that is no whole number from 0 to "
                "below 2**63; leave it out to have tasks numbered"
            )
        if self._unrouted:
            raise ConfigError(
                f"{self._places.many(self._unrouted)} have neither `agent_ref` nor `task_source`; "
                'add one to them (`"agent_ref": {"name": ...}`), or name an agent (`--agent`)'
                + (f": {', '.join(f'`{name}`' for name in self._agents)}" if self._agents else "")
            )
        if self._without_input:
            raise ConfigError(
                f"{self._places.many(self._without_input)} have no input for the model: each row needs "
                '`"responses_create_params": {"input": ...}`, a text or a list of items (or give `--prompt-config`)'
            )
        self._ids.check()
        if self._resolver is not None:
            self._resolver.check()
        if self._unmatched_repeats:
            named = "; ".join(f"`{key}` ({self._places.many(rows)})" for key, rows in self._unmatched_repeats.items())
            raise ConfigError(f"`num_repeats` names no number for {named}; add them or `{DEFAULT_KEY}`")
        if self._materialized_changed:
            raise ConfigError(
                f"{self._places.many(self._materialized_changed)} are materialized tasks: "
                "`responses_create_params`, skills and seeds cannot be laid over them"
            )
        if self._renamed:
            pairs = ", ".join(f"`{old}` -> `{new}`" for old, new in sorted(self._renamed))
            warnings.warn(f"rows are sent to other agents than they name: {pairs}", UserWarning, stacklevel=2)
        if isinstance(self._num_repeats, Mapping):
            unused = sorted(set(self._num_repeats) - self._used_repeats - {DEFAULT_KEY})
            if unused:
                names = ", ".join(f"`{key}`" for key in unused)
                warnings.warn(f"`num_repeats` names agents that no row runs on: {names}", UserWarning, stacklevel=2)

    def _route(self, row: JsonObject, original: str | None, source: str | None, position: int) -> None:
        target = None
        if self._agent_map:
            target = next(
                (self._agent_map[key] for key in (original, source) if key is not None and key in self._agent_map),
                self._agent_map.get(DEFAULT_KEY),
            )
        if target is not None:
            if original is not None and target != original:
                self._renamed.add((original, target))
            if target != original:
                row[keys.AGENT_REF] = {"name": target}
        elif original is None and not is_materialized_row(row):
            if source is None and len(self._agents) == 1 and row.get(keys.AGENT_REF) is None:
                row[keys.AGENT_REF] = {"name": self._agents[0]}
            elif source is None:
                self._unrouted.append(position)
            elif self._resolver is not None and source not in self._fan_out:
                self._resolver.stamp(row, position)

    def _override(self, row: JsonObject, position: int) -> None:
        if is_materialized_row(row):
            if self._create_params or self._skills_ref is not None or self._add_seed:
                self._materialized_changed.append(position)
            return
        if self._create_params:
            row[keys.RESPONSES_CREATE_PARAMS] = {**_create_params_of(row), **self._create_params}
        if self._skills_ref is not None:
            row[keys.SKILLS_REF] = dict(self._skills_ref)

    def _task_index(self, row: Mapping[str, Any], text: bytes, position: int) -> int:
        given = row.get(keys.TASK_INDEX)
        if is_index(given):
            self.reserve(given)
            return given
        if given is not None:
            self._misnumbered.append(position)
        key = hashlib.blake2b(text, digest_size=16).digest()
        task = self._task_of_text.get(key)
        if task is None:
            while RolloutKey(self._next_task, 0) in self._taken_tasks:
                self._next_task += 1
            task = self._task_of_text[key] = self._next_task
            self._next_task += 1
        return task

    def _targets(self, original: str | None, source: str | None) -> list[str | None]:
        for key in (original, source):
            if key is not None and key in self._fan_out:
                return list(self._fan_out[key])
        return []

    def _repeats_of(self, target: str | None, original: str | None, source: str | None, position: int) -> int:
        if not isinstance(self._num_repeats, Mapping):
            return self._num_repeats
        for key in (target, original, source):
            if key is not None and key in self._num_repeats:
                self._used_repeats.add(key)
                return self._num_repeats[key]
        if DEFAULT_KEY in self._num_repeats:
            return self._num_repeats[DEFAULT_KEY]
        self._unmatched_repeats.setdefault(target or source or "?", []).append(position)
        return 1

    def _seed(self, row: JsonObject, seed: int, position: int) -> None:
        params = _create_params_of(row)
        given = params.get("metadata") or {}
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"{self._places.one(position)}: `responses_create_params.metadata` must be an object to take a seed"
            )
        metadata = dict(given)
        existing = metadata.get("extra_body")
        try:
            extra = decode_object(existing) if existing else {}
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{self._places.one(position)}: `responses_create_params.metadata.extra_body` must be a JSON object in "
                f"a string to take a seed: {error}"
            ) from error
        extra["seed"] = seed
        metadata["extra_body"] = encode(extra).decode()
        row[keys.RESPONSES_CREATE_PARAMS] = {**params, "metadata": metadata}


def _check_expansion(
    agent_map: Mapping[str, str], fan_out: Mapping[str, Sequence[str]], num_repeats: int | Mapping[str, int]
) -> None:
    """Raise ConfigError for what would make rows vanish, or run twice without being meant to."""
    for key, target in agent_map.items():
        if not is_name(target):
            raise ConfigError(f"`agent_map.{key}` names no agent: `{target}`")
    check_fan_out(fan_out)
    repeats: Mapping[str, object] = num_repeats if isinstance(num_repeats, Mapping) else {"": num_repeats}
    for key, number in repeats.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            name = f"num_repeats.{key}" if key else "num_repeats"
            raise ConfigError(f"`{name}` must be a whole number, 1 or more, not `{number}`")


def input_rows(path: str | Path, limit: int | None) -> Iterator[tuple[JsonObject, bytes, int]]:
    """Yield the rows of an input file, and text and line number of each; an unreadable line raises InputDataError.

    Blank lines are skipped; lines beyond `limit` are not read, and a limit of 0 or None means all.
    """
    try:
        lines = read_lines(path)
        for count, line in enumerate(lines):
            if limit and count >= limit:
                return
            yield decode_line(line, path, hint=_ONE_ROW_PER_LINE), line.data, line.number
    except FileNotFoundError:
        raise ConfigFileNotFoundError(f"input file `{path}` does not exist") from None
    except DataError as error:
        raise InputDataError.of(error) from error


def given_task_indices(path: str | Path, limit: int | None) -> Iterator[int]:
    """Yield the task indices that rows of an input file name themselves; what cannot be read names none."""
    marker = keys.TASK_INDEX.encode()
    for count, line in enumerate(read_lines(path)):
        if limit and count >= limit:
            return
        if marker in line.data:
            with contextlib.suppress(ValueError):
                given = decode_object(line.data).get(keys.TASK_INDEX)
                if is_index(given):
                    yield given


def expand_rows(rows: Iterable[tuple[JsonObject, bytes, int]], preparer: RowPreparer) -> Iterator[JsonObject]:
    """Yield the prepared rows one by one and check at the end; nothing is valid before the iteration has ended.

    `rows`: each row, its text, and the place that messages give it.
    """
    for row, text, position in rows:
        yield from preparer.expand(row, text, position)
    preparer.check()


def interleaved(rows: Iterable[JsonObject]) -> list[JsonObject]:
    """Return rows ordered by rollout index first: all first repeats, then all second ones. Holds all rows at once."""
    return sorted(rows, key=lambda row: row[keys.ROLLOUT_INDEX])


def skills_ref_of(path: str | Path) -> JsonObject:
    """Return what is stamped on rows for a skills folder: path, 12 hex digits over its content, names of its skills."""
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigFileNotFoundError(f"skills folder `{path}` does not exist")
    digest = hashlib.sha256()
    for file in sorted(item for item in folder.rglob("*") if item.is_file()):
        digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes() + b"\0")
    names = sorted(item.parent.name for item in folder.rglob("SKILL.md"))
    return {"path": str(path), "hash": digest.hexdigest()[:12], "skills": names}


def row_text(row: JsonObject) -> bytes:
    """Return what makes two in-memory rows the same task: their JSON with sorted keys."""
    import orjson

    try:
        return orjson.dumps(row, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=str)
    except TypeError:  # what fast JSON refuses still identifies itself through the codec
        return encode(row)


class _Counters:
    """A running number for each task; tasks that come in order cost four bytes."""

    def __init__(self) -> None:
        self._dense = array("I")
        self._sparse: dict[int, int] = {}

    def take(self, task: int) -> int:
        """Return the task's next number."""
        if 0 <= task < len(self._dense):
            number = self._dense[task]
            self._dense[task] = number + 1
            return number
        if task == len(self._dense) and task not in self._sparse:
            self._dense.append(1)
            return 0
        number = self._sparse.get(task, 0)
        self._sparse[task] = number + 1
        return number


def _create_params_of(row: Mapping[str, Any]) -> JsonObject:
    params = row.get(keys.RESPONSES_CREATE_PARAMS)
    return dict(params) if type(params) is dict or isinstance(params, Mapping) else {}

"""`CaptureStore`: the capture files of one directory."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import orjson

from nemo_gym.capture import archive, files, open_calls
from nemo_gym.capture.open_calls import OpenCall
from nemo_gym.errors import DataError
from nemo_gym.records import identity
from nemo_gym.records.codec import JsonObject, decode_non_finite, encode_line

_LOG = logging.getLogger(__name__)
DATA_SUFFIX = ".capture.jsonl"
MARKER_SUFFIX = ".capture.incomplete"
_POLL_S = 0.02
_decode = msgspec.json.Decoder().decode


class CaptureStore:
    """The append-only capture files under one directory, one per rollout (C3).

    Any number of processes may write and read at once. `<id>.capture.jsonl` holds one JSON object per line;
    `<id>.capture.incomplete` says that at least one call is missing from it, with one JSON line per known call.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)
        self._text = str(self._root)
        self._checked: str | None = None
        """The id that was found usable last: most files are asked for in a row."""
        if not self._root.is_dir():  # asking is cheaper than making, and readers open a store for each rollout
            self._root.mkdir(parents=True, exist_ok=True)

    @property
    def root(self) -> Path:
        """The directory."""
        return self._root

    def _name(self, rollout_id: str, suffix: str) -> str:
        """Return a file's path as text: made several times for each rollout, where a `Path` is slow to make."""
        if rollout_id != self._checked:
            self._checked = identity.check_rollout_id(rollout_id)
        return f"{self._text}{os.sep}{rollout_id}{suffix}"

    def path_for(self, rollout_id: str) -> Path:
        """Return the rollout's data file, existing or not; raises ValueError on an unusable id."""
        return self._root / f"{identity.check_rollout_id(rollout_id)}{DATA_SUFFIX}"

    def incomplete_path_for(self, rollout_id: str) -> Path:
        """Return the rollout's marker file, existing or not; raises ValueError on an unusable id."""
        return self._root / f"{identity.check_rollout_id(rollout_id)}{MARKER_SUFFIX}"

    def record(self, rollout_id: str, exchange: JsonObject) -> None:
        """Append one exchange; it is durable when this returns. Raises OSError when it could not be written."""
        files.append_durably(self.path_for(rollout_id), encode_line(exchange))

    def mark_incomplete(self, rollout_id: str, *, model_call_id: str | None = None, reason: str | None = None) -> None:
        """Say that a call is missing. Without a call id the marker is only created when absent."""
        path = self.incomplete_path_for(rollout_id)
        if model_call_id is None and reason is None:
            path.touch(mode=files.FILE_MODE, exist_ok=True)
            return
        line = {"time": time.time(), "model_call_id": model_call_id, "reason": reason}
        files.append_durably(path, encode_line(line))

    def is_incomplete(self, rollout_id: str) -> bool:
        """Return whether a call is known to be missing: by the marker, or because its process died.

        A marker that names only calls which have arrived since does not count.
        """
        marker = self.incomplete_path_for(rollout_id)
        open_ones = [call for call in open_calls.open_calls(self._root, rollout_id) if not call.served]
        if not marker.exists() and not open_ones:
            return False
        records, _ = self.read_available(rollout_id)
        known = {str(record.get("model_call_id")) for _, record in records}
        return bool(self.missing_calls(rollout_id, known)) or self.misses_unnamed_calls(rollout_id)

    def missing_calls(self, rollout_id: str, known: set[str]) -> list[JsonObject]:
        """Return the named calls that have no record: `{model_call_id, reason, time}`, each call once.

        From the marker, and from calls that began and never ended: their process died, or they still run.
        """
        return self._missing_calls(rollout_id, known, self._marker_lines(rollout_id) or [])

    def losses(self, rollout_id: str, known: set[str]) -> tuple[list[JsonObject], bool]:
        """Return what `missing_calls` and `misses_unnamed_calls` do, from one look at the marker."""
        marker = self._marker_lines(rollout_id)
        return self._missing_calls(rollout_id, known, marker or []), _names_not_all(marker)

    def _missing_calls(self, rollout_id: str, known: set[str], marker: list[JsonObject]) -> list[JsonObject]:
        missing: dict[str, JsonObject] = {}
        for line in marker:
            call_id = line.get("model_call_id")
            if isinstance(call_id, str) and call_id not in known:
                missing.setdefault(call_id, line)
        for call in open_calls.open_calls(self._root, rollout_id):
            if call.model_call_id not in known:
                entry = {"model_call_id": call.model_call_id, "reason": call.why_missing, "time": call.started_at}
                missing.setdefault(call.model_call_id, entry)
        return list(missing.values())

    def misses_unnamed_calls(self, rollout_id: str) -> bool:
        """Return whether there is a marker that does not say which call is missing."""
        return _names_not_all(self._marker_lines(rollout_id))

    def read(self, rollout_id: str) -> list[JsonObject]:
        """Return every exchange in durable append order; `[]` without a file.

        Strict: raises DataError, with the line, when one line is damaged.
        """
        path = self.path_for(rollout_id)
        exchanges: list[JsonObject] = []
        offset = 0
        for number, line in enumerate(archive.read_lines(str(path)).split(b"\n"), start=1):
            if line.strip():
                try:
                    exchange = decode_exchange(line)
                except ValueError as error:
                    hint = "`read_available` skips damaged lines and counts them."
                    raise DataError(str(error), path=path, line=number, byte=offset, hint=hint) from error
                if is_call(exchange):
                    exchanges.append(exchange)
            offset += len(line) + 1
        return exchanges

    def read_available(self, rollout_id: str) -> tuple[list[tuple[int, JsonObject]], int]:
        """Return what can be read, as (line index, exchange), and how many lines cannot.

        The index counts damaged lines too, blank lines not.
        """
        found: list[tuple[int, JsonObject]] = []
        invalid = 0
        for index, line in enumerate(self.lines(rollout_id)):
            try:
                exchange = decode_exchange(line)
            except ValueError:
                invalid += 1
            else:
                if is_call(exchange):
                    found.append((index, exchange))
        return found, invalid

    def lines(self, rollout_id: str) -> list[bytes]:
        """Return the lines that are not blank, damaged or not, in durable append order, sealed ones first.

        Each one but the last has its newline: finding them so is ten times as fast as splitting.
        """
        return [line for line in io.BytesIO(self.data(rollout_id)) if not line.isspace()]

    def data(self, rollout_id: str) -> bytes:
        """Return all lines as they are, damaged or not, in durable append order, sealed ones first."""
        return archive.read_lines(self._name(rollout_id, DATA_SUFFIX))

    def size_of(self, rollout_id: str) -> int:
        """Return how many bytes the rollout's lines take on disk, sealed or not; 0 without a file."""
        name = self._name(rollout_id, DATA_SUFFIX)
        sealed = name + archive.SEALED_SUFFIX
        try:
            size = os.stat(name).st_size  # noqa: PTH116 - asked for each rollout
        except FileNotFoundError:
            size = 0
        if os.access(sealed, os.F_OK):  # nearly never there, and what is not there costs an exception otherwise
            size += os.stat(sealed).st_size  # noqa: PTH116
        return size

    def delete(self, rollout_id: str) -> None:
        """Remove the rollout's files. Calls still being served for it are not recorded when they end (C11)."""
        open_calls.void_open_calls(self._root, rollout_id)
        for suffix in (DATA_SUFFIX, DATA_SUFFIX + archive.SEALED_SUFFIX, MARKER_SUFFIX):
            files.delete(self._name(rollout_id, suffix))

    def seal(self, rollout_id: str) -> bool:
        """Compress a finished rollout's file; reading goes on as before. False when there is nothing to compress."""
        return archive.seal(self.path_for(rollout_id))

    def unseal(self, rollout_id: str) -> bool:
        """Undo `seal`; the file is byte for byte what it was. False when nothing is sealed."""
        return archive.unseal(self.path_for(rollout_id))

    def rollout_ids(self) -> list[str]:
        """Return the rollouts that have a data file, a sealed one, a marker, or a call that was begun."""
        suffixes = (DATA_SUFFIX, DATA_SUFFIX + archive.SEALED_SUFFIX, MARKER_SUFFIX)
        found = {call.rollout_id for call in open_calls.open_calls(self._root)}
        for name in os.listdir(self._root):  # noqa: PTH208 - there may be very many
            found.update(name.removesuffix(suffix) for suffix in suffixes if name.endswith(suffix))
        return sorted(rollout_id for rollout_id in found if identity.rollout_id_problem(rollout_id) is None)

    def open_calls(self, rollout_id: str | None = None) -> list[OpenCall]:
        """Return the calls that have begun and have no durable record, of one rollout or of all."""
        data: dict[str, bytes] = {}
        found = []
        for call in open_calls.open_calls(self._root, rollout_id):
            if call.rollout_id not in data:
                data[call.rollout_id] = archive.read_lines(self._name(call.rollout_id, DATA_SUFFIX))
            if not _is_recorded(call.model_call_id, data[call.rollout_id]):
                found.append(call)
        return found

    def recover(self) -> int:
        """Put the calls that died with an earlier process into their rollouts' markers; returns how many."""
        count = 0
        for call in open_calls.take_dead_calls(self._root):
            records, _ = self.read_available(call.rollout_id)
            if any(record.get("model_call_id") == call.model_call_id for _, record in records):
                continue
            self.mark_incomplete(call.rollout_id, model_call_id=call.model_call_id, reason=call.why_missing)
            count += 1
        return count

    def _marker_lines(self, rollout_id: str) -> list[JsonObject] | None:
        """Return the marker's lines, None without a marker."""
        name = self._name(rollout_id, MARKER_SUFFIX)
        # Most rollouts have none, and opening what is not there costs an exception.
        data = files.read_whole(name) if os.access(name, os.F_OK) else None
        if data is None:
            return None
        lines = []
        for line in data.split(b"\n"):
            try:
                value = orjson.loads(line) if line.strip() else None
            except orjson.JSONDecodeError:
                value = None
            if isinstance(value, dict):
                lines.append(value)
        return lines


async def await_quiescence(store: CaptureStore, rollout_id: str, timeout_s: float = 5.0) -> list[OpenCall]:
    """Wait until no call of the rollout is being served or written by any process; returns what still is.

    An empty list means quiet. Calls of dead processes are not waited for, nor those
    that have ended and could be written nowhere. Processes on other machines are seen as far
    as the shared file system shows their announcements.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        outstanding = [call for call in store.open_calls(rollout_id) if call.served]
        if not outstanding or time.monotonic() >= deadline:
            return outstanding
        await asyncio.sleep(_POLL_S)


await_model_call_capture_quiescence = await_quiescence


def decode_exchange(line: bytes) -> JsonObject:
    """Return the object on one line; raises ValueError when it is damaged.

    NaN and infinity, which other writers let through, become null.
    """
    try:
        value: Any = _decode(line)  # as fast as any, and exact for integers of any size
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decode_non_finite(line)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is needed, this is a {type(value).__name__}")
    return value


def _is_recorded(model_call_id: str, lines: bytes) -> bool:
    """Return whether a whole line records the call; its name alone may be in a line that a crash cut."""
    at = lines.find(model_call_id.encode())
    while at >= 0:
        end = lines.find(b"\n", at)
        try:
            line = decode_exchange(lines[lines.rfind(b"\n", 0, at) + 1 : end if end >= 0 else len(lines)])
        except ValueError:
            line = {}
        if line.get("model_call_id") == model_call_id:
            return True
        at = lines.find(model_call_id.encode(), at + 1)
    return False


def is_utf8(line: bytes | memoryview) -> bool:
    """Return whether a line is text."""
    try:
        str(line, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def is_call(exchange: JsonObject) -> bool:
    """Return whether a line is a call: lines of another `type` belong to other readers."""
    return bool(exchange.get("type", "call") == "call")


def _names_not_all(marker: list[JsonObject] | None) -> bool:
    return marker is not None and (not marker or any(not isinstance(line.get("model_call_id"), str) for line in marker))

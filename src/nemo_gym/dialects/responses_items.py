"""One output item of a streamed Responses answer while it grows: its parts by index, its strings, its status."""

from __future__ import annotations

from bisect import bisect_left

from nemo_gym.dialects.merge import Assembly
from nemo_gym.records.codec import JsonObject, JsonValue


class OutputItem:
    """An item and its part lists (`content`, `summary`), addressed by the index that events carry.

    Parts are kept in a mapping, so an index far beyond the end costs nothing; the list is made when it is read.
    """

    __slots__ = ("_annotations", "_finished", "_parts", "_raised", "data")

    def __init__(self, data: JsonObject) -> None:
        self.data = data
        self._parts: dict[str, dict[int, JsonValue]] = {}
        self._finished: set[tuple[str, int]] = set()
        self._raised: dict[tuple[str, int], int] = {}  # an index that no part has -> the part that it meant
        self._annotations: dict[int, tuple[list[JsonValue], list[int]]] = {}  # of a list, by its id: itself, places

    def replace(self, data: JsonObject) -> None:
        """Let `data` stand instead of everything so far."""
        self.data = data
        self._parts.clear()
        self._finished.clear()
        self._raised.clear()
        self._annotations.clear()

    def set_part(self, field: str, index: int, part: JsonValue, *, finished: bool) -> None:
        """Put `part` at `index`."""
        self._list(field)[index] = part
        if finished:
            self._finished.add((field, index))

    def part(self, field: str, index: int, kind: str) -> JsonObject:
        """Return the part at `index`, made as an empty part of type `kind` when there is none."""
        parts = self._list(field)
        part = parts.get(index)
        if not isinstance(part, dict):
            part = parts[index] = {"type": kind}
        return part

    def running_index(self, field: str, index: int) -> int:
        """Return the index that a delta at `index` belongs to, for servers that raise it with every token.

        An index that no event opened continues the last part, unless that one was finished.
        """
        parts = self._list(field)
        if index not in parts and parts:
            meant = self._raised.get((field, index))
            last = next(reversed(parts)) if meant is None else meant
            if meant is not None or (field, last) not in self._finished:
                self._raised[field, index] = last
                return last
        return index

    def annotate(self, part: JsonObject, annotation: JsonValue, place: JsonValue) -> None:
        """Put an annotation of a text part where its index says, whatever order they come in; without one, last."""
        known = part.get("annotations")
        if not isinstance(known, list):
            known = part["annotations"] = []
        seen, places = self._annotations.get(id(known), (known, []))
        if seen is not known or len(places) != len(known):
            places = list(range(len(known)))
        self._annotations[id(known)] = known, places
        place = place if type(place) is int else places[-1] + 1 if places else 0
        at = bisect_left(places, place)
        if at < len(places) and places[at] == place:
            known[at] = annotation
        else:
            known.insert(at, annotation)
            places.insert(at, place)

    def finish_part(self, field: str, index: int) -> None:
        """Mark the part as whole: a new index opens a new one."""
        self._finished.add((field, index))

    def build(self) -> JsonObject:
        """Return the item with its part lists in index order."""
        for field, parts in self._parts.items():
            if parts or field in self.data:
                self.data[field] = [parts[index] for index in sorted(parts)]
        return self.data

    def _list(self, field: str) -> dict[int, JsonValue]:
        parts = self._parts.get(field)
        if parts is None:
            given = self.data.get(field)
            parts = self._parts[field] = dict(enumerate(given)) if isinstance(given, list) else {}
        return parts


def set_or_append(assembly: Assembly, target: JsonObject, key: str, *, delta: JsonValue, whole: JsonValue) -> bool:
    """Append `delta` to the string at `key`, or set it to `whole`; returns whether there was anything to take."""
    if whole is not None:
        target[key] = whole
        return bool(whole)
    if isinstance(delta, str):
        if delta:
            assembly.append(target, key, delta)
        else:
            target.setdefault(key, "")
        return bool(delta)
    return False

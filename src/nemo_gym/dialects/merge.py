"""How pieces of one object are put together: the generic merge, with strings that grow in linear time.

Source: the shared merge rule for unknown keys (capture contract 3.1) and the pairing of surrogate halves (rule 10).
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from nemo_gym.records.codec import JsonObject, JsonValue

IDENTIFIER_KEYS = frozenset(
    {"id", "type", "role", "name", "index", "object", "model", "status", "finish_reason", "stop_reason"}
)
"""Strings under these keys name something: the last one stands, they are never joined."""


_LARGE, _BLOCK = 4096, 1 << 18


class Rope:
    """A string that is still growing: its pieces, joined once."""

    __slots__ = ("_first_loose", "_loose", "pieces")

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces
        self._first_loose = self._loose = 0

    def add_large(self, piece: str) -> None:
        """Add a piece of some size. Some of them are made one: as many small blocks, memory would stay in use."""
        self.pieces.append(piece)
        self._loose += len(piece)
        if self._loose > _BLOCK:
            self.pieces[self._first_loose :] = ["".join(self.pieces[self._first_loose :])]
            self._first_loose, self._loose = len(self.pieces), 0

    def join(self) -> str:
        """Return the whole string."""
        return "".join(self.pieces)


def pieces_of(target: JsonObject, key: str) -> list[str] | None:
    """Return the pieces of the string that grows at `target[key]`; None when none does."""
    rope = target.get(key)
    return rope.pieces if type(rope) is Rope else None


class Base64Rope(Rope):
    """Pieces that are base64 each on their own, padding included; what is joined is what they decode to."""

    __slots__ = ()

    def join(self) -> str:
        """Return the base64 of all decoded pieces; text that is not base64 is joined as it came."""
        try:
            decoded = b"".join(base64.b64decode(piece, validate=True) for piece in self.pieces)
        except (binascii.Error, ValueError):
            return "".join(self.pieces)
        return base64.b64encode(decoded).decode("ascii")


class Assembly:
    """Puts pieces into dicts that it does not own; `settle` turns every growing string into a plain one.

    Between `settle` calls a dict value may be a `Rope`. Objects given to it become part of the result: they are not
    copied.
    """

    __slots__ = ("_ropes",)

    def __init__(self) -> None:
        self._ropes: list[tuple[JsonObject, str, Rope]] = []

    def append(self, target: JsonObject, key: str, text: str, *, rope: type[Rope] = Rope) -> None:
        """Append `text` to the string at `target[key]`; anything there that is no string is replaced."""
        current = target.get(key)
        if type(current) is rope:
            if len(text) < _LARGE or rope is not Rope:
                current.pieces.append(text)
            else:
                current.add_large(text)
        elif isinstance(current, str) and current:
            target[key] = grown = rope([current, text])
            self._ropes.append((target, key, grown))
        else:
            target[key] = text

    def merge(self, target: JsonObject, source: JsonObject) -> None:
        """Merge `source` into `target` by the generic rule.

        Null never overwrites; strings are joined, except under identifier-like keys; lists are extended; objects are
        merged by key; anything else is replaced.
        """
        for key, value in source.items():
            if value is None:
                continue
            current = target.get(key)
            if current is None:
                target[key] = value
            elif isinstance(value, str):
                if isinstance(current, (str, Rope)) and key not in IDENTIFIER_KEYS:
                    if value:
                        self.append(target, key, value)
                else:
                    target[key] = value
            elif isinstance(value, list) and isinstance(current, list):
                current.extend(value)
            elif isinstance(value, dict) and isinstance(current, dict):
                self.merge(current, value)
            else:
                target[key] = value

    def settle(self) -> None:
        """Make every growing string a plain one. More may be appended afterwards."""
        for target, key, rope in self._ropes:
            if target.get(key) is rope:
                target[key] = rope.join()
        self._ropes.clear()


def overwrite_known(target: JsonObject, source: JsonObject) -> None:
    """Let each non-null value of `source` replace the one in `target`, nested objects too: cumulative counts."""
    for key, value in source.items():
        if value is None:
            continue
        current = target.get(key)
        if isinstance(value, dict) and isinstance(current, dict):
            overwrite_known(current, value)
        else:
            target[key] = value


def repair_surrogates(value: JsonValue) -> tuple[JsonValue, bool]:
    """Return `value` with surrogate halves paired up in every string and key, in place where it can be.

    A half that stays alone becomes U+FFFD; the second result says whether there was one.
    """
    holder: list[Any] = [value]
    stack: list[Any] = [holder]
    lone = False
    while stack:  # not recursive: a parsed value may be nested deeper than the interpreter likes
        node = stack.pop()
        if isinstance(node, dict):
            if not all(key.isascii() for key in node):
                entries = [(*_paired(key), item) for key, item in node.items()]
                node.clear()
                for key, bad, item in entries:
                    lone = lone or bad
                    node[key] = item
            items: Any = list(node.items())
        else:
            items = enumerate(node)
        for place, item in items:
            if isinstance(item, str):
                if not item.isascii():
                    node[place], bad = _paired(item)
                    lone = lone or bad
            elif isinstance(item, (dict, list)):
                stack.append(item)
    return holder[0], lone


def _paired(text: str) -> tuple[str, bool]:
    units = text.encode("utf-16-le", "surrogatepass")
    try:
        return units.decode("utf-16-le"), False
    except UnicodeDecodeError:
        return units.decode("utf-16-le", "replace"), True

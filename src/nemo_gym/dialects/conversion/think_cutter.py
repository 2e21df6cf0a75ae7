"""`<think>` blocks cut out of streamed text, by the rule of finished text: only closed ones are reasoning."""

from __future__ import annotations

from typing import Literal, NamedTuple

_OPEN, _CLOSE = "<think>", "</think>"


class Piece(NamedTuple):
    """Text, or the text of one whole think block."""

    kind: Literal["text", "reasoning"]
    text: str


class ThinkCutter:
    """Give it text, take back pieces. Text from an opening tag on waits until the tag is closed, or the end."""

    def __init__(self) -> None:
        self._held = ""  # the start of a tag, perhaps
        self._inside: list[str] | None = None
        self._tail = ""

    def feed(self, text: str) -> list[Piece]:
        """Return what `text` settles."""
        pieces: list[Piece] = []
        rest = self._held + text if self._inside is None else text
        self._held = ""
        while rest:
            if self._inside is None:
                before, found, rest = rest.partition(_OPEN)
                if found:
                    self._inside, self._tail = [], ""
                else:
                    keep = _overlap(before)
                    self._held = before[len(before) - keep :] if keep else ""
                    before = before[: len(before) - keep] if keep else before
                if before:
                    pieces.append(Piece("text", before))
            else:
                rest = self._within(self._inside, rest, pieces)
        return pieces

    def finish(self) -> list[Piece]:
        """Return what still waited, as the text it is."""
        waiting = self._held if self._inside is None else _OPEN + "".join(self._inside)
        self._held, self._inside = "", None
        return [Piece("text", waiting)] if waiting else []

    def _within(self, inside: list[str], rest: str, pieces: list[Piece]) -> str:
        """Take text inside a block; returns what follows the block, "" while it is open."""
        seen = self._tail + rest
        end = seen.find(_CLOSE)
        if end < 0:
            inside.append(rest)
            self._tail = seen[-(len(_CLOSE) - 1) :]
            return ""
        taken = end - len(self._tail)  # how much of `rest` precedes the tag; negative when the tag began before it
        whole = "".join(inside) + rest[: max(taken, 0)]
        pieces.append(Piece("reasoning", whole[:taken] if taken < 0 else whole))
        self._inside, self._tail = None, ""
        return rest[taken + len(_CLOSE) :]


def _overlap(text: str) -> int:
    """Return how many of the last characters could begin an opening tag."""
    for size in range(min(len(text), len(_OPEN) - 1), 0, -1):
        if _OPEN.startswith(text[-size:]):
            return size
    return 0

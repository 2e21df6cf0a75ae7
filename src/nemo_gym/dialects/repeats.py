"""Stream events that differ from the one before in the text of one delta only: most of what a model streams.

Once such an event was read in full, the bytes around its text are known. A chunk that begins and ends with the same
bytes, and has exactly one JSON string between them, would be framed, parsed and handled just as that event was, but
for the text: so the text is taken and nothing else is done. Everything else goes the general way.
"""

from __future__ import annotations

import orjson

from nemo_gym.records.codec import JsonValue

_BLOCK_ENDS = (b"\n\n", b"\r\n\r\n")
LONGEST_TEXT = 4096
"""Texts above this are not taken here: a growing string treats large pieces in a way of its own."""


class Repeat:
    """The bytes of one event with its text left open, and the list that the text is appended to."""

    __slots__ = ("_after", "_before", "_end", "_least", "_most", "_start", "_take", "taken")

    def __init__(self, before: bytes, after: bytes, texts: list[str]) -> None:
        self._before, self._after = before, after
        # Where in a chunk the string is, its quotes included.
        self._start, self._end = len(before) - 1, 1 - len(after)
        self._least = len(before) + len(after) + 1
        self._most = self._least + LONGEST_TEXT
        self._take = texts.append
        self.taken = 0

    @classmethod
    def of(cls, chunk: bytes, text: str, texts: list[str]) -> Repeat | None:
        """Return the repeat of the event in `chunk`, which put `text` into `texts`; None when the place is in doubt.

        `chunk` must be one block and nothing else. Without a backslash in it a string is spelled in one way only, so
        one that is there once is the text.
        """
        if not chunk.endswith(_BLOCK_ENDS) or b"\\" in chunk:
            return None
        quoted = b'"%b"' % text.encode("utf-8", "surrogatepass")
        place = chunk.find(quoted)
        if place < 0 or chunk.find(quoted, place + 1) >= 0:
            return None
        return cls(chunk[: place + 1], chunk[place + len(quoted) - 1 :], texts)

    def take(self, chunk: bytes) -> bool:
        """Take the text of `chunk` when it is the event again; False, and nothing taken, when it is not."""
        size = len(chunk)
        if not self._least <= size < self._most or not chunk.startswith(self._before):
            return False
        if not chunk.endswith(self._after):
            return False
        try:
            text: JsonValue = orjson.loads(chunk[self._start : self._end])
        except orjson.JSONDecodeError:
            return False  # an open string, or what only a lenient reader takes
        if not text:
            return False
        self._take(text)
        self.taken += 1
        return True

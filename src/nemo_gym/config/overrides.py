"""The override grammar of the command line: `+key=value`, `++key=value`, `key=value`, `~key`.

    +a.b=1        add; refused when another `+` gave the same key
    ++a.b=1       add or replace; the last one wins
    a.b=1         replace a key that exists, or give a top-level key that this package knows
    ~a.b          delete

A value is an integer, a float, `true`, `false`, `null`, a quoted string, a list `[a, b]`, a mapping `{k: v}`, or else
plain text up to the end of the token. Inside lists and mappings text ends at a comma or bracket, so quote what contains
one. `${other.key}` is kept for interpolation, in quotes too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from nemo_gym.errors import ConfigError

Operation = Literal["add", "force", "set", "delete"]

DEEPEST: Final = 50
"""How far values and keys may be nested."""
_LONGEST_NUMBER = 300
_LONGEST_SHOWN = 160

_INTEGER = re.compile(r"[+-]?\d+(_\d+)*\Z")
_FLOAT = re.compile(r"[+-]?(\d+(_\d+)*\.\d*|\.\d+|\d+(_\d+)*(?=[eE]))([eE][+-]?\d+)?\Z|[+-]?(inf|nan)\Z", re.IGNORECASE)
_CONSTANTS = {"true": True, "false": False, "null": None}
_PATH = re.compile(r"[^\s.\[\]{}'\"=,]+(\[\d+\])*(\.[^\s.\[\]{}'\"=,]+(\[\d+\])*)*\Z")


@dataclass(frozen=True, slots=True)
class Override:
    """One token of the command line.

    `path` holds the keys from the top; an integer is a position in a list. `value` is None for a deletion.
    """

    operation: Operation
    path: tuple[str | int, ...]
    value: Any
    token: str

    @property
    def key(self) -> str:
        """The dotted key, as the person wrote it."""
        return ".".join(str(part) for part in self.path)


def parse_override(token: str) -> Override:
    """Parse one token. Raises `ConfigError` naming the token and the place in it, and nothing else."""
    if token.startswith("~"):
        key, separator, _ = token[1:].partition("=")
        if separator:
            raise ConfigError(
                f"override `{_shown(token)}`: `~` deletes a key and takes no value; write `~{_shown(key)}`."
            )
        return Override("delete", _parse_path(key, token), None, token)
    operation: Operation = "force" if token.startswith("++") else "add" if token.startswith("+") else "set"
    key, separator, text = token.removeprefix("+").removeprefix("+").partition("=")
    if not separator:
        raise ConfigError(
            f"unexpected argument `{_shown(token)}`. Settings look like `+key=value`, `++key=value`, `key=value` or "
            "`~key`."
        )
    return Override(operation, _parse_path(key, token), parse_value(text, token=token), token)


def parse_overrides(tokens: list[str] | tuple[str, ...]) -> list[Override]:
    """Parse all tokens of a command line, in order. Raises `ConfigError` at the first bad one."""
    return [parse_override(token) for token in tokens]


def _parse_path(key: str, token: str) -> tuple[str | int, ...]:
    if not _PATH.match(key):
        raise ConfigError(
            f"override `{_shown(token)}`: `{_shown(key)}` is not a key. Keys look like `name` or `name.inner.name`."
        )
    path: list[str | int] = []
    for part in key.split("."):
        name, *positions = part.replace("]", "").split("[")
        path.append(name)
        path += [_integer(position, token) for position in positions]
    if len(path) > DEEPEST:
        raise ConfigError(f"override `{_shown(token)}`: the key is nested more than {DEEPEST} deep.")
    return tuple(path)


def _integer(digits: str, token: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise ConfigError(f"override `{_shown(token)}`: a number of {len(digits)} characters; quote it if it is text.")
    return int(digits)


def _shown(text: str) -> str:
    """A token as a message shows it: on one line, and not longer than one can read."""
    line = " ".join(text.split("\n"))
    return line if len(line) <= _LONGEST_SHOWN else f"{line[:_LONGEST_SHOWN]}…"


def parse_value(text: str, *, token: str = "") -> Any:
    """Parse the text behind the `=`. Raises `ConfigError` naming the character where it went wrong."""
    reader = _Reader(text, token or text)
    reader.skip_spaces()
    if reader.peek() not in ("[", "{", "'", '"'):
        return _scalar(text, token or text)
    value = reader.value()
    reader.skip_spaces()
    if reader.position < len(text):
        raise reader.error(f"`{_shown(text[reader.position :])}` is left over behind the value. Quote the whole value")
    return value


def _scalar(text: str, token: str) -> Any:
    stripped = text.strip()
    if stripped.lower() in _CONSTANTS:
        return _CONSTANTS[stripped.lower()]
    if _INTEGER.match(stripped):
        return _integer(stripped, token)
    if _FLOAT.match(stripped):
        return float(stripped)
    return stripped


class _Reader:
    """Reads one structured value from the left."""

    def __init__(self, text: str, token: str) -> None:
        self.text, self.token, self.position, self.depth = text, token, 0, 0

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"override `{_shown(self.token)}`: {problem} (character {self.position + 1} of the value).")

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def skip_spaces(self) -> None:
        while self.peek().isspace():
            self.position += 1

    def value(self, stops: str = ",]}") -> Any:
        self.skip_spaces()
        match self.peek():
            case "[":
                return self._list()
            case "{":
                return self._mapping()
            case "'" | '"':
                return self._quoted()
            case _:
                return self._plain(stops)

    def _list(self) -> list[Any]:
        items: list[Any] = []
        for _ in self._members("[", "]"):
            items.append(self.value(",]"))
        return items

    def _mapping(self) -> dict[Any, Any]:
        entries: dict[Any, Any] = {}
        for _ in self._members("{", "}"):
            key = self.value(":,}")
            self.skip_spaces()
            if self.peek() != ":":
                raise self.error("a `:` is missing behind the key; mappings look like `{key: value}`")
            if isinstance(key, (list, dict)):
                raise self.error("a key must be plain text or quoted")
            self.position += 1
            entries[key] = self.value(",}")
        return entries

    def _members(self, opening: str, closing: str) -> Any:
        """Step over brackets and commas; yields when a member is to be read."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.error(f"values are nested more than {DEEPEST} deep")
        self.position += 1
        self.skip_spaces()
        while self.peek() != closing:
            yield
            self.skip_spaces()
            if self.peek() == ",":
                self.position += 1
                self.skip_spaces()
            elif self.peek() != closing:
                raise self.error(f"`{opening}` is not closed: a `,` or `{closing}` is missing")
        self.position += 1
        self.depth -= 1

    def _quoted(self) -> str:
        quote = self.peek()
        start = self.position
        self.position += 1
        text: list[str] = []
        while (character := self.peek()) != quote:
            if not character:
                self.position = start
                raise self.error(f"the quote {quote} is not closed")
            if character == "\\" and self.text[self.position + 1 : self.position + 2] in (quote, "\\"):
                self.position += 1
                character = self.peek()
            text.append(character)
            self.position += 1
        self.position += 1
        return "".join(text)

    def _plain(self, stops: str) -> Any:
        start, depth = self.position, 0
        while character := self.peek():
            if self.text.startswith("${", self.position):
                depth += 1
                self.position += 1
            elif depth and character == "}":
                depth -= 1
            elif not depth and character in stops:
                break
            self.position += 1
        if start == self.position:
            raise self.error("a value is missing")
        return _scalar(self.text[start : self.position], self.token)

"""Which part of a model's text counts as its answer. Pure."""

from __future__ import annotations

import re
from typing import Literal

AnswerFormat = Literal["text", "last_number", "tag"]

_NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?\d[\d,]*(?:\.\d+)?")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)


def extract_answer(text: str, answer_format: AnswerFormat) -> str | None:
    """Return the answer inside `text`, or None when the text holds none of that format.

    `text` is the whole text, stripped. `last_number` is the last number in it, without thousands separators, as one
    reads the result off a worked solution. `tag` is the content of the last `<answer>` element.
    """
    if answer_format == "tag":
        found = _TAG.findall(text)
        return found[-1].strip() if found else None
    if answer_format == "last_number":
        return _last_number(text)
    return text.strip() or None


def _last_number(text: str) -> str | None:
    found = list(_NUMBER.finditer(text))
    if not found:
        return None
    last = found[-1]
    number = last.group().replace(",", "").replace("\N{MINUS SIGN}", "-").removeprefix("+")
    # In "3-4" the sign is an operator, not part of the number.
    if number.startswith("-") and last.start() > 0 and text[last.start() - 1].isdigit():
        number = number[1:]
    whole, _, fraction = number.partition(".")
    return whole if not fraction.strip("0") else number

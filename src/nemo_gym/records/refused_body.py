"""What a server's 422 says about a request body, in one line: the fields and what is wrong with them, not the body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SHOWN = 3
_LONGEST = 200


def refused_body_text(answer: Any) -> str | None:
    """Return the line for FastAPI's validation document (`detail` is a list), None for any other answer."""
    detail = answer.get("detail") if isinstance(answer, Mapping) else None
    if not isinstance(detail, list) or not detail:
        return None
    problems = [text for item in detail[:_SHOWN] if (text := _problem(item)) is not None]
    if not problems:
        return None
    more = len(detail) - len(problems)
    return "; ".join(problems) + (f"; and {more} more" if more else "")


def _problem(item: Any) -> str | None:
    where = item.get("loc") if isinstance(item, Mapping) else None
    if not isinstance(where, list) or not isinstance(item.get("msg"), str):
        return None
    names = [str(part) for part in where if part != "body"]
    field = f"`{'.'.join(names)}`: " if names else ""
    return (field + str(item["msg"]))[:_LONGEST]

"""What one server says of another that failed, in one line that names each thing once."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from nemo_gym.records import keys

_LONGEST_NAME = 200


def failed_server(headers: Mapping[str, str] | None) -> str | None:
    """Return the name of the server whose handler raised, from the headers of an error answer; None if none did."""
    value = (headers or {}).get(keys.FAILED_SERVER_HEADER)
    return None if value is None else unquote(value)[:_LONGEST_NAME]


def failure_text(headers: Mapping[str, str] | None, call: str, status: int, said: str) -> str:
    """Return that `call` was answered `status` with `said`, and whose exception it was, and where, when that is known.

    A server that passes on the words of another one adds nothing to them: they name the server already.
    """
    name = failed_server(headers)
    if name is None:
        return f"{call} answered {status}: {said}"
    who = f"server `{name}` failed: "
    if said.startswith(who):
        return said
    place = (headers or {}).get(keys.FAILED_AT_HEADER)
    return f"{who}{call} answered {status}: {said}" + ("" if place is None else f" ({unquote(place)})")

"""Whether a saved call shows the whole history that its model was given, by what the record itself holds. Pure.

A reference to something elsewhere (an uploaded file, an address, an earlier response) or an encrypted text is a place
that no reader of the record can look into.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nemo_gym.records.call_outcome import failed
from nemo_gym.records.evidence import TrajectoryModelCall

_BODIES: Mapping[str | None, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        "responses": (("input",), ("output",)),
        "chat": (("messages",), ("choices",)),
        "messages": (("messages",), ("content",)),
        None: (("input", "messages"), ("output", "choices", "content")),
    }
)
"""Dialect -> the keys of which one holds the ordered input, and those of which one holds the list of outputs."""

_DATA_URL = re.compile(r"data:[^;,]+(?:;[^;,]+)*;base64,(.*)", re.DOTALL)
_MEDIA_TYPES = frozenset(
    {"input_image", "input_file", "computer_screenshot", "image_url", "file", "image", "document", "container_upload"}
)
"""Parts of a message that hold a picture or a file, or lead to one."""

_ELSEWHERE, _UNDECODABLE = "a file or a picture is only referred to", "a picture cannot be decoded"


def history_problems(calls: Sequence[TrajectoryModelCall]) -> list[str]:
    """Return what keeps a reader from seeing what each call was given and what it answered."""
    problems = []
    for at, call in enumerate(calls):
        where = f"model_calls[{at}]"
        inputs, outputs = _BODIES.get(call.response_metadata.dialect, _BODIES[None])
        given = _first(call.request, inputs, (str, list))
        if not given:
            problems.append(f"{where}: no input in its request")
        elif not _goes_on_from_a_saved_response(call, calls[:at]):
            problems.append(f"{where}: the response it goes on from is not saved")
        answered = _first(call.response, outputs, (list,))
        if answered is None and not failed(call):
            body = "no response body" if not isinstance(call.response, dict) else "no list of outputs in its response"
            problems.append(f"{where}: {body}")
        unseen = dict.fromkeys([*_unseen(given), *_unseen(answered)])
        problems += [f"{where}: {what}" for what in unseen]
    return problems


def _first(body: object, names: Sequence[str], kinds: tuple[type, ...]) -> Any:
    found = [body[name] for name in names if isinstance(body.get(name), kinds)] if isinstance(body, dict) else []
    return found[0] if found else None


def _goes_on_from_a_saved_response(call: TrajectoryModelCall, earlier: Sequence[TrajectoryModelCall]) -> bool:
    previous = call.request.get("previous_response_id")
    if not previous:
        return True
    server = call.response_metadata.model_ref
    of_server = [other.response_metadata for other in earlier if other.response_metadata.model_ref == server]
    return [facts.response_id for facts in of_server].count(previous) == 1


def _unseen(value: Any) -> Iterator[str]:
    """Yield what of an input or an output is not in the record itself."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += reversed(part)
        elif isinstance(part, dict):
            kind = part.get("type")
            if part.get("encrypted_content") or kind == "redacted_thinking":
                yield "a text is encrypted"
            if kind in _MEDIA_TYPES and (problem := _media_problem(part)) is not None:
                yield problem
            pending += reversed(part.values())


def _media_problem(part: Mapping[str, Any]) -> str | None:
    holders = [part, *(item for key in ("file", "image_url", "source") if isinstance(item := part.get(key), dict))]
    source = part.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if kind in ("url", "file") or any(holder.get("file_id") or holder.get("file_url") for holder in holders):
        return _ELSEWHERE
    if isinstance(source, dict) and kind == "base64" and not _is_base64(source.get("data")):
        return _UNDECODABLE
    for holder in holders:
        for address in (holder.get("image_url"), holder.get("url")):
            if isinstance(address, str) and (problem := _address_problem(address)) is not None:
                return problem
    return None


def _address_problem(address: str) -> str | None:
    if not address.startswith("data:"):
        return _ELSEWHERE
    inline = _DATA_URL.fullmatch(address)
    return None if inline is not None and _is_base64(inline[1]) else _UNDECODABLE


def _is_base64(text: object) -> bool:
    if not isinstance(text, str) or not text:
        return False
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True

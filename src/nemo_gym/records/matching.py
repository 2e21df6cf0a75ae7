"""Which captured call a reference means (A6, A7).

A reference names a call by `model_call_id`, or by the exact pair of `model_ref` and `response_id`; whatever else it
gives must fit too. Nothing else counts: no time, order, name, text or similarity. The join, the performance summary and
the health checks use this one rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nemo_gym.records.evidence import ModelCallRef
from nemo_gym.records.model_calls import ModelCallRecord

ServerKey = tuple[str, str]
"""A model server reference as (type, name)."""


class CallIdentity(NamedTuple):
    """The three identifiers of a call, or of a reference to one; an empty text counts as not given."""

    model_call_id: str | None
    model_ref: ServerKey | None
    response_id: str | None


def identity_of(value: Any) -> CallIdentity:
    """Return the identifiers of a reference, a captured call or a trajectory call, given as record or as mapping.

    A trajectory call keeps `model_ref` and `response_id` under `response_metadata`.
    """
    if isinstance(value, (ModelCallRef, ModelCallRecord)):
        return CallIdentity._make(_stated_by(value))
    if type(value) is dict and "response_metadata" not in value:  # a captured call: by far the most frequent
        server = value.get("model_ref")
        if server is None:
            return CallIdentity(_text(value.get("model_call_id")), None, _text(value.get("response_id")))
    get = _getter(value)
    metadata = get("response_metadata")
    second = get if metadata is None else _getter(metadata)
    server = second("model_ref")
    if server is not None:
        part = _getter(server)
        server = (part("type") or "", part("name") or "")
    return CallIdentity(_text(get("model_call_id")), server, _text(second("response_id")))


class CallIndex:
    """Calls by their identifiers; positions in the given order are what `match` returns."""

    __slots__ = ("_by_id", "_by_pair", "identities")

    def __init__(self, calls: Iterable[Any]) -> None:
        self.identities: list[CallIdentity] = [
            call if type(call) is CallIdentity else identity_of(call) for call in calls
        ]
        self._by_id: dict[str, list[int]] = {}
        self._by_pair: dict[tuple[ServerKey, str], list[int]] = {}
        for position, (call_id, server, response_id) in enumerate(self.identities):
            if call_id is not None:
                self._by_id.setdefault(call_id, []).append(position)
            if server is not None and response_id is not None:
                self._by_pair.setdefault((server, response_id), []).append(position)

    def match(self, ref: Any) -> Sequence[int]:
        """Return the positions of the calls that `ref` can mean: one is a match, none or several are not.

        The positions are not the caller's to change.
        """
        given = _stated_by(ref) if type(ref) is ModelCallRef else ref if type(ref) is CallIdentity else identity_of(ref)
        call_id, server, response_id = given
        if call_id is not None:
            named = self._by_id.get(call_id, [])
            if server is None and response_id is None:
                return named
            if len(named) == 1 and self.identities[named[0]] == given:  # all that was asked: a joined reference
                return named
            return [
                position
                for position in named
                if (server is None or self.identities[position].model_ref == server)
                and (response_id is None or self.identities[position].response_id == response_id)
            ]
        if server is None or response_id is None:
            return []
        return self._by_pair.get((server, response_id), [])


def _stated_by(value: ModelCallRef | ModelCallRecord) -> tuple[str | None, ServerKey | None, str | None]:
    server = value.model_ref
    return (
        value.model_call_id or None,
        None if server is None else (server.type, server.name),
        value.response_id or None,
    )


def _getter(value: Any) -> Callable[[str], Any]:
    if isinstance(value, (dict, Mapping)):  # dict first: an abstract class is slow to ask
        return value.get
    return lambda name: getattr(value, name, None)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None

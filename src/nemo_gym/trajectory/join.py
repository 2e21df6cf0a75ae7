"""The join: which invocation owns which captured call (A5, A6, A7).

A pure function of an observation bundle and the captured calls in append order. References that mean exactly one call
get its full identity; every other reference stays as it is and leaves a gap. Joining the result again with the same
calls changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nemo_gym.records.codec import JsonObject
from nemo_gym.records.evidence import (
    AgentInvocation,
    AgentObservationBundle,
    ContextCompactionObservation,
    ModelCallRef,
    ModelServerRef,
    Observation,
    ObservationGap,
    dump,
    read,
    with_model_calls,
)
from nemo_gym.records.gaps import (
    OWNERSHIP_UNAVAILABLE,
    REFERENCE_AMBIGUOUS,
    REFERENCE_CONFLICT,
    REFERENCE_UNMATCHED,
)
from nemo_gym.records.matching import CallIdentity, CallIndex, identity_of
from nemo_gym.trajectory.gaps import CAPTURE_PLACE, COMPACTION_PLACE, producer_gaps, without_repeats


def join_observations(bundle: JsonObject, calls: Sequence[Mapping[str, Any]]) -> JsonObject:
    """Return `bundle` joined to the captured `calls` (append order), as a new object.

    Raises `ValidationError` when `bundle` is no observation bundle; no call makes it raise.
    """
    return dump(join_bundle(read(AgentObservationBundle, bundle), calls))


def join_bundle(
    bundle: AgentObservationBundle, calls: Sequence[Mapping[str, Any]], index: CallIndex | None = None
) -> AgentObservationBundle:
    """Return `bundle` joined to the captured `calls` (append order), as records. `index` is that of `calls`."""
    return _Join(bundle, calls, CallIndex(calls) if index is None else index).joined()


def canonical_reference(identity: CallIdentity) -> ModelCallRef:
    """Return the reference that gives every identifier of a captured call."""
    server = identity.model_ref
    return ModelCallRef(
        model_call_id=identity.model_call_id,
        model_ref=None if server is None else ModelServerRef(type="responses_api_models", name=server[1]),
        response_id=identity.response_id,
    )


class _Join:
    """One run of the join: owners by call position, and the gaps in the order found."""

    def __init__(self, bundle: AgentObservationBundle, calls: Sequence[Mapping[str, Any]], index: CallIndex) -> None:
        self.bundle = bundle
        self.calls = calls
        self.index = index
        self.owners: dict[int, str] = {}
        self.gaps: list[ObservationGap] = producer_gaps(bundle.gaps)

    def joined(self) -> AgentObservationBundle:
        extra = self._session_references()
        records: list[Observation] = [
            self._join_invocation(record, extra.get(record.invocation_id, []))
            if type(record) is AgentInvocation
            else record
            for record in self.bundle.records
        ]
        records = [
            self._join_compaction(record) if type(record) is ContextCompactionObservation else record
            for record in records
        ]
        self._report_unowned_calls()
        return AgentObservationBundle(source=self.bundle.source, records=records, gaps=without_repeats(self.gaps))

    def _session_references(self) -> dict[str, list[ModelCallRef]]:
        """Return the references that calls themselves give, by the invocation that their client named.

        This is the one way in which a call that failed without a response id gets an owner.
        """
        named = [
            (identity, names)
            for call, identity in zip(self.calls, self.index.identities, strict=True)
            if identity.model_call_id is not None and (names := named_invocations(call))
        ]
        extra: dict[str, list[ModelCallRef]] = {}
        if not named:
            return extra
        held = {
            record.invocation_id: {identity_of(ref) for ref in record.model_calls}
            for record in self.bundle.records
            if type(record) is AgentInvocation
        }
        for identity, names in named:
            for name in names:
                known = held.get(name)
                if known is not None and not _denoted(identity, known):
                    known.add(identity)
                    extra.setdefault(name, []).append(canonical_reference(identity))
        return extra

    def _join_invocation(self, invocation: AgentInvocation, extra: Sequence[ModelCallRef]) -> AgentInvocation:
        name = invocation.invocation_id
        refs: list[ModelCallRef] = []
        meant: set[int] = set()
        for ref in (*invocation.model_calls, *extra):
            position = self._only_match(ref, name, "")
            if position is None:
                refs.append(ref)
                continue
            owner = self.owners.setdefault(position, name)
            if owner != name:
                self._add(REFERENCE_CONFLICT, name, self._call_name(position))
                refs.append(ref)
                continue
            if position not in meant:  # one invocation naming one call twice means it once
                meant.add(position)
                refs.append(canonical_reference(self.index.identities[position]))
        return with_model_calls(invocation, refs)

    def _join_compaction(self, compaction: ContextCompactionObservation) -> ContextCompactionObservation:
        name = compaction.invocation_id
        refs = [self._compaction_call(ref, name) for ref in compaction.model_calls]
        before = self._boundary(compaction.before_model_call, name, "before_model_call:")
        after = self._boundary(compaction.after_model_call, name, "after_model_call:")
        return msgspec.structs.replace(compaction, model_calls=refs, before_model_call=before, after_model_call=after)

    def _compaction_call(self, ref: ModelCallRef, invocation_id: str) -> ModelCallRef:
        position = self._only_match(ref, invocation_id, COMPACTION_PLACE)
        if position is None:
            return ref
        owner = self.owners.get(position)
        if owner == invocation_id:
            return canonical_reference(self.index.identities[position])
        code = OWNERSHIP_UNAVAILABLE if owner is None else REFERENCE_CONFLICT
        self._add(code, invocation_id, COMPACTION_PLACE + self._call_name(position))
        return ref

    def _boundary(self, ref: ModelCallRef | None, invocation_id: str, place: str) -> ModelCallRef | None:
        """A boundary needs no owner: it only must not belong to somebody else."""
        if ref is None:
            return None
        position = self._only_match(ref, invocation_id, place)
        if position is None:
            return ref
        if self.owners.get(position, invocation_id) != invocation_id:
            self._add(REFERENCE_CONFLICT, invocation_id, place + self._call_name(position))
            return ref
        return canonical_reference(self.index.identities[position])

    def _only_match(self, ref: ModelCallRef, invocation_id: str, place: str) -> int | None:
        matches = self.index.match(ref)
        if len(matches) == 1:
            return matches[0]
        code = REFERENCE_AMBIGUOUS if matches else REFERENCE_UNMATCHED
        self._add(code, invocation_id, f"{place}{ref.model_call_id or ref.response_id}")
        return None

    def _report_unowned_calls(self) -> None:
        for position, call in enumerate(self.calls):
            if position not in self.owners:
                call_index = call.get("call_index", position)
                detail = f"{CAPTURE_PLACE}{self._call_name(position)}:call_index={call_index}"
                self.gaps.append(ObservationGap(code=OWNERSHIP_UNAVAILABLE, detail=detail))

    def _add(self, code: str, invocation_id: str, detail: str) -> None:
        self.gaps.append(ObservationGap(code=code, invocation_id=invocation_id, detail=detail))

    def _call_name(self, position: int) -> str:
        identity = self.index.identities[position]
        return identity.model_call_id or identity.response_id or "unknown"


def named_invocations(call: Mapping[str, Any]) -> list[str]:
    """Return the invocation ids that the client gave with the call: in the URL, and as session header."""
    names = (call.get("invocation_id"), call.get("client_session_id"))
    if names == (None, None):
        return []
    return list(dict.fromkeys(name for name in names if isinstance(name, str) and name))


def _denoted(identity: CallIdentity, refs: set[CallIdentity]) -> bool:
    call_id, server, response_id = identity
    return (
        identity in refs
        or CallIdentity(call_id, None, None) in refs
        or CallIdentity(call_id, server, None) in refs
        or CallIdentity(call_id, None, response_id) in refs
        or (server is not None and response_id is not None and CallIdentity(None, server, response_id) in refs)
    )
